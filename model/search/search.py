"""Which arms a search for γ times next, from what it has timed: no more than can still change the answer.

    opening      decode, the draft chain (it gives every C(γ)), its catch-up, T_verify of the smallest γ
    scouting     γ that could win (`specgauge.model.search.candidates`), first where S would be largest on the line
                 through what was timed; one block tells whether it needs the least number of them
    neighbours   γ beside the best one, since T_verify has cliffs
    racing       the leader and its strongest challenger, and what else dominates the uncertainty between them, block by
                 block, until no challenger can be over 1 % better
    measuring    what dominates the uncertainty of the leader's S, until that is known to `relative_ci`
    checking     where costs of cells around tell what to expect (`expected_levels`): the best γ there and its
                 neighbours; if they are met to `relative_ci`, nothing else is timed

The uncertainty is that of timings, its 5 % shared out over all candidates; acceptance is taken as it was recorded. γ
that another draw of prompts could make best get the least number of blocks, so that the answer is weighed with them.

    step = next_step(settings, [question], blocks)          # step.arms: one block of each; none: the search has ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from specgauge.model.arms import round_arms, verify_arm, verify_gammas
from specgauge.model.costs import RoundCosts, cost_table
from specgauge.model.search.candidates import (
    CandidateBounds,
    SearchObjective,
    SearchSettings,
    Verdict,
    bound_candidates,
    falls_nowhere,
)
from specgauge.model.search.levels import ArmLevels, Summaries, exact_levels, fit_levels
from specgauge.model.settings import Point, Provenance

DOMINATES = 0.25
"""An arm with this share of the largest contribution to an uncertainty is timed along with it."""
SCOUTS = 2
"""γ that a block takes up at most, for each question."""
SEARCH_NOTE = "search"
"""The key of a journal line's notes that tells the rule of the search it was taken under, or how the search ended."""

Reason = Literal[
    "opening", "scouting", "neighbours", "racing", "measuring", "checking", "decided", "undecided", "checked", "spent"
]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What to time next, or how the search ended."""

    arms: tuple[str, ...]
    """One block of each; empty when the search has ended."""
    reason: Reason
    verdicts: tuple[Verdict, ...] = ()
    """One for each question; empty in the opening."""

    def why_left_out(self, gamma: int) -> str:
        """Why a γ was not timed, or in too few blocks to be weighed: by the question under which it came closest."""
        return max(self.verdicts, key=lambda one: one.bounds[gamma] / one.speedup).why_left_out(gamma)


def next_step(
    settings: SearchSettings,
    questions: Sequence[SearchObjective],
    blocks: Summaries,
    *,
    expected: ArmLevels | None = None,
    is_spent: bool = False,
) -> Step:
    """The next arms to take a block of, from the summaries of all blocks so far.

    expected: what a model makes of the cell's arms, those it knows; is_spent: whether only what an answer cannot do
    without is timed, the base arms and the leaders with their least number of blocks.

    Raises:
        ValueError: there is no question.
    """
    if not questions:
        raise ValueError("questions: expected at least one setting to search for, got none")
    first = (*settings.base_arms, verify_arm(settings.gammas[0]))
    if expected is not None:
        first = (*settings.base_arms, *_check_arms(settings, questions, expected))
    missing = tuple(arm for arm in first if not blocks.get(arm))
    if missing:
        return Step(arms=missing, reason="opening")
    search = _Search(settings=settings, questions=tuple(questions), blocks=blocks)
    if is_spent:
        return search.last_step()
    if expected is not None:
        checked = search.check(expected, first)
        if checked is not None:
            return checked
    return search.step()


def _all_bounds(
    settings: SearchSettings, questions: Iterable[SearchObjective], levels: ArmLevels
) -> list[CandidateBounds]:
    """Of every question at the levels of a cell's arms."""
    places = [levels.index[verify_arm(gamma)] for gamma in verify_gammas(levels.arms)]
    is_rising = falls_nowhere(settings, levels, places)
    return [bound_candidates(settings, question, levels, is_rising=is_rising) for question in questions]


def _check_arms(settings: SearchSettings, questions: Iterable[SearchObjective], expected: ArmLevels) -> list[str]:
    """T_verify of the γ that is expected to be best, and of its neighbours, under every question."""
    found: list[str] = []
    for bounds in _all_bounds(settings, questions, expected):
        found += [verify_arm(settings.gammas[place - 1]) for place in _beside(bounds, bounds.best_gamma)]
    return list(dict.fromkeys(found))


def _beside(bounds: CandidateBounds, place: int) -> list[int]:
    """A γ's place and those of its neighbours whose Ω is known; plain decoding is no neighbour."""
    return [at for at in (place - 1, place, place + 1) if 1 <= at < bounds.has_tokens.size and bounds.has_tokens[at]]


@dataclass(frozen=True, kw_only=True)
class _Search:
    """What has been timed, and the rules."""

    settings: SearchSettings
    questions: tuple[SearchObjective, ...]
    blocks: Summaries

    @cached_property
    def levels(self) -> ArmLevels:
        """Of the arms of rounds that have a block."""
        own = self.settings
        wanted = round_arms(own.gammas, catches_up=own.catches_up, transfers=own.transfers)
        return fit_levels({arm: self.blocks[arm] for arm in wanted if self.blocks.get(arm)})

    @cached_property
    def bounds(self) -> list[CandidateBounds]:
        return _all_bounds(self.settings, self.questions, self.levels)

    def count(self, arm: str) -> int:
        return len(self.blocks.get(arm, ()))

    def step(self) -> Step:
        """The first of the rules that has something to time."""
        due = self._due()
        rules: tuple[tuple[Reason, Callable[[], list[str]]], ...] = (
            ("scouting", self._scouts),
            ("neighbours", self._neighbours),
            ("racing", self._rivals),
            ("measuring", self._imprecise),
        )
        for reason, rule in rules:
            wanted = rule()
            arms = self._connected([*due, *wanted]) if wanted or (due and reason == "measuring") else ()
            if arms:
                return Step(arms=arms, reason=reason, verdicts=self.verdicts)
        decided = all(bounds.decided for bounds in self.bounds)
        return Step(arms=(), reason="decided" if decided else "undecided", verdicts=self.verdicts)

    def last_step(self) -> Step:
        """What an answer cannot do without, or the end."""
        leaders = [self._arm(bounds, bounds.leader) for bounds in self.bounds]
        arms = self._connected(self._short([*self.settings.base_arms, *leaders]))
        return Step(arms=arms, reason="measuring" if arms else "spent", verdicts=self.verdicts)

    def check(self, expected: ArmLevels, arms: Sequence[str]) -> Step | None:
        """The next blocks of the arms that are checked, the end where they are as expected; None where they are not."""
        settings = self.settings
        short = self._short(arms)
        if short:
            return Step(arms=self._connected(short), reason="checking", verdicts=self.verdicts)
        halves, off = 0.0, 0.0
        verdicts = []
        for bounds, ahead in zip(self.bounds, _all_bounds(settings, self.questions, expected), strict=True):
            both = bounds.measured & ahead.measured
            half = settings.interval_deviations * bounds.standard_errors(0)[both]
            away = np.abs(bounds.log_speedup - ahead.log_speedup)[both]
            halves, off = max(halves, float(half.max())), max(off, float((away - half).max()))
            speedups = np.exp(ahead.log_speedup[1:]).tolist()
            verdicts.append(replace(bounds.verdict(), expected=dict(zip(settings.gammas, speedups, strict=True))))
        if off > settings.relative_ci:
            return None
        if halves <= settings.relative_ci:
            return Step(arms=(), reason="checked", verdicts=tuple(verdicts))
        more = self._connected(arms)
        return Step(arms=more, reason="checking", verdicts=self.verdicts) if more else None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(bounds.verdict() for bounds in self.bounds)

    def _arm(self, bounds: CandidateBounds, place: int) -> str:
        gamma = int(bounds.candidates[place])
        return verify_arm(gamma) if gamma else "decode"

    def _short(self, arms: Iterable[str]) -> list[str]:
        return [arm for arm in dict.fromkeys(arms) if self.count(arm) < self.settings.min_blocks]

    def _due(self) -> list[str]:
        """Arms that have begun and need their least number of blocks: the base, and what could win."""
        contenders = [
            self._arm(bounds, int(place))
            for bounds in self.bounds
            for place in np.flatnonzero(bounds.could_win & bounds.measured)
        ]
        return self._short([*self.settings.base_arms, *contenders])

    def _scouts(self) -> list[str]:
        """γ not timed yet that could win, by where S would be largest."""
        found: list[str] = []
        for bounds in self.bounds:
            unseen = np.flatnonzero(bounds.could_win & ~bounds.measured)
            order = unseen[np.argsort(-bounds.predicted[unseen], kind="stable")]
            found += [self._arm(bounds, int(place)) for place in order[:SCOUTS]]
        return found

    def _neighbours(self) -> list[str]:
        """The best γ of each question, and those beside it, that have fewer than the least blocks."""
        return self._short(
            self._arm(bounds, place) for bounds in self.bounds for place in _beside(bounds, bounds.best_gamma)
        )

    def _rivals(self) -> list[str]:
        raced = [(bounds, bounds.rival) for bounds in self.bounds if bounds.rival is not None]
        return [arm for bounds, rival in raced for arm in self._dominating(bounds, rival)]

    def _imprecise(self) -> list[str]:
        return [arm for bounds in self.bounds if bounds.is_imprecise for arm in self._dominating(bounds, 0)]

    def _dominating(self, bounds: CandidateBounds, other: int) -> list[str]:
        """The arms that make most of the uncertainty between the leader and another candidate, two at least."""
        contrast = bounds.gradient[other] - bounds.gradient[bounds.leader]
        share = contrast**2 * self.levels.block_variance / self.levels.blocks
        order = np.argsort(-share, kind="stable")
        picked = [place for place in order if share[place] >= DOMINATES * share[order[0]]]
        return [self.levels.arms[place] for place in (picked if len(picked) > 1 else order[:2])]

    def _connected(self, arms: Iterable[str]) -> tuple[str, ...]:
        """Those of the arms that may have another block, and with them one that others are held against.

        A block of one arm, or of arms never timed before, says nothing of their ratios to the rest.
        """
        found = [arm for arm in dict.fromkeys(arms) if self.count(arm) < self.settings.max_blocks]
        if found and (len(found) == 1 or not any(self.count(arm) for arm in found)):
            leader = self._arm(self.bounds[0], self.bounds[0].leader)
            others = [arm for arm in (leader, "decode", "draft") if arm not in found]
            found.append(min(others, key=lambda arm: self.count(arm) >= self.settings.max_blocks))
        return tuple(found)


def searched_costs(summaries: Summaries, gammas: Sequence[int], *, min_blocks: int) -> RoundCosts | None:
    """The levels of a cell that was searched, by every gamma of its draft chain; None without a round.

    T_verify is NaN of a gamma with fewer blocks than `min_blocks`.
    """
    timed = {arm: blocks for arm, blocks in summaries.items() if len(blocks) >= min_blocks}
    if not {"decode", "draft"} <= timed.keys():
        return None
    levels = fit_levels(timed)
    chain = levels.marks_s("draft")
    verify = np.full(chain.size, np.nan)
    for gamma in gammas:
        if verify_arm(gamma) in timed:
            verify[gamma - 1] = levels.seconds(verify_arm(gamma))
    return RoundCosts(
        gammas=np.arange(1, chain.size + 1),
        t_decode_s=np.array(levels.seconds("decode")),
        t_draft_total_s=chain,
        t_verify_s=verify,
        t_draft_catch_up_s=np.array(levels.catch_up_s()) if "draft_catch_up" in timed else None,
        t_transfer_s=levels.marks_s("transfer") if "transfer" in timed else None,
        provenance=np.full(chain.size, int(Provenance.MEASURED)),
    )


def expected_levels(
    cells: Mapping[Point, RoundCosts], point: Point, gammas: Sequence[int], *, catches_up: bool = True
) -> ArmLevels | None:
    """The arms of a cell that lies between `cells` of the same pair, mode and chain; None where it does not."""
    around = {other: costs for other, costs in cells.items() if other != point}
    if not any(np.isfinite(costs.t_verify_s).any() for costs in around.values()):
        return None
    table = cost_table("cells around", around)
    costs = table.costs(point.batch_size, point.context, list(gammas))
    inside = costs.provenance <= int(Provenance.INTERPOLATED)
    if not inside.any():
        return None
    chain = table.costs(point.batch_size, point.context, range(1, max(gammas) + 1))
    deepest = chain.t_draft_total_s.tolist()
    arms = {"decode": [float(costs.t_decode_s)], "draft": deepest}
    if chain.t_transfer_s is not None:
        arms["transfer"] = chain.t_transfer_s.tolist()
    if catches_up:
        assert costs.t_draft_catch_up_s is not None, "a table gives 0 where no cell has it"
        arms["draft_catch_up"] = [deepest[0] + float(costs.t_draft_catch_up_s)]
    for gamma, t_verify_s, is_inside in zip(gammas, costs.t_verify_s.tolist(), inside.tolist(), strict=True):
        if is_inside:
            arms[verify_arm(gamma)] = [t_verify_s]
    return exact_levels(arms)
