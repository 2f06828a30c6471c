"""Which γ of a pair's servers need another block, and what a run leaves out for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specgauge.configs.engines import EngineConfig
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.served.search import GammaSearch
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
