"""Which arms a search for γ times next, from what it has timed: no more than can still change the answer.

    opening      decode, the draft chain (it gives every C(γ)), its catch-up, T_verify of the smallest γ
    scouting     γ that could win (`specgauge.model.search.race`), first where S would be largest on the line through
                 what was timed; one block tells whether it needs the least number of them
    neighbours   γ beside the best one, since T_verify has cliffs
    racing       the leader and its strongest challenger, and what else dominates the doubt between them, block by
                 block, until no challenger can be over 1 % better
    measuring    what dominates the doubt of the leader's S, until that is known to `relative_ci`
    checking     where a model expects the costs of a cell: its best γ and their neighbours; if they are met to
                 `relative_ci`, nothing else is timed

The doubt is that of timings, its 5 % shared out over all candidates; acceptance is taken as it was recorded, for
timings cannot make it better known. Its own doubt only keeps γ from being left out: those that another draw of prompts
could make best get the least number of blocks, so that the answer is weighed with them.

    step = next_step(settings, [question], blocks)          # step.arms: one block of each; none: the search has ended

What the costs of cells around make of a cell: arms as a search may expect them there.

Between measured batch sizes and contexts costs lie on lines (`specgauge.model.costs`); what would have to be taken from
beyond them, or from other γ, is not expected at all.

    expected_levels(cells, Point(batch_size=4, context=512), (1, 2, 3))      # None where no costs surround the point
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Literal

import numpy as np

from specgauge.model.arms import round_arms, verify_arm, verify_gammas
from specgauge.model.costs import RoundCosts, cost_table
from specgauge.model.provenance import Provenance
from specgauge.model.search.candidate_bounds import SearchQuestion, stand
from specgauge.model.search.levels import ArmLevels, Summaries, exact_levels, fit_levels
from specgauge.model.search.race import Race, SearchSettings, Verdict
from specgauge.model.settings import Point

DOMINATES = 0.25
"""An arm with this share of the largest contribution to a doubt is timed along with it."""
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
    questions: Sequence[SearchQuestion],
    blocks: Summaries,
    *,
    expected: ArmLevels | None = None,
    is_spent: bool = False,
) -> Step:
    """The next arms to take a block of, from the summaries of all blocks so far.

    expected: what a model makes of the cell's arms, those it knows; is_spent: whether only what an answer cannot do
    without is timed, the base arms and the leaders with their least number of blocks.
    Raises ValueError without a question.
    """
    if not questions:
        raise ValueError("questions: found none; allowed is at least one way of judging drafts to search for")
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


def races(settings: SearchSettings, questions: Iterable[SearchQuestion], levels: ArmLevels) -> list[Race]:
    """The contest of every question at the levels of a cell's arms."""
    places = [levels.index[verify_arm(gamma)] for gamma in verify_gammas(levels.arms)]
    is_rising = _is_rising(settings, levels, places)
    return [
        Race(
            settings=settings,
            standing=stand(
                levels, question, settings.gammas, batch_size=settings.batch_size, catches_up=settings.catches_up
            ),
            is_rising=is_rising,
            words=question.words,
        )
        for question in questions
    ]


def _is_rising(settings: SearchSettings, levels: ArmLevels, places: Sequence[int]) -> bool:
    """Whether T_verify, at places in the order of γ, falls nowhere with the intervals of both apart."""
    pairs = [(a, b) for at, a in enumerate(places) for b in places[at + 1 :]]
    if not pairs:
        return True
    contrasts = np.zeros((len(pairs), len(levels.arms)))
    contrasts[np.arange(len(pairs)), [a for a, _ in pairs]] = 1.0
    contrasts[np.arange(len(pairs)), [b for _, b in pairs]] = -1.0
    apart = np.sqrt(2.0) * NormalDist().inv_cdf(0.5 + settings.confidence / 2)
    return not bool((contrasts @ levels.log_s > apart * np.sqrt(levels.variance(contrasts))).any())


def _check_arms(settings: SearchSettings, questions: Iterable[SearchQuestion], expected: ArmLevels) -> list[str]:
    """T_verify of the γ that is expected to be best, and of its neighbours, under every question."""
    found: list[str] = []
    for race in races(settings, questions, expected):
        found += [verify_arm(settings.gammas[place - 1]) for place in _beside(race, race.best_gamma)]
    return list(dict.fromkeys(found))


def _beside(race: Race, place: int) -> list[int]:
    """A γ's place and those of its neighbours whose Ω is known; plain decoding is no neighbour."""
    return [at for at in (place - 1, place, place + 1) if 1 <= at < race.is_known.size and race.is_known[at]]


@dataclass(frozen=True, kw_only=True)
class _Search:
    """One look at what has been timed."""

    settings: SearchSettings
    questions: tuple[SearchQuestion, ...]
    blocks: Summaries

    @cached_property
    def levels(self) -> ArmLevels:
        """Of the arms of rounds that have a block."""
        wanted = round_arms(self.settings.gammas, catches_up=self.settings.catches_up)
        return fit_levels({arm: self.blocks[arm] for arm in wanted if self.blocks.get(arm)})

    @cached_property
    def races(self) -> list[Race]:
        """One for each question."""
        return races(self.settings, self.questions, self.levels)

    def count(self, arm: str) -> int:
        """Blocks of an arm."""
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
        decided = all(race.decided for race in self.races)
        return Step(arms=(), reason="decided" if decided else "undecided", verdicts=self.verdicts)

    def last_step(self) -> Step:
        """What an answer cannot do without, or the end."""
        leaders = [self._arm(race, race.leader) for race in self.races]
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
        for race, ahead in zip(self.races, races(settings, self.questions, expected), strict=True):
            both = race.standing.measured & ahead.standing.measured
            half = settings.interval_deviations * race.standing.standard_errors(0)[both]
            away = np.abs(race.standing.log_speedup - ahead.standing.log_speedup)[both]
            halves, off = max(halves, float(half.max())), max(off, float((away - half).max()))
            speedups = np.exp(ahead.standing.log_speedup[1:]).tolist()
            verdicts.append(replace(race.verdict(), expected=dict(zip(settings.gammas, speedups, strict=True))))
        if off > settings.relative_ci:
            return None
        if halves <= settings.relative_ci:
            return Step(arms=(), reason="checked", verdicts=tuple(verdicts))
        more = self._connected(arms)
        return Step(arms=more, reason="checking", verdicts=self.verdicts) if more else None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What every question's race stands at."""
        return tuple(race.verdict() for race in self.races)

    def _arm(self, race: Race, place: int) -> str:
        """The arm that tells a candidate from the others."""
        gamma = int(race.standing.candidates[place])
        return verify_arm(gamma) if gamma else "decode"

    def _short(self, arms: Iterable[str]) -> list[str]:
        """Those of the arms that have fewer than the least blocks."""
        return [arm for arm in dict.fromkeys(arms) if self.count(arm) < self.settings.min_blocks]

    def _due(self) -> list[str]:
        """Arms that have begun and need their least number of blocks: the base, and what could win."""
        contenders = [
            self._arm(race, int(place))
            for race in self.races
            for place in np.flatnonzero(race.could_win & race.standing.measured)
        ]
        return self._short([*self.settings.base_arms, *contenders])

    def _scouts(self) -> list[str]:
        """γ not timed yet that could win, by where S would be largest."""
        found: list[str] = []
        for race in self.races:
            unseen = np.flatnonzero(race.could_win & ~race.standing.measured)
            order = unseen[np.argsort(-race.standing.predicted[unseen], kind="stable")]
            found += [self._arm(race, int(place)) for place in order[:SCOUTS]]
        return found

    def _neighbours(self) -> list[str]:
        """The best γ of each question, and those beside it, that have fewer than the least blocks."""
        return self._short(self._arm(race, place) for race in self.races for place in _beside(race, race.best_gamma))

    def _rivals(self) -> list[str]:
        """What dominates the doubt between each leader and its strongest challenger."""
        return [arm for race in self.races if race.rival is not None for arm in self._dominating(race, race.rival)]

    def _imprecise(self) -> list[str]:
        """What dominates the doubt of S of a leader that is not known well enough."""
        return [arm for race in self.races if race.is_imprecise for arm in self._dominating(race, 0)]

    def _dominating(self, race: Race, other: int) -> list[str]:
        """The arms that make most of the doubt between the leader and another candidate, two at least."""
        contrast = race.standing.gradient[other] - race.standing.gradient[race.leader]
        share = contrast**2 * self.levels.block_variance / self.levels.blocks
        order = np.argsort(-share, kind="stable")
        picked = [place for place in order if share[place] >= DOMINATES * share[order[0]]]
        return [self.levels.arms[place] for place in (picked if len(picked) > 1 else order[:2])]

    def _connected(self, arms: Iterable[str]) -> tuple[str, ...]:
        """Those of the arms that may have another block, and with them one that others are held against.

        A block of one arm, or of arms never timed before, says nothing of their ratios to the rest. (Only where every
        such arm has all its blocks does one get more.)
        """
        found = [arm for arm in dict.fromkeys(arms) if self.count(arm) < self.settings.max_blocks]
        if found and (len(found) == 1 or not any(self.count(arm) for arm in found)):
            leader = self._arm(self.races[0], self.races[0].leader)
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
    catch_up = None
    if "draft_catch_up" in timed:
        catch_up = max(0.0, levels.seconds("draft_catch_up") - float(levels.marks_s("draft")[0]))
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
        t_draft_catch_up_s=None if catch_up is None else np.array(catch_up),
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
    deepest = table.costs(point.batch_size, point.context, range(1, max(gammas) + 1)).t_draft_total_s.tolist()
    arms = {"decode": [float(costs.t_decode_s)], "draft": deepest}
    if catches_up:
        assert costs.t_draft_catch_up_s is not None, "a table gives 0 where no cell has it"
        arms["draft_catch_up"] = [deepest[0] + float(costs.t_draft_catch_up_s)]
    for gamma, t_verify_s, is_inside in zip(gammas, costs.t_verify_s.tolist(), inside.tolist(), strict=True):
        if is_inside:
            arms[verify_arm(gamma)] = [t_verify_s]
    return exact_levels(arms)
