"""Timed lookups: what a round's lookup does inside the clock, and that the index is the same before each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgauge.bench.cache.cache import forward
from specgauge.bench.decoding.drafters import NgramDrafter, NgramIndex
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.bench.timing import arm_runner as arms
from specgauge.bench.timing.arm_runner import ArmRunner, TimedLookups, committed_by_a_round
from specgauge.bench.timing.cell_timer import measure_cells
from specgauge.configs.pairs import NgramConfig
from specgauge.configs.schema import PrecisionConfig
from specgauge.model.arms import arm_names
from tests.bench.conftest import LoggingClock
from tests.bench.decoded import GREEDY, Make
from tests.bench.timing.conftest import cell

PROMPTS = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 1, 3, 5, 7], [2]]
CPU = torch.device("cpu")
GAMMA_MAX = 4


def lookup_pair(target: LoadedModel) -> LoadedPair:
    return LoadedPair(name="p", target=target, draft=None, ngram=NgramConfig())


@given(
    tokens=st.lists(st.integers(0, 2), min_size=4, max_size=30),
    known=st.integers(1, 28),
    longest=st.integers(1, 3),
)
def test_an_index_goes_back_to_what_it_was(tokens: list[int], known: int, longest: int) -> None:
    index = NgramIndex(longest=longest, shortest=1)
    known = min(known, len(tokens))
    index.learn(tokens[:known])
    before, learnt = dict(index.ends), index.learnt
    state = index.state_before(tokens)
    first = index.lookup(tokens, 3)
    index.back_to(state)
    assert (index.ends, index.learnt) == (before, learnt)
    assert index.lookup(tokens, 3) == first


def test_a_rounds_lookup_learns_what_was_committed_and_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int, list[int], list[int]]] = []
    right = NgramDrafter.propose

    def watched(self: NgramDrafter, committed: Any, gammas: Any, uniforms: Any) -> Any:
        learnt = self.rows[0].learnt
        proposal = right(self, committed, gammas, uniforms)
        asked.append((len(committed[0]), learnt, self.rows[0].learnt, list(gammas), proposal.tokens.tolist()[0]))
        return proposal

    monkeypatch.setattr(NgramDrafter, "propose", watched)
    row = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]
    lookups = TimedLookups(NgramConfig(), [row, row[::-1]], 4, CPU)
    for context in (9, 5, 9):
        for gamma in (4, 1, 2):
            lookups.round(context, gamma)()
    assert [committed_by_a_round(gamma) for gamma in (1, 2, 4)] == [1, 2, 3]
    # ten tokens are committed; the end of the text itself is never learnt
    at_nine = [(10, 6, 9, [4, 4], [3, 4, 1, 2]), (10, 8, 9, [1, 1], [3]), (10, 7, 9, [2, 2], [3, 4])]
    at_five = [(6, 2, 5, [4, 4], [3, 4, 1, 2]), (6, 4, 5, [1, 1], [3]), (6, 3, 5, [2, 2], [3, 4])]
    assert asked == [*at_nine, *at_five, *at_nine]


def test_the_shortest_context_has_a_round_too() -> None:
    lookups = TimedLookups(NgramConfig(), [[1, 1, 1]], 8, CPU)
    lookups.round(1, 8)()
    lookups.index(1)
    assert lookups._drafter.rows[0].ends == {(1,): 1}


@pytest.fixture
def bench(tiny_model: Make) -> ArmRunner:
    with torch.inference_mode():
        return ArmRunner(
            lookup_pair(tiny_model(name="target")), PROMPTS, batch_size=3, max_context=20, gamma_max=GAMMA_MAX, seed=5
        )


class Log(LoggingClock):
    """What happens in order: target forwards, lookups, marks and synchronisations."""

    def __init__(self, bench: ArmRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        look, start = NgramDrafter.propose, NgramDrafter.start

        def logged(model: Any, cache: Any, tokens: Any, *, keep: int = 0) -> Any:
            assert model is bench.target.model.model
            self.lines.append(("target", tokens.shape[1], cache.lengths[0]))
            return forward(model, cache, tokens, keep=keep)

        def logged_look(drafter: NgramDrafter, committed: Any, gammas: Any, uniforms: Any) -> Any:
            self.lines.append(("look", gammas[0], len(committed[0]) - 1))
            return look(drafter, committed, gammas, uniforms)

        def logged_start(drafter: NgramDrafter, committed: Any, new: int) -> None:
            self.lines.append(("index", len(committed[0])))
            start(drafter, committed, new)

        monkeypatch.setattr(arms, "forward", logged)
        monkeypatch.setattr(NgramDrafter, "propose", logged_look)
        monkeypatch.setattr(NgramDrafter, "start", logged_start)


def test_each_lookup_is_timed_alone_after_a_target_step(bench: ArmRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sample("draft", 7, GREEDY, Log(bench, monkeypatch))  # the index is there from here on
    log = Log(bench, monkeypatch)
    marks = bench.sample("draft", 7, GREEDY, log)
    assert marks == [1.0] * GAMMA_MAX
    steps = [[("target", 1, 7), "wait", "mark", ("look", gamma, 7), "mark", "wait"] for gamma in range(1, 5)]
    assert log.lines == [line for step in steps for line in step]


def test_verification_follows_a_lookup_and_the_index_is_the_prefill(
    bench: ArmRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sample("draft", 7, GREEDY, Log(bench, monkeypatch))
    for arm, before, inside in (
        ("verify:3", [("look", 3, 7)], ("target", 4, 7)),
        ("prefill_draft", [], ("index", 8)),
        ("decode", [("target", 1, 6)], ("target", 1, 7)),
    ):
        log = Log(bench, monkeypatch)
        bench.sample(arm, 7, GREEDY, log)
        assert log.lines == [*before, "wait", "mark", inside, "mark", "wait"]
    assert bench.capacities == {"capacity_target": 64, "capacity_draft": None}


def test_the_cells_of_a_lookup_pair_have_no_catch_up(tiny_model: Make, memory_journal: Any) -> None:
    precision = PrecisionConfig(min_blocks=2, max_blocks=2, block_samples=1)
    options: Any = {"gammas": [1, 3], "prompts": PROMPTS, "precision": precision, "journal": memory_journal, "seed": 0}
    measure_cells(lookup_pair(tiny_model()), [cell(2, 8)], **options)
    assert {line.arm for line in memory_journal.lines} == set(arm_names([1, 3], catches_up=False))
    assert all(line.status == "ok" for line in memory_journal.lines)
    assert len(memory_journal.blocks("2-8", "draft")[0].samples_s[0]) == 3
    assert memory_journal.blocks("2-8", "draft")[0].notes["capacity_draft"] is None
