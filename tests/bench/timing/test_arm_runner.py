"""The arms: what is fed or looked up inside and outside the clock, and that every cache and index stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specgauge.bench.cache.cache import forward, new_cache
from specgauge.bench.decoding.drafters import NgramDrafter, NgramIndex, Proposal
from specgauge.bench.decoding.sampling import lowest_argmax, next_tokens, probabilities, seen_tokens
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.bench.timing import arm_runner as arms
from specgauge.bench.timing.arm_runner import ArmRunner, TimedLookups, committed_by_a_round, timing_rows
from specgauge.bench.timing.clock import HostClock
from specgauge.configs.pairs import NgramConfig
from specgauge.model.arms import arm_names
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import GREEDY, Make

SAMPLED = SamplingSettings(temperature=0.9, top_k=8)
PENALISED = SamplingSettings(temperature=0.0, repetition_penalty=100.0)
CPU = torch.device("cpu")
PROMPTS = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 1, 3, 5, 7], [2]]
GAMMA_MAX = 4
LARGEST = 20
ARMS = arm_names(range(1, GAMMA_MAX + 1))
TOLERANCE = 2e-6
"""Models compute rotary angles and norms partly in float32, whatever the weights' type."""

Bench = Callable[..., ArmRunner]


@pytest.fixture
def bench(tiny_model: Make) -> Bench:
    """A function that opens a workbench on a random pair, or on one that looks drafts up."""

    def make(*, vocabulary: int = 11, draft_vocabulary: int = 11, has_draft: bool = True) -> ArmRunner:
        target = tiny_model(seed=1, name="target", vocabulary=vocabulary)
        draft = tiny_model(seed=2, name="draft", vocabulary=draft_vocabulary, layers=1)
        drafting: Any = {"draft": draft} if has_draft else {"draft": None, "ngram": NgramConfig()}
        pair = LoadedPair(name="p", target=target, **drafting)
        with torch.inference_mode():
            return ArmRunner(pair, PROMPTS, batch_size=3, max_context=LARGEST, gamma_max=GAMMA_MAX, seed=5)

    return make


class Log:
    """A clock that goes a second from mark to mark; what happens in order: forwards, lookups, marks and waits."""

    marks_on_host = False

    def __init__(self, bench: ArmRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[Any] = []
        self.tokens: list[Tensor] = []
        self.starts: list[list[int]] = []
        look, start = NgramDrafter.propose, NgramDrafter.start

        def logged(model: Any, cache: Any, tokens: Tensor, *, keep: int = 0) -> Tensor:
            who = "target" if model is bench.target.model.model else "draft"
            assert cache is (bench.target.cache if who == "target" else bench.draft.cache)
            self.lines.append((who, tokens.shape[1], max(cache.lengths)))
            self.starts.append(list(cache.lengths))
            self.tokens.append(tokens.clone())
            return forward(model, cache, tokens, keep=keep)

        def logged_look(drafter: NgramDrafter, committed: Any, gammas: Any, uniforms: Any) -> Any:
            self.lines.append(("look", gammas[0], len(committed[0]) - 1))
            return look(drafter, committed, gammas, uniforms)

        def logged_start(drafter: NgramDrafter, committed: Any, new: int) -> None:
            self.lines.append(("index", len(committed[0])))
            start(drafter, committed, new)

        monkeypatch.setattr(arms, "forward", logged)
        monkeypatch.setattr(arms, "prefill", logged)
        monkeypatch.setattr(NgramDrafter, "propose", logged_look)
        monkeypatch.setattr(NgramDrafter, "start", logged_start)

    def synchronize(self) -> None:
        self.lines.append("wait")

    def mark(self) -> int:
        self.lines.append("mark")
        return self.lines.count("mark")

    def elapsed_s(self, start: int, end: int) -> float:
        return float(end - start)


def fresh_logits(model: LoadedModel, tokens: Tensor) -> Tensor:
    """(B, L, V) logits of one forward of the text over a new cache."""
    cache = new_cache(model.model, batch_size=tokens.shape[0], tokens=tokens.shape[1])
    with torch.inference_mode():
        return forward(model.model, cache, tokens)


@given(
    prompts=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=5),
    batch_size=st.integers(1, 7),
    length=st.integers(1, 40),
)
def test_every_row_holds_exactly_the_length_of_tokens(prompts: list[list[int]], batch_size: int, length: int) -> None:
    rows = timing_rows(prompts, batch_size, length)
    assert rows.shape == (batch_size, length)
    assert rows.dtype == torch.long
    for row, tokens in enumerate(rows.tolist()):
        order = [token for index in range(len(prompts)) for token in prompts[(row + index) % len(prompts)]]
        assert tokens == [order[position % len(order)] for position in range(length)]


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("context", [2, 7, LARGEST])
@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("decode", [("target", 1, -1), "wait", "mark", ("target", 1, 0), "mark", "wait"]),
        (
            "draft",
            [
                ("target", 1, 0),
                *("wait", "mark"),
                *(part for step in range(GAMMA_MAX) for part in (("draft", 1, step), "mark")),
                *("wait", ("draft", GAMMA_MAX, 0)),
            ],
        ),
        ("draft_catch_up", [("target", 1, 0), "wait", "mark", ("draft", 2, -1), "mark", "wait"]),
        *(
            (f"verify:{gamma}", [("draft", 1, -1), "wait", "mark", ("target", gamma + 1, 0), "mark", "wait"])
            for gamma in range(1, GAMMA_MAX + 1)
        ),
    ],
)
def test_the_forwards_of_an_arm(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    arm: str,
    expected: list[Any],
    context: int,
    settings: SamplingSettings,
) -> None:
    """(model, tokens a row, tokens in its cache before, less the context), between marks and waits.

    All but the later steps of the chain are fed the text's own tokens, each row at its own place.
    """
    opened = bench()
    log = Log(opened, monkeypatch)
    marks = opened.sample(arm, context, settings, log)
    found = [line if isinstance(line, str) else (line[0], line[1], line[2] - context) for line in log.lines]
    assert found == expected
    assert marks == [float(step + 1) for step in range(GAMMA_MAX if arm == "draft" else 1)]
    ragged = [0, 0, 0] if arm == "decode" else [0, 1, min(2, context - 1)]
    assert all([max(starts) - start for start in starts] == ragged for starts in log.starts)
    fed = list(zip(log.starts, log.tokens, strict=True))
    for starts, tokens in [*fed[:2], fed[-1]]:
        own = [row[start : start + tokens.shape[1]] for row, start in zip(opened.target.text, starts, strict=True)]
        assert torch.equal(tokens, torch.stack(own))


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("sends_distributions", [True, False])
def test_a_transfer_follows_a_draft_step_and_takes_what_the_rule_reads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, settings: SamplingSettings, sends_distributions: bool
) -> None:
    opened, sent = bench(), []
    opened.sends_distributions = sends_distributions
    monkeypatch.setattr(Proposal, "on", lambda one, device, *, distributions: sent.append((one, device, distributions)))
    log = Log(opened, monkeypatch)
    assert opened.sample("transfer", 7, settings, log) == [1.0] * GAMMA_MAX
    assert log.lines == [("draft", 1, 6), "wait", "mark", "mark", "wait"] * GAMMA_MAX
    has_probs = sends_distributions and settings is SAMPLED
    assert [(device, distributions) for _, device, distributions in sent] == [(CPU, has_probs)] * GAMMA_MAX
    rows, shapes = len(opened.draft.text), [None if one.probs is None else tuple(one.probs.shape) for one, *_ in sent]
    assert [tuple(one.tokens.shape) for one, *_ in sent] == [(rows, gamma) for gamma in range(1, GAMMA_MAX + 1)]
    assert shapes == [(rows, gamma, 11) if has_probs else None for gamma in range(1, GAMMA_MAX + 1)]


@pytest.mark.parametrize("who", ["target", "draft"])
@pytest.mark.parametrize(
    ("chunk_tokens", "parts"),
    [(10_000, [10]), (12, [4, 4, 2]), (15, [5, 5]), (2, [1] * 10)],
    ids=["at once", "chunks of 4", "even chunks", "less than a row"],
)
def test_the_forwards_of_a_prefill(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, who: str, chunk_tokens: int, parts: list[int]
) -> None:
    opened = bench()
    monkeypatch.setattr(arms, "PREFILL_TOKENS", chunk_tokens)
    log = Log(opened, monkeypatch)
    assert opened.sample(f"prefill_{who}", 10, GREEDY, log) == [1.0]
    starts = [sum(parts[:index]) for index in range(len(parts))]
    forwards = [(who, part, start) for part, start in zip(parts, starts, strict=True)]
    assert log.lines == ["wait", "mark", *forwards, "mark", "wait"]


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_the_chain_feeds_what_the_draft_drew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, settings: SamplingSettings
) -> None:
    """Each token of the chain follows from one forward of the whole text so far, with the step's own uniforms."""
    opened = bench()
    log = Log(opened, monkeypatch)
    opened.sample("draft", 7, settings, log)
    for row in range(3):
        text = opened.draft.text[row : row + 1, : 8 - row]
        for step in range(1, GAMMA_MAX):
            seen = seen_tokens(text, torch.ones_like(text, dtype=torch.bool), opened.draft.model.vocabulary_rows)
            logits = fresh_logits(opened.draft.model, text)[:, -1]
            drawn = next_tokens(logits, settings, opened.uniforms[step - 1, row : row + 1], seen)
            assert log.tokens[1 + step][row].tolist() == drawn.tolist()
            text = torch.cat([text, drawn[:, None]], dim=1)


@pytest.mark.parametrize("settings", [SAMPLED, GREEDY])
def test_a_draft_whose_logits_are_no_numbers_is_timed_all_the_same(bench: Bench, settings: SamplingSettings) -> None:
    """What it would draft is nobody's here; why it has no acceptance is told where that is measured."""
    opened = bench()
    opened.draft.model.model.register_forward_hook(
        lambda _, __, output: output.__setitem__("logits", output["logits"] * torch.nan)
    )
    for arm in ("draft", "draft_catch_up", "prefill_draft"):
        assert opened.sample(arm, 7, settings, HostClock())[-1] > 0.0


@pytest.mark.parametrize("gamma", [1, 4])
def test_verifying_ends_with_every_row_penalised_by_its_own_history(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, gamma: int
) -> None:
    """Probabilities of γ + 1 rows; the history is the text up to each fed token, not up to the round's start."""
    opened = bench(vocabulary=40)
    calls = {name: Mock(side_effect=getattr(arms, name)) for name in ("processed_logits", "lowest_argmax")}
    for name, call in calls.items():
        monkeypatch.setattr(arms, name, call)
    made: list[Tensor] = []
    monkeypatch.setattr(arms, "probabilities", lambda *given: made.append(probabilities(*given)))
    for context, settings in ((7, SAMPLED), (7, GREEDY), (2, PENALISED)):
        opened.sample(f"verify:{gamma}", context, settings, HostClock())
    (probs,) = made
    assert probs.shape == (3, gamma + 1, 40)
    torch.testing.assert_close(probs.sum(-1), torch.ones(3, gamma + 1, dtype=torch.float64))
    whole = fresh_logits(opened.target.model, opened.target.text)
    expected = torch.stack([whole[row, 7 - row : 8 - row + gamma] for row in range(3)])
    (greedy,), _ = calls["lowest_argmax"].call_args_list[0]
    assert lowest_argmax(greedy).tolist() == expected.argmax(-1).tolist()
    (_, _, history), _ = calls["processed_logits"].call_args
    for row in range(3):
        for step in range(gamma + 1):
            before = opened.target.text[row, : [3, 2, 2][row] + step].tolist()
            assert set(history[row, step].nonzero()[:, 0].tolist()) == set(before)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_after_any_arm_both_caches_equal_a_fresh_prefill(bench: Bench, settings: SamplingSettings) -> None:
    opened, prefilled, length = bench(), bench(), LARGEST + GAMMA_MAX + 1
    for arm, context in [(arm, context) for context in (LARGEST, 3, 12, 1) for arm in ARMS]:
        marks = opened.sample(arm, context, settings, HostClock())
        assert 0 < marks[0] <= marks[-1]
        for ours, fresh in ((opened.target, prefilled.target), (opened.draft, prefilled.draft)):
            for found, expected in zip(ours.cache.layers, fresh.cache.layers, strict=True):
                for one, other in zip(found.both, expected.both, strict=True):
                    torch.testing.assert_close(one[:, :, :length], other[:, :, :length], rtol=0, atol=TOLERANCE)


def test_the_draft_is_never_fed_an_id_it_has_no_row_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = bench(draft_vocabulary=6)
    assert int(opened.target.text.max()) == 10
    assert torch.equal(opened.draft.text, torch.where(opened.target.text < 6, opened.target.text, 0))
    log = Log(opened, monkeypatch)
    for settings in (GREEDY, SAMPLED, PENALISED):
        for arm in ARMS:
            opened.sample(arm, 9, settings, log)
    forwards = [line for line in log.lines if not isinstance(line, str)]
    drafts = [tokens for line, tokens in zip(forwards, log.tokens, strict=True) if line[0] == "draft"]
    assert max(int(tokens.max()) for tokens in drafts) < 6


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
    lookups = TimedLookups(NgramConfig(), [row, row[::-1]], 4, torch.device("cpu"))
    for context in (9, 5, 9):
        for gamma in (4, 1, 2):
            lookups.round(context, gamma)()
    assert [committed_by_a_round(gamma) for gamma in (1, 2, 4)] == [1, 2, 3]
    # ten tokens are committed; the end of the text itself is never learnt
    at_nine = [(10, 6, 9, [4, 4], [3, 4, 1, 2]), (10, 8, 9, [1, 1], [3]), (10, 7, 9, [2, 2], [3, 4])]
    at_five = [(6, 2, 5, [4, 4], [3, 4, 1, 2]), (6, 4, 5, [1, 1], [3]), (6, 3, 5, [2, 2], [3, 4])]
    assert asked == [*at_nine, *at_five, *at_nine]


def test_the_shortest_context_has_a_round_too() -> None:
    lookups = TimedLookups(NgramConfig(), [[1, 1, 1]], 8, torch.device("cpu"))
    lookups.round(1, 8)()
    lookups.index(1)
    assert lookups._drafter.rows[0].ends == {(1,): 1}


def test_each_lookup_is_timed_alone_and_the_index_is_the_prefill(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = bench(has_draft=False)
    opened.sample("draft", 7, GREEDY, HostClock())  # the index is there from here on
    log = Log(opened, monkeypatch)
    marks = opened.sample("draft", 7, GREEDY, log)
    assert marks == [1.0] * GAMMA_MAX
    steps = [[("target", 1, 7), "wait", "mark", ("look", gamma, 7), "mark", "wait"] for gamma in range(1, 5)]
    assert log.lines == [line for step in steps for line in step]
    for arm, before, inside in (
        ("verify:3", [("look", 3, 7)], ("target", 4, 7)),
        ("prefill_draft", [], ("index", 8)),
        ("decode", [("target", 1, 6)], ("target", 1, 7)),
    ):
        log.lines.clear()
        opened.sample(arm, 7, GREEDY, log)
        assert log.lines == [*before, "wait", "mark", inside, "mark", "wait"]
    assert opened.capacities == {"capacity_target": 64, "capacity_draft": None}
