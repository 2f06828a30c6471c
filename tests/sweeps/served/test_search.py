"""Which γ of a pair's servers need another block, and what a run leaves out for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specgauge.configs.engines import EngineConfig
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray
from specgauge.reports.html import write_report
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.exports.registry import ENGINES
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.run.progress import Progress
from specgauge.sweeps.served.search import GammaSearch, most_passes
from specgauge.sweeps.served.servers import Arms, ServedArm, Visit
from specgauge.sweeps.served.visits import PairServers
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow
from tests.engine_server.direct import DirectServers, direct_load
from tests.engine_server.engine import Engine, EngineSettings
from tests.sweeps.served.simulated import measure, served_config

GAMMAS = (1, 2, 4, 8)
OMEGA = (1.8, 2.44, 3.36, 4.33)
SMALL, LARGE = (1, 64), (16, 64)


def search(times_ms: Mapping[tuple[int, int], Mapping[int, float]], blocks: int = 3, known: int = 4) -> GammaSearch:
    """Cells whose blocks all took the same, Ω counted at the first γ."""
    omega: FloatArray = np.tile([*OMEGA[:known], *[np.nan] * (4 - known)], (201, 1))
    full = np.tile([0.8, 0.64, 0.41, 0.17], (201, 1))
    times_s = {at: {gamma: np.full(blocks, ms / 1e3) for gamma, ms in cell.items()} for at, cell in times_ms.items()}
    provenance = np.zeros(4, dtype=np.int64)
    accepted = Acceptance(gammas=np.array(GAMMAS), tokens_per_round=omega, full_acceptance=full, provenance=provenance)
    return GammaSearch(gammas=GAMMAS, times_s=times_s, acceptance=accepted, relative_ci=0.02)


PLENTY = {0: 10.0, 1: 11.0, 2: 12.0, 4: 14.0, 8: 18.0}
"""At a batch size of 1: S is 1.64, 2.03, 2.40 and 2.41."""


def left_out(found: GammaSearch, at: tuple[int, int]) -> list[int]:
    return [gamma for gamma in GAMMAS if found.reason(at, gamma) is not None]


def test_what_the_largest_smaller_round_bounds_is_left_out_and_neighbours_are_not() -> None:
    alone = search({LARGE: {0: 10.0, 1: 30.0, 2: 50.0}})  # S .6 and .49; of γ = 4 at most .67, of 8 .87
    assert left_out(alone, LARGE) == [4, 8]
    assert (alone.reason(LARGE, 8) or "").startswith("cannot be best: S at most 0.")


def test_all_from_the_best_here_to_the_best_beside_is_measured() -> None:
    beside = search({SMALL: {**PLENTY, 8: 25.0}, LARGE: {0: 10.0, 1: 30.0, 2: 50.0}})
    assert left_out(beside, LARGE) == [8]
    assert left_out(beside, SMALL) == []  # 0 is the best of the larger one


def test_a_round_is_at_least_as_long_as_at_a_smaller_batch_size() -> None:
    cells = {(8, 64): {0: 10.0, 1: 30.0, 2: 60.0, 4: 90.0, 8: 150.0}, LARGE: {0: 12.0, 1: 50.0}}
    assert left_out(search(cells), LARGE) == [4, 8]


def test_later_drafts_are_accepted_at_most_as_often_as_the_last_one_counted() -> None:
    # by γ = 1 alone Ω(8) is up to 1.8 + 7 · 0.8 = 7.4
    assert left_out(search({LARGE: {0: 10.0, 1: 30.0}}, known=1), LARGE) == []
    assert left_out(search({LARGE: {0: 10.0, 1: 95.0}}, known=1), LARGE) == [4, 8]


def test_nothing_is_left_out_before_anything_is_known_or_where_rounds_get_shorter() -> None:
    assert left_out(search({LARGE: {0: 10.0}}), LARGE) == []
    assert left_out(search({}), LARGE) == []
    assert left_out(search({LARGE: {0: 10.0, 1: 50.0, 2: 30.0}}), LARGE) == []


@pytest.mark.parametrize(
    ("rounds", "blocks", "open_ones"),
    [
        ((11.0, 12.0, 14.0, 30.0), 3, [4]),  # S of the best is not known to 2 % yet
        ((11.0, 12.0, 14.0, 30.0), 12, []),
        ((11.0, 12.0, 14.0, 18.1), 3, [4, 8]),  # S 2.400 and 2.392
    ],
)
def test_close_ones_take_more_blocks(rounds: Sequence[float], blocks: int, open_ones: list[int]) -> None:
    found = search({SMALL: dict(zip((0, *GAMMAS), (10.0, *rounds), strict=True))}, blocks)
    assert [gamma for gamma in GAMMAS if found.is_open(SMALL, gamma)] == open_ones


def sizes(cells: Mapping[int, Mapping[int, float]], first: Sequence[int] = (), *, parts: int = 2) -> list[int]:
    """Of 1 to 16, what is measured after some batch sizes."""
    found = search({(size, 64): cell for size, cell in cells.items()}, blocks=12)
    return found.next_sizes(64, [size for size in range(1, 17) if size not in cells], first=first, parts=parts)


DENSE = {0: 10.0, 1: 30.0, 2: 50.0}
"""Plain decoding is best, far ahead."""


def test_between_batch_sizes_of_different_gammas_the_middle_is_measured() -> None:
    assert sizes({1: PLENTY, 9: DENSE, 16: DENSE}) == [5]
    assert sizes({1: PLENTY, 9: DENSE, 16: DENSE}, parts=4) == [3, 5, 7]
    assert sizes({1: PLENTY, 5: PLENTY, 6: DENSE, 16: DENSE}) == []
    assert sizes({1: PLENTY, 4: PLENTY, 6: DENSE}, parts=4) == [5]


def test_between_batch_sizes_of_one_gamma_nothing_is_however_rounds_rise() -> None:
    assert sizes({1: {0: 10.0, 1: 12.0}, 16: {0: 10.1, 1: 12.1}}, first=[1, 16]) == []
    assert sizes({1: {0: 10.0, 1: 12.0}, 16: {0: 10.1}}, first=[1, 16]) == []  # no γ is known at 16


ALIKE = {0: 10.0, 1: 12.0, 2: 12.0}
"""γ = 2 is best, and where rounds take twice as long, that of a smaller batch size could be better."""


def longer(factor: float) -> dict[int, float]:
    return {gamma: factor * ms for gamma, ms in ALIKE.items()}


def test_between_first_batch_sizes_of_one_gamma_one_is_looked_at() -> None:
    assert sizes({1: ALIKE, 5: longer(2)}, first=[1, 5]) == [3]
    assert sizes({1: ALIKE, 3: longer(1.5), 5: longer(2)}, first=[1, 5]) == []


def test_where_rounds_lie_off_the_line_more_is_looked_at() -> None:
    bent = {1: ALIKE, 3: longer(1.9), 5: longer(2)}
    assert sizes(bent, first=[1, 5]) == [2]  # from 3 to 5 they rise too little for another γ
    assert sizes({1: ALIKE, 5: longer(1.4), 9: longer(2.2)}, first=[1, 9]) == [3, 7]
    assert sizes({1: ALIKE, 5: longer(1.6), 9: longer(2.2)}, first=[1, 9]) == []


def test_searches_of_batch_sizes_end_after_as_many_passes() -> None:
    cases = [(range(1, 17), 4, 2), (range(1, 17), 2, 3), ([1, 2, 4], 2, 0), ([1, 2, 3], 2, 0), (range(1, 9), 2, 2)]
    assert [most_passes(sizes, parts) for sizes, parts, _ in cases] == [passes for *_, passes in cases]


ENGINE = EngineSettings(per_request=True, alpha=0.6, draft_s=0.002, token_s=0.002, free_tokens=8)
SERVED = (0, 1, 2, 4, 8)


def run(path: Path, how: str) -> tuple[Run, DirectServers]:
    servers = DirectServers({gamma: Engine(replace(ENGINE, gamma=gamma)) for gamma in SERVED})
    config = served_config(
        SERVED,
        grid={"batch_size": [1, 16], "context": 32, "gamma_search": how},
        precision={"max_blocks": 4, "block_samples": 16, "bootstrap_replicates": 200},
        workload={"max_new_tokens": 64},
    )
    with direct_load():
        measure(path, config, servers)
    predict_run(Run.open(path))
    return Run.open(path), servers


def test_a_run_leaves_out_cell_by_cell_what_cannot_be_best(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "run", "adaptive")
    status = {(row.batch_size, row.gamma): (row.status, row.reason) for row in found.rows(PredictionRow)}
    assert {at for at, (word, _) in status.items() if word == "ok"} >= {(1, 1), (1, 2), (16, 1), (16, 2)}
    assert status[16, 8][0] == "skipped"
    assert status[16, 8][1].startswith("cannot be best: S at most 0.")
    assert not {warning["code"] for warning in found.warnings} & {"skipped", "search_left_open", "unmeasured"}
    lines = len(found.journal())
    again, _ = run(tmp_path / "run", "adaptive")
    assert len(again.journal()) == lines


def test_a_run_of_all_gammas_leaves_none_out(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "run", "all")
    assert {row.status for row in found.rows(PredictionRow)} == {"ok"}


class Started(Visit):
    """A server of one γ, which is started on entering."""

    def __init__(self, gamma: int, blocks: range, started: list[int]) -> None:
        super().__init__([gamma])
        self.blocks, self._gamma, self._started = blocks, gamma, started

    async def __aenter__(self) -> Arms:
        self._started.append(self._gamma)
        servers = DirectServers({self._gamma: Engine(replace(ENGINE, gamma=self._gamma))})
        engine = EngineConfig.model_validate({"base_url": "http://a:1", "gamma": self._gamma})
        return {self._gamma: ServedArm(gamma=self._gamma, client=servers.connect(engine, "http://a:1"))}

    async def __aexit__(self, *_: object) -> None:
        """It ends."""


@pytest.mark.parametrize(
    ("sizes", "started", "large"),
    [
        # 4 cannot be the best anywhere; 8 could, as long as its acceptance is not counted
        ([16, 32], [0, 1, 2, 8, 2, 1, 0], {1, 2}),
        ([1, 16], [0, 1, 2, 4, 8, 4, 2, 1, 0], {1, 2, 4}),  # 4 at 16, too, since its server is there
    ],
)
def test_a_server_is_started_unless_its_gamma_can_be_best_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], started: list[int], large: set[int]
) -> None:
    entered: list[int] = []

    def timing(_: PairServers, gammas: Sequence[int], *, blocks: int, most: int) -> Iterator[Visit]:
        yield from (Started(gamma, range(2), entered) for gamma in gammas)
        yield from (Started(gamma, range(2, 4), entered) for gamma in reversed(gammas))

    monkeypatch.setattr(PairServers, "timing", timing)
    monkeypatch.setattr(PairServers, "launch", SimpleNamespace(is_live=False))
    config = served_config(
        SERVED,
        grid={"batch_size": sizes, "context": 32, "gamma_search": "adaptive"},
        precision={"max_blocks": 4, "block_samples": 16, "bootstrap_replicates": 200},
        workload={"max_new_tokens": 64},
    )
    with direct_load():
        measure(tmp_path, config, DirectServers({}))
    assert entered == started
    predict_run(Run.open(tmp_path))
    rows = Run.open(tmp_path).rows(PredictionRow)
    assert {row.gamma for row in rows if row.status == "ok" and row.batch_size == max(sizes)} == large


KNEE = EngineSettings(per_request=True, alpha=0.8, draft_s=0.001, token_s=0.004, free_tokens=12)
"""γ is 2 up to a batch size of 4, and plain decoding is best from there on to 12."""


def searched_run(path: Path, sizes: object) -> tuple[Run, list[str]]:
    servers = DirectServers({gamma: Engine(replace(KNEE, gamma=gamma)) for gamma in (0, 1, 2)})
    config = served_config(
        (0, 1, 2),
        grid={"batch_size": sizes, "context": 32, "gamma_search": "adaptive"},
        precision={"max_blocks": 4, "block_samples": 24, "bootstrap_replicates": 200},
        workload={"max_new_tokens": 64},
    )
    progress = Said()
    with direct_load():
        measure(path, config, servers, progress)
    predict_run(Run.open(path))
    return Run.open(path), progress.said


class Said(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_a_run_measures_the_batch_sizes_at_which_gamma_changes(tmp_path: Path) -> None:
    engine = Engine(KNEE)
    best = {
        size: max((0, 1, 2), key=lambda gamma: engine.omega(gamma) / engine.t_round_s(size, gamma))
        for size in range(1, 17)
    }
    found, said = searched_run(tmp_path, {"max": 16, "search": "adaptive"})
    measured = found.config.grid.batch_size
    assert set(measured) > {1, 2, 4, 8, 16}
    changes = [size for size in range(1, 16) if best[size] != best[size + 1]]
    assert changes
    assert all(size in measured and size + 1 in measured for size in changes)
    assert len(measured) < 12
    assert any(line.startswith("pair a: batch size ") for line in said)
    answers = recommend(found)
    assert {entry["batch_size"] for entry in answers.entries} == set(measured)
    missing = next(size for size in range(1, 17) if size not in measured)
    with pytest.raises(ValueError, match=f"batch size {missing} was not measured"):
        recommend(found, batch_size=missing)
    lines = len(found.journal())
    again, said = searched_run(tmp_path, {"max": 16, "search": "adaptive"})
    assert (len(again.journal()), again.config.grid.batch_size, said) == (lines, measured, [])


def test_break_even_and_schedule_agree_at_every_batch_size(tmp_path: Path) -> None:
    found, _ = searched_run(tmp_path, [1, 16])
    (told,) = found.break_even
    schedule = run_answers(found, ENGINES["vllm"].rules, undecided="gamma")
    drafting = {size for step in schedule.steps if step.gamma for size in range(step.first, step.last + 1)}
    assert drafting == {size for first, last in told["pays"] for size in range(first, last + 1)}
    assert told["break_even_batch_size"] == max(drafting) + 1
    assert 1 < max(drafting) < 16
    sure = run_answers(found, ENGINES["vllm"].rules, undecided="off")
    assert {size for step in sure.steps if step.gamma for size in range(step.first, step.last + 1)} <= drafting
    assert f"break-even at {max(drafting) + 1} (interpolated)" in recommend(found).breaks_even
    report = unescape(write_report(tmp_path).read_text(encoding="utf-8"))
    assert f"break-even at {max(drafting) + 1} (interpolated)" in report
    (gap,) = schedule.gaps
    assert (gap.first, gap.last) == (2, 15)
