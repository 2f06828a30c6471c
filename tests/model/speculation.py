"""The speculative process over a Markov pair, enumerated branch by branch: what the renewal pass must agree with.

Independent of the code under test: it follows the decoder (propose γ drafts, test them in order, replace at the first
rejection, else a bonus) and sums probabilities over all branches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Rows are distributions of the next token given the last one."""

    target: Array
    draft: Array
    rule: str
    greedy_draft: bool
    eos: int | None = None

    def proposal(self, last: int) -> Array:
        if not self.greedy_draft:
            return np.asarray(self.draft[last])
        return np.asarray(np.eye(self.draft.shape[1])[self.draft[last].argmax()])


@dataclass(frozen=True, kw_only=True)
class Round:
    """One branch of a round."""

    chance: float
    drafted: int
    emitted: tuple[int, ...]
    accepted: int
    ended: bool


Rounds = Callable[[tuple[int, ...], int], Iterator[Round]]
"""Every branch of the round after a text, of at most so many drafts."""


Texts = dict[tuple[int, ...], float]
"""Each text's probability."""


def one_round(pair: Pair, last: int, gamma: int) -> Iterator[Round]:
    """Every branch of one round: the drafts first, then their tests, then the replacement or the bonus."""
    vocabulary = range(pair.target.shape[1])
    for drafts in product(vocabulary, repeat=gamma):
        proposed, state = 1.0, last
        for token in drafts:
            proposed *= pair.proposal(state)[token]
            state = token
        if proposed > 0:
            yield from verified(pair, last, drafts, proposed)


def verified(
    pair: Pair, last: int, drafts: tuple[int, ...], chance: float = 1.0, accepted: tuple[int, ...] = ()
) -> Iterator[Round]:
    """Every branch of verifying the drafts that follow those accepted."""
    target, kept = pair.target[last], len(accepted)

    def branch(mass: float, *emitted: int) -> Round:
        ended = bool(emitted[-1] == pair.eos)
        return Round(chance=mass, drafted=len(drafts), emitted=emitted, accepted=kept, ended=ended)

    if accepted and accepted[-1] == pair.eos:
        yield branch(chance, *accepted)
        return
    if kept == len(drafts):
        for bonus in np.flatnonzero(target):
            yield branch(chance * target[bonus], *accepted, int(bonus))
        return
    token = drafts[kept]
    if pair.rule == "match":
        passes, replacements = target[token], np.where(np.arange(target.size) == token, 0.0, target)
    else:
        proposal = pair.proposal(last)
        passes = min(1.0, target[token] / proposal[token])
        residual = np.maximum(target - proposal, 0.0)
        replacements = (1 - passes) * residual / residual.sum() if residual.sum() > 0 else np.zeros_like(target)
    if passes > 0:
        yield from verified(pair, token, drafts, chance * passes, (*accepted, token))
    for other in np.flatnonzero(replacements):
        yield branch(chance * replacements[other], *accepted, int(other))


def enumerate_process(
    rounds: Rounds, limit: int, gamma: int, gamma_max: int, costs_s: Array
) -> tuple[dict[str, float], Texts]:
    """Expectations over all texts of at most `limit` tokens, and the distribution of the texts themselves.

    `starts`, `committed`, `j accepted` and `rounds of j drafts` are of rounds that start with gamma_max positions left;
    there the round is followed with all γ drafts, also where the decoder itself would shrink the last one.
    """
    found, texts = defaultdict[str, float](float), defaultdict[tuple[int, ...], float](float)
    states: dict[tuple[tuple[int, ...], bool], float] = {((), False): 1.0}
    while states:
        text, caught_up = min(states, key=lambda state: len(state[0]))
        chance = states.pop((text, caught_up))
        left = limit - len(text)
        branches = list(rounds(text, min(gamma, left - 1)))
        drafts = branches[0].drafted
        found["rounds"] += chance
        found["time_s"] += chance * float(costs_s[drafts])
        found["catch_ups"] += chance * (caught_up and drafts > 0)
        if left >= gamma_max:
            found["starts"] += chance
            for branch in rounds(text, gamma):
                found[f"rounds of {branch.drafted} drafts"] += chance * branch.chance
                found["committed"] += chance * branch.chance * len(branch.emitted)
                for j in range(1, branch.accepted + 1):
                    found[f"{j} accepted"] += chance * branch.chance
        for branch in branches:
            weight, after = chance * branch.chance, text + branch.emitted
            rejected = branch.accepted < min(drafts, len(branch.emitted))
            found["accepted"] += weight * branch.accepted
            found["tested"] += weight * (branch.accepted + rejected)
            found["tokens"] += weight * len(branch.emitted)
            if branch.ended or len(after) == limit:
                texts[after] += weight
            else:
                state = (after, drafts > 0 and branch.accepted == drafts)
                states[state] = states.get(state, 0.0) + weight
    return found, texts


@dataclass(frozen=True, kw_only=True)
class AllTexts:
    """Every text of at most `limit` tokens, with its chance under the target and its columns."""

    chances: Array
    acceptance: Array
    overlap: Array
    lengths: NDArray[np.int64]
    ended_by_eos: NDArray[np.bool_]
    texts: tuple[tuple[int, ...], ...]


def all_texts(pair: Pair, first: int, limit: int) -> AllTexts:
    """All texts the target can write, with a_t and o_t of the pair's rule and draft at every position."""
    _, chances = enumerate_process(lambda text, _: one_round(pair, (first, *text)[-1], 0), limit, 0, 1, np.ones(1))
    texts = tuple(chances)
    acceptance, overlap = np.zeros((len(texts), limit)), np.zeros((len(texts), limit))
    for row, text in enumerate(texts):
        for t, token in enumerate(text):
            last = text[t - 1] if t else first
            target, proposal = pair.target[last], pair.proposal(last)
            if pair.rule == "match":
                acceptance[row, t], overlap[row, t] = proposal[token], proposal @ target
            else:
                acceptance[row, t] = min(1.0, proposal[token] / target[token])
                overlap[row, t] = np.minimum(proposal, target).sum()
    return AllTexts(
        chances=np.array(list(chances.values())),
        acceptance=acceptance,
        overlap=overlap,
        lengths=np.array([len(text) for text in texts]),
        ended_by_eos=np.array([text[-1] == pair.eos for text in texts]),
        texts=texts,
    )
