"""What kept blocks say of the seconds they took and of neighbours, those of earlier releases too."""

from pathlib import Path

import pyarrow.parquet as pq

from specgauge.sweeps.store.rows import columns
from specgauge.sweeps.store.rundir import REQUESTS
from specgauge.sweeps.store.schema import DisturbanceRow, RequestRow
from specgauge.sweeps.store.tables import DecodedLog
from tests.sweeps.decoded import PREFILL_S, key
from tests.sweeps.store.test_tables import SHORT, content, keep


def test_seconds_of_what_was_decoded_again_count_once_a_block(tmp_path: Path) -> None:
    log = DecodedLog(tmp_path)
    for block, retaken_s in enumerate((0.0, 7.0, None)):
        requests = [row | {"retaken_s": retaken_s} for arm in ("plain", "generate") for row in SHORT.requests(arm)]
        log.append(key(), block, requests, SHORT.rounds("plain"))
    assert log.spent_s("p") == 3 * 2 * (4 + PREFILL_S) + 7.0


def test_a_table_of_an_earlier_release_says_nothing_of_neighbours_and_grows(tmp_path: Path) -> None:
    keep(DecodedLog(tmp_path), 0)
    own = list(columns(DisturbanceRow))
    table = pq.read_table(tmp_path / REQUESTS)
    pq.write_table(table.drop_columns(own), tmp_path / REQUESTS)
    log = DecodedLog(tmp_path)
    assert log.spent_s("p") == 4 + PREFILL_S
    log.append(key(), 1, [row | {"disturbed": 1} for row in SHORT.requests("plain")], SHORT.rounds("plain"))
    assert [row["disturbed"] for row in content(tmp_path)[0]] == [None, None, 1, 1]
    assert sorted(content(tmp_path)[0][0]) == sorted(columns(RequestRow))
