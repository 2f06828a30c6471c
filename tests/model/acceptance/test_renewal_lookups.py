"""Rounds whose drafts depend on where they start, against the plain pass and against an enumerated lookup decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specgauge.model.acceptance.renewal import RenewalResult, renewal, run_products
from specgauge.model.acceptance.renewal_lookups import renewal_by_start
from tests.model.speculation import Expectation, Pair, Round, enumerate_process, verified

LIMIT, DEPTH, FIRST = 6, 3, 0
TARGET = np.array([[0.6, 0.3, 0.1], [0.25, 0.25, 0.5], [0.5, 0.1, 0.4]])
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


def enumerated(gamma: int, eos: int | None) -> Expectation:
    """A certain draft is accepted with the target's probability of it, as by the match rule."""
    pair = Pair(target=TARGET, draft=TARGET, rule="match", greedy_draft=True, eos=eos)

    def rounds(text: tuple[int, ...], drafts: int) -> Iterator[Round]:
        return verified(pair, (PROMPT + text)[-1], lookup(PROMPT + text)[:drafts])

    return enumerate_process(rounds, LIMIT, gamma, DEPTH, np.ones(DEPTH + 1))


def recorded(text: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A[t, j], Ã[t, j], offered) of one text."""
    survival, ahead = np.zeros((2, LIMIT, DEPTH))
    offered = np.zeros(LIMIT, dtype=np.int64)
    for t in range(len(text)):
        drafts, known = lookup(PROMPT + text[:t]), PROMPT + text
        offered[t] = len(drafts)
        for j, draft in enumerate(drafts[: len(text) - t]):
            ahead[t, j] = TARGET[known[len(PROMPT) + t + j - 1]][draft]
            survival[t, j] = draft == text[t + j]
            if not survival[t, j]:
                break
    return survival, ahead, offered


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
@pytest.mark.parametrize("eos", [None, 2], ids=["length limit", "eos"])
def test_averages_over_texts_are_those_of_the_enumerated_lookup_decoder(gamma: int, eos: int | None) -> None:
    process = enumerated(gamma, eos)
    plain = enumerated(0, eos)
    assert process.texts == pytest.approx(plain.texts, abs=1e-12)  # lossless
    texts = list(process.texts)
    survival, ahead, offered = (np.stack(part) for part in zip(*(recorded(text) for text in texts), strict=True))
    assert len(set(offered.ravel())) == DEPTH + 1, "rounds of every number of drafts occur"
    weights = np.array([process.texts[text] for text in texts])
    lengths, ended = [len(text) for text in texts], [text[-1] == eos for text in texts]
    result = renewal_by_start(survival, ahead, offered, lengths, ended, [gamma], DEPTH, length_limits=LIMIT)
    assert result.rounds_by_drafts is not None
    for name in ("rounds", "tested", "accepted", "starts", "committed", "catch_ups"):
        assert weights @ getattr(result, name) == pytest.approx(getattr(process, name), abs=1e-12), name
    assert weights @ result.tested_overlap == pytest.approx(process.accepted, abs=1e-12)
    if gamma:
        assert weights @ result.full_acceptance == pytest.approx(process.survival[gamma], abs=1e-12)
    for drafts in range(DEPTH + 1):
        assert weights @ result.rounds_by_drafts[:, 0, drafts] == pytest.approx(process.by_drafts[drafts], abs=1e-12)
    by_prompt = result.by_prompt(np.zeros(len(texts)))
    assert by_prompt.rounds_by_drafts is not None
    assert by_prompt.rounds_by_drafts[0] == pytest.approx(result.rounds_by_drafts.sum(axis=0))


def test_texts_come_back_in_their_order_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    survival = np.cumprod(generator.random((5, 6, 2)) < 0.7, axis=2).astype(float)
    offered, sizes = generator.integers(0, 3, (5, 6)), ([4, 0, 6, 2, 6], [False] * 5)
    whole = renewal_by_start(survival, survival, offered, *sizes, [1, 2], 2)
    monkeypatch.setattr("specgauge.model.acceptance.renewal.CHUNK_CELLS", 1)
    cut = renewal_by_start(survival, survival, offered, *sizes, [1, 2], 2)
    for column in fields(RenewalResult):
        np.testing.assert_array_equal(getattr(cut, column.name), getattr(whole, column.name))
    assert whole.rounds[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"survival": np.zeros((1, 3, 1))},
            r"survival: expected .*got shapes survival \(1, 3, 1\) and ahead \(1, 3, 2\)",
        ),
        ({"survival": np.array([[[0.0, 1.0]] * 3])}, "expected .*got rates that rise with the number of drafts"),
        ({"survival": np.full((1, 3, 2), 2.0)}, "survival.*expected a probability"),
        ({"offered": [[0, 3, 0]]}, "offered: expected .*got shape .*up to 3 drafts"),
        ({"offered": [0, 1, 0]}, "offered: expected .*got shape"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], words: str) -> None:
    good: dict[str, object] = {
        "survival": np.zeros((1, 3, 2)),
        "ahead": np.zeros((1, 3, 2)),
        "offered": [[0, 1, 2]],
        "lengths": [3],
        "ended_by_eos": [False],
        "gammas": [1],
        "gamma_max": 2,
    }
    renewal_by_start(**good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        renewal_by_start(**{**good, **change})  # type: ignore[arg-type]
