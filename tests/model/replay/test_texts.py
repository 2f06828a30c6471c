"""Signals off the path: rolled out where sampled, matched by confidence elsewhere, assumed without rollouts."""

from __future__ import annotations

import numpy as np
import pytest

from specgauge.model.replay.texts import ReplayTexts, Rollouts
from tests.model.replay_cases import made_texts


def rollouts(rows: list[tuple[int, int, int, int, float]]) -> Rollouts:
    """Rows of prompt, repetition, start, depth, top probability; entropy is ten times that."""
    prompt, repetition, start, depth, top = (np.array(column) for column in zip(*rows, strict=True))
    return Rollouts(prompt=prompt, repetition=repetition, start=start, depth=depth, top_prob=top, entropy_nats=10 * top)


def after(texts: ReplayTexts, text: int, position: int) -> list[float]:
    """The top probabilities that follow a rejection there."""
    return texts.chains.top_probs[texts.chains.chain_of[text, position]].tolist()  # type: ignore[no-any-return]


TOPS = [[0.1, 0.5, 0.9, 0.52], [0.2, 0.6, 0.85, 0.3]]
SAMPLED = rollouts([(0, 0, 2, 1, 0.31), (0, 0, 2, 2, 0.32), (0, 0, 0, 1, 0.21), (0, 0, 0, 2, 0.22), (0, 0, 0, 3, 0.23)])


def test_a_sampled_start_has_its_own_chain_whose_last_signals_stay() -> None:
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=SAMPLED)
    assert texts.chains.off_path == "measured"
    assert after(texts, 0, 0) == [0.21, 0.22, 0.23]
    assert after(texts, 0, 2) == [0.31, 0.32, 0.32]
    np.testing.assert_allclose(texts.chains.entropies_nats, 10 * texts.chains.top_probs)


def test_another_start_takes_the_nearest_in_confidence_first_of_its_own_text() -> None:
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=SAMPLED)
    assert after(texts, 0, 1)[0] == 0.21  # .5 is as near to .1 as to .9: the lower
    assert after(texts, 0, 3)[0] == 0.31  # .52 is nearer to .9
    assert [after(texts, 1, place)[0] for place in range(4)] == [0.21, 0.31, 0.31, 0.21]
    own = rollouts([(0, 0, 2, 1, 0.31), (1, 0, 0, 1, 0.77)])
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=own)
    assert [after(texts, 1, place)[0] for place in range(4)] == [0.77] * 4
    assert [after(texts, 0, place)[0] for place in range(4)] == [0.31] * 4


def test_rows_of_other_texts_places_and_depths_are_left_out() -> None:
    odd = [(7, 0, 1, 1, 0.9), (0, 3, 1, 1, 0.9), (0, 0, 40, 1, 0.9), (0, 0, 1, 9, 0.9), (0, 0, 3, 2, 0.9)]
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=rollouts([*odd, (0, 0, 2, 1, 0.31)]))
    assert texts.chains.top_probs.tolist() == [[0.31, 0.31, 0.31]]
    with pytest.raises(ValueError, match="rollouts: expected chains of these texts, got none"):
        made_texts(TOPS, TOPS, gamma_max=4, rollouts=rollouts(odd))


def test_without_rollouts_the_path_after_another_position_stands_in() -> None:
    texts = made_texts(TOPS, TOPS, gamma_max=3, lengths=[4, 2], seed=3)
    assert texts.chains.off_path == "assumed"
    inside = [TOPS[0][place : place + 2] for place in range(3)] + [[0.52, 0.52], [0.2, 0.6], [0.6, 0.6]]
    for text, length in ((0, 4), (1, 2)):
        for place in range(length):
            assert after(texts, text, place) in inside
    own = {(0, place): place for place in range(4)} | {(1, 0): 4, (1, 1): 5}
    assert all(int(texts.chains.chain_of[where]) != chain for where, chain in own.items())
    again = made_texts(TOPS, TOPS, gamma_max=3, lengths=[4, 2], seed=3)
    np.testing.assert_array_equal(texts.chains.chain_of, again.chains.chain_of)


def test_a_part_of_the_prompts_keeps_its_chains() -> None:
    texts = made_texts(TOPS, TOPS, gamma_max=4, rollouts=SAMPLED)
    part = texts.of_prompts([1])
    assert part.prompts.tolist() == [1]
    assert [after(part, 0, place) for place in range(4)] == [after(texts, 1, place) for place in range(4)]
    np.testing.assert_array_equal(part.acceptance, texts.acceptance[1:])


def test_signals_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="draft_top_prob"):
        made_texts([[0.5, 0.5]], [[0.5, 1.5]])
    with pytest.raises(ValueError, match=r"signals: expected .*got shapes \(1, 3\)"):
        made_texts([[0.5, 0.5]], [[0.5, 0.5, 0.5]])
    with pytest.raises(ValueError, match=r"replay: expected .*got no recorded position"):
        made_texts([[0.5, 0.5]], lengths=[0])
