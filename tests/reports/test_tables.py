from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specgauge.reports.records import curves, read_report_data
from specgauge.reports.tables import Table, broken_table, chosen_gammas, prediction_table, timing_table
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.store.schema import PredictionRow
from tests.reports.pages import table_text
from tests.reports.synthetic import ONE, build_run, predicted
from tests.sweeps.run.test_searched_cells import BASE, searched_run

TWO = replace(ONE, batch_sizes=(1, 4), gammas=(1, 2))


def predictions(rows: list[PredictionRow]) -> Table | None:
    return prediction_table(curves(rows), {(row.setting, row.point, row.gamma) for row in rows if row.is_recommended})


PREDICTIONS = {
    "every gamma of two settings": predictions(predicted(replace(ONE, alphas={"greedy": 0.82, "t1": 0.7}))),
    "provenance differs": predictions(predicted(replace(TWO, contexts=(16, 64)))),
    "labels differ": predictions([replace(row, label="x" * (row.gamma == 1)) for row in predicted(ONE)]),
    "a point without a number": predictions(predicted(replace(TWO, broken={(4, 64): ("oom", "no room")}))),
    # γ = 2: 10.064 · (.3 + 1.12 + .49 · .015) + 1 = 15.4 ms
    "a measured overhead": predictions(predicted(replace(ONE, gammas=(1, 2), overhead_s=0.001))),
    "nothing": predictions([]),
}


def test_the_cells_of_every_table(tmp_path: Path, snapshot: Callable[[str, str], None]) -> None:
    # timings: three blocks of five samples at −1, −.5, 0, .5 and 1 %: the 90 % interval of the median of 15 reaches
    # from the 4th to the 12th, −.5 % to .5 %; the median of the first seven is −.5 %, of the last seven .5 %: drift
    # 1.0 %; first calls were made five times as slow; the chain is γ_max = 6 drafts of 15 % of 10.064 ms
    timings = read_report_data(build_run(tmp_path / "one", ONE)).timings
    broken = replace(TWO, contexts=(64, 256), broken={(4, 256): ("oom", "no room")})
    data = read_report_data(build_run(tmp_path / "broken", broken))
    tables = PREDICTIONS | {
        "timings": timing_table(timings, 0.9),
        "no timings": timing_table([], 0.9),
        "timings without those of a broken cell": timing_table(data.timings, 0.9),
        "a broken cell": broken_table(data.timings),
        "no broken cell": broken_table(timings),
    }
    snapshot("tables", "\n".join(f"{name}\n{table_text(table)}" for name, table in tables.items()))
    assert len(chosen_gammas(data.recommendations)) == 3


def test_drift_is_that_of_what_was_taken(tmp_path: Path) -> None:
    """The later half of the blocks is half as slow again; taken at one pace, no arm would show it."""
    predict_run(searched_run(tmp_path, {arm: range(4) for arm in (*BASE, "verify:2")}, {}, {2: 1.5, 3: 1.5}))
    table = timing_table(read_report_data(tmp_path).timings, 0.9)
    assert table is not None
    assert table.groups[0].rows[0].cells[0::5] == ["T_decode", "+50.0\u202f%"]
