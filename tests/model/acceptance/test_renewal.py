from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specgauge.model.acceptance.renewal import RenewalResult, renewal, run_products
from specgauge.model.acceptance.renewal_lookups import renewal_by_start
from tests.model.speculation import AllTexts, Pair, Round, Texts, all_texts, enumerate_process, one_round, verified

# Token 0 is easy for the draft and likely to come again, token 2 is neither: runs of acceptance, as in real texts.
TARGET = np.array([[0.8, 0.15, 0.05], [0.4, 0.25, 0.35], [0.2, 0.1, 0.7]])
DRAFT = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.35, 0.45, 0.2]])
LIMIT, GAMMA_MAX, FIRST = 7, 3, 0
COSTS_S = np.array([1.0, 1.3, 1.85, 2.56])
WAYS = [("ratio", False), ("match", False), ("ratio", True), ("match", True)]


def make_pair(rule: str, greedy: bool, eos: int | None) -> Pair:
    return Pair(target=TARGET, draft=DRAFT, rule=rule, greedy_draft=greedy, eos=eos)


def run(texts: AllTexts, gamma: int, length_limits: int | None = LIMIT) -> RenewalResult:
    ends = (texts.lengths, texts.ended_by_eos)
    return renewal(texts.acceptance, texts.overlap, *ends, [gamma], GAMMA_MAX, COSTS_S, length_limits=length_limits)


@pytest.mark.parametrize("eos", [None, 1], ids=["length limit", "eos"])
@pytest.mark.parametrize(("rule", "greedy"), WAYS)
@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
def test_averages_over_the_targets_texts_are_those_of_the_enumerated_process(
    rule: str, greedy: bool, eos: int | None, gamma: int
) -> None:
    pair = make_pair(rule, greedy, eos)

    def rounds(text: tuple[int, ...], drafts: int) -> Iterator[Round]:
        return one_round(pair, text[-1] if text else FIRST, drafts)

    process, chances = enumerate_process(rounds, LIMIT, gamma, GAMMA_MAX, COSTS_S)
    texts = all_texts(pair, FIRST, LIMIT)
    assert texts.chances.sum() == pytest.approx(1, abs=1e-12)
    lossless = dict(zip(texts.texts, texts.chances, strict=True))
    assert chances == pytest.approx(lossless, abs=1e-12)
    result, weights = run(texts, gamma), texts.chances
    assert result.time_s is not None
    for name in ("rounds", "time_s", "tested", "accepted", "catch_ups", "tokens", "starts", "committed"):
        assert weights @ getattr(result, name) == pytest.approx(process[name], abs=1e-12), name
    assert weights @ result.tested_overlap == pytest.approx(process["accepted"], abs=1e-12)
    for j in range(1, GAMMA_MAX + 1):
        assert weights @ result.survival[:, :, j - 1] == pytest.approx(process[f"{j} accepted"], abs=1e-12)
    weighted = weigh(result, texts)
    assert weighted.tokens_per_round()[0] == pytest.approx(process["committed"] / process["starts"], abs=1e-12)


def weigh(result: RenewalResult, texts: AllTexts) -> RenewalResult:
    """The result as one text of expected sums."""
    names = ("rounds", "starts", "survival", "lost_bonus", "tokens")
    sums: dict[str, Any] = {name: np.tensordot(texts.chances, getattr(result, name), axes=1)[None] for name in names}
    return replace(result, **sums)


@pytest.mark.parametrize(
    ("rule", "greedy", "share"), [("ratio", False, 0.75), ("match", False, 0.45), ("ratio", True, 0.5)]
)
def test_the_overlap_in_the_last_factor_keeps_the_mean_and_shrinks_the_variance(
    rule: str, greedy: bool, share: float
) -> None:
    """Var of the linearised Ω, committed - Ω · starts, per text: with overlap against with acceptance alone."""
    texts = all_texts(make_pair(rule, greedy, None), FIRST, LIMIT)
    with_overlap, without = run(texts, 2), run(replace(texts, overlap=texts.acceptance), 2)
    omega = weigh(without, texts).tokens_per_round()
    assert weigh(with_overlap, texts).tokens_per_round() == pytest.approx(omega, abs=1e-12)
    variances = [
        (texts.chances @ (result.committed - omega * result.starts) ** 2)[0] for result in (with_overlap, without)
    ]
    assert variances[0] < share * variances[1]


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 7, 12])
def test_all_and_nothing_accepted(gamma: int, length: int) -> None:
    ones, zeros = np.ones((1, length)), np.zeros((1, length))
    full = renewal(ones, ones, [length], [False], [gamma], 5)
    assert full.rounds[0, 0] == -(-length // (gamma + 1))
    none = renewal(zeros, zeros, [length], [False], [gamma], 5)
    assert none.rounds[0, 0] == length
    assert none.accepted[0, 0] == 0
    if length >= 5:
        assert full.tokens_per_round()[0] == gamma + 1
        assert none.tokens_per_round()[0] == 1
    else:
        assert np.isnan(full.tokens_per_round()[0])


def test_an_accepted_eos_ends_the_text_without_a_bonus() -> None:
    ones = np.ones((1, 3))
    result = renewal(ones, ones, [3], [True], [2, 3, 5], 5)
    # γ = 2: two drafts and the EOS as bonus; γ = 3 and 5: the EOS is the third accepted draft. Always 3 tokens a round.
    assert result.rounds[0].tolist() == [1, 1, 1]
    assert result.starts[0].tolist() == [1, 1, 1]
    assert result.survival[0].sum(axis=1).tolist() == [2, 3, 3]
    assert result.lost_bonus[0].tolist() == [0, 1, 1]
    assert result.tokens_per_round().tolist() == [3, 3, 3]


def test_a_limit_shrinks_gamma_and_the_window() -> None:
    ones, costs = np.ones((2, 6)), [1.0, 2.0, 4.0, 8.0]
    # γ = 3 on 6 positions: rounds at 0 (3 drafts) and 4 (1 draft before a limit: two positions left).
    by_length = renewal(ones, ones, [6, 6], [False, True], [3], 3, costs)
    assert by_length.time_s is not None
    assert by_length.time_s[:, 0].tolist() == [8 + 2, 8 + 8]
    assert renewal(ones, ones, [6, 6], [False, True], [3], 3).time_s is None
    ones = np.ones((1, 6))
    near = renewal(ones, ones, [6], [True], [3], 3, costs, length_limits=7)
    assert near.time_s is not None
    assert near.time_s[0, 0] == 8 + 4  # 3 positions left at t = 4
    assert near.starts[0, 0] == 2
    assert renewal(ones, ones, [6], [True], [3], 3, length_limits=6).starts[0, 0] == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_texts_do_not_depend_on_their_neighbours_or_padding(seed: int, by_eos: bool) -> None:
    generator = np.random.default_rng(seed)
    a, o = generator.random((4, 9)), generator.random((4, 9))
    lengths = generator.integers(1, 10, 4)
    costs = generator.random(5)
    together = renewal(a, o, lengths, np.full(4, by_eos), [1, 2, 4], 4, costs)
    for row in range(4):
        size = lengths[row]
        own = slice(row, row + 1), slice(size)
        alone = renewal(a[own], o[own], [size], [by_eos], [1, 2, 4], 4, costs)
        for name in ("rounds", "starts", "survival", "lost_bonus", "tested", "catch_ups", "time_s"):
            np.testing.assert_allclose(getattr(alone, name)[0], getattr(together, name)[row], rtol=1e-12, atol=1e-12)


def test_chunks_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    a, o = generator.random((40, 15)), generator.random((40, 15))
    lengths, eos = generator.integers(1, 16, 40), generator.random(40) < 0.5
    costs = generator.random(5)
    whole = renewal(a, o, lengths, eos, [0, 2, 4], 4, costs)
    monkeypatch.setattr("specgauge.model.acceptance.renewal.CHUNK_CELLS", 400)
    parts = renewal(a, o, lengths, eos, [0, 2, 4], 4, costs)
    for name in ("rounds", "starts", "survival", "lost_bonus", "tested", "tested_overlap", "catch_ups", "time_s"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-13)


def test_sums_by_prompt_pool_repetitions() -> None:
    generator = np.random.default_rng(4)
    a = generator.random((4, 8))
    result = renewal(a, a, [8, 8, 8, 8], [False] * 4, [1, 2], 2)
    grouped = result.by_prompt([7, 3, 7, 3])
    np.testing.assert_allclose(
        grouped.rounds, [result.rounds[1] + result.rounds[3], result.rounds[0] + result.rounds[2]]
    )
    assert grouped.tokens.tolist() == [16, 16]
    assert grouped.time_s is None
    np.testing.assert_allclose(grouped.tokens_per_round(), result.tokens_per_round(), rtol=1e-14)
    np.testing.assert_allclose(grouped.survival_rates(), result.survival_rates(), rtol=1e-14)


def test_survival_rates_name_their_gamma_and_full_acceptance_is_the_last() -> None:
    a = np.full((1, 10), 0.5)
    result = renewal(a, a, [10], [False], [0, 1, 3], 3)
    rates = [[np.nan] * 3, [0.5, np.nan, np.nan], [0.5, 0.25, 0.125]]
    np.testing.assert_allclose(result.survival_rates(), rates, rtol=1e-14)
    np.testing.assert_allclose(result.full_acceptance[0] / result.starts[0], [1, 0.5, 0.125], rtol=1e-14)
    np.testing.assert_allclose(result.tokens_per_round(), [1, 1.5, 1.875], rtol=1e-14)


LOOKUP_LIMIT, DEPTH = 6, 3
LOOKUP_TARGET = np.array([[0.6, 0.3, 0.1], [0.25, 0.25, 0.5], [0.5, 0.1, 0.4]])
PROMPT = (1, 0, 2, 1, FIRST)


@settings(max_examples=30, deadline=None)
@given(
    acceptance=arrays(np.float64, (3, 7), elements=st.floats(0, 1)),
    overlap=arrays(np.float64, (3, 7), elements=st.floats(0, 1)),
    lengths=st.lists(st.integers(0, 7), min_size=3, max_size=3),
    eos=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_products_of_positions_give_what_the_plain_pass_gives(
    acceptance: np.ndarray, overlap: np.ndarray, lengths: list[int], eos: list[bool]
) -> None:
    gammas = [0, 1, 3, 4]
    inside = np.arange(7) < np.array(lengths)[:, None]
    products = run_products(np.where(inside, acceptance, 0.0), 4)
    ahead = np.zeros((3, 7, 4))
    for j in range(1, 5):
        ahead[:, : 8 - j, j - 1] = products[j - 1, :, : 8 - j] * np.where(inside, overlap, 0.0)[:, j - 1 :]
    survival = products[1:].transpose(1, 2, 0)
    plain = renewal(acceptance, overlap, lengths, eos, gammas, 4, length_limits=8)
    found = renewal_by_start(survival, ahead, np.full((3, 7), 4), lengths, eos, gammas, 4, length_limits=8)
    for column in fields(RenewalResult):
        if column.name not in ("rounds_by_drafts", "time_s"):
            expected, value = getattr(plain, column.name), getattr(found, column.name)
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-9, err_msg=column.name)
    assert found.rounds_by_drafts is not None
    for index, gamma in enumerate(gammas):
        assert found.rounds_by_drafts[:, index, gamma] == pytest.approx(plain.starts[:, index], abs=1e-12)
    assert found.rounds_by_drafts.sum(axis=2) == pytest.approx(plain.starts, abs=1e-12)


def lookup(text: tuple[int, ...]) -> tuple[int, ...]:
    """What followed the latest earlier place of the last three tokens, else of the last two; DEPTH tokens at most."""
    for size in (3, 2):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                return text[end : end + DEPTH]
    return ()


def enumerated(gamma: int, eos: int | None) -> tuple[dict[str, float], Texts]:
    """A certain draft is accepted with the target's probability of it, as by the match rule."""
    pair = Pair(target=LOOKUP_TARGET, draft=LOOKUP_TARGET, rule="match", greedy_draft=True, eos=eos)

    def rounds(text: tuple[int, ...], drafts: int) -> Iterator[Round]:
        return verified(pair, (PROMPT + text)[-1], lookup(PROMPT + text)[:drafts])

    return enumerate_process(rounds, LOOKUP_LIMIT, gamma, DEPTH, np.ones(DEPTH + 1))


def recorded(text: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A[t, j], Ã[t, j], offered) of one text."""
    survival, ahead = np.zeros((2, LOOKUP_LIMIT, DEPTH))
    offered = np.zeros(LOOKUP_LIMIT, dtype=np.int64)
    for t in range(len(text)):
        drafts, known = lookup(PROMPT + text[:t]), PROMPT + text
        offered[t] = len(drafts)
        for j, draft in enumerate(drafts[: len(text) - t]):
            ahead[t, j] = LOOKUP_TARGET[known[len(PROMPT) + t + j - 1]][draft]
            survival[t, j] = draft == text[t + j]
            if not survival[t, j]:
                break
    return survival, ahead, offered


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
@pytest.mark.parametrize("eos", [None, 2], ids=["length limit", "eos"])
def test_averages_over_texts_are_those_of_the_enumerated_lookup_decoder(gamma: int, eos: int | None) -> None:
    process, chances = enumerated(gamma, eos)
    assert chances == pytest.approx(enumerated(0, eos)[1], abs=1e-12)  # lossless
    texts = list(chances)
    survival, ahead, offered = (np.stack(part) for part in zip(*(recorded(text) for text in texts), strict=True))
    assert len(set(offered.ravel())) == DEPTH + 1, "rounds of every number of drafts occur"
    weights = np.array(list(chances.values()))
    lengths, ended = [len(text) for text in texts], [text[-1] == eos for text in texts]
    result = renewal_by_start(survival, ahead, offered, lengths, ended, [gamma], DEPTH, length_limits=LOOKUP_LIMIT)
    assert result.rounds_by_drafts is not None
    for name in ("rounds", "tested", "accepted", "starts", "committed", "catch_ups"):
        assert weights @ getattr(result, name) == pytest.approx(process[name], abs=1e-12), name
    assert weights @ result.tested_overlap == pytest.approx(process["accepted"], abs=1e-12)
    if gamma:
        assert weights @ result.full_acceptance == pytest.approx(process[f"{gamma} accepted"], abs=1e-12)
    for drafts in range(DEPTH + 1):
        assert weights @ result.rounds_by_drafts[:, 0, drafts] == pytest.approx(
            process[f"rounds of {drafts} drafts"], abs=1e-12
        )
    by_prompt = result.by_prompt(np.zeros(len(texts)))
    assert by_prompt.rounds_by_drafts is not None
    assert by_prompt.rounds_by_drafts[0] == pytest.approx(result.rounds_by_drafts.sum(axis=0))


TEXTS = {"lengths": [4, 2], "ended_by_eos": [False, True], "gammas": [1, 2], "gamma_max": 2}
HALVES, ZEROS, OFFERED = np.full((2, 4), 0.5), np.zeros((2, 4, 2)), [[0, 1, 2, 0]] * 2
POSITIONS: dict[str, Any] = {"acceptance": HALVES, "overlap": HALVES, **TEXTS}
STARTS: dict[str, Any] = {"survival": ZEROS, "ahead": ZEROS, "offered": OFFERED, **TEXTS}


@pytest.mark.parametrize(
    ("good", "change", "message"),
    [
        (POSITIONS, {"overlap": np.zeros((2, 3))}, r"overlap: expected \(2, 4\) as acceptance, got shape \(2, 3\)"),
        (POSITIONS, {"lengths": [4]}, r"lengths \(1,\)"),
        (POSITIONS, {"lengths": [5, 2]}, "expected .*got 5 for texts padded to 4"),
        (POSITIONS, {"gammas": [1, 3]}, "from 0 to gamma_max = 2"),
        (POSITIONS, {"gammas": []}, "from 0 to gamma_max = 2"),
        (POSITIONS, {"gamma_max": 0}, "gamma_max: expected .*got 0"),
        (POSITIONS, {"acceptance": np.full((2, 4), np.nan)}, "acceptance .* a finite number"),
        (POSITIONS, {"acceptance": np.full((2, 4), 1.1)}, "acceptance .* a probability"),
        (POSITIONS, {"costs_s": np.ones((3, 4))}, r"costs_s: expected 3 seconds, .* got shape \(3, 4\)"),
        (POSITIONS, {"length_limits": [4, 1]}, r"length_limits \(item 2\): expected .*got 1 for a text of 2 positions"),
        (STARTS, {"survival": ZEROS[:, :, :1]}, r"survival: .*got shapes survival \(2, 4, 1\) and ahead"),
        (STARTS, {"survival": ZEROS + np.arange(2)}, "expected .*got rates that rise with the number of drafts"),
        (STARTS, {"survival": ZEROS + 2}, "survival.*expected a probability"),
        (STARTS, {"offered": [[0, 3, 0, 0]] * 2}, "offered: expected .*got shape .*up to 3 drafts"),
        (STARTS, {"offered": [0, 1, 0, 0]}, "offered: expected .*got shape"),
    ],
)
def test_what_does_not_fit_is_one_line(good: dict[str, Any], change: dict[str, Any], message: str) -> None:
    work = renewal if good is POSITIONS else renewal_by_start
    work(**good)
    with pytest.raises(ValueError, match=message) as caught:
        work(**good | change)
    assert "\n" not in str(caught.value)
