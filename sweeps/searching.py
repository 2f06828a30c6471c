"""What a search for γ is told of acceptance: the questions of each cell, one for every way of judging that it serves.

    questions = search_questions(Run.open(path), pair.name, cells)         # by the cell's id; none without acceptance

A greedy draft of a drawing setting is searched for at the draft times of the setting's own chain, which are a little
longer; its answer takes the right ones. ε stays out of the search, as it does of what is decoded end to end.
"""

from __future__ import annotations

from collections.abc import Iterable

from specgauge.model.search_standing import SearchQuestion
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.rounds import JudgedRounds
from specgauge.sweeps.rundir import Run
from specgauge.sweeps.ways import Way, ways

REPLICATES = 200
"""Draws of prompts that say which γ others could make best."""


def search_questions(run: Run, pair: str, cells: Iterable[Cell]) -> dict[str, list[SearchQuestion]]:
    """The questions of every cell of a pair for which acceptance is recorded, by the cell's id.

    Raises:
        ValueError: an acceptance file is damaged.
    """
    found = list(ways(run, {}, pairs=[pair]))
    questions: dict[str, list[SearchQuestion]] = {}
    for cell in cells:
        own = [(way, way.rounds_at(cell.context)) for way in found if way.chain == cell.chain]
        known = [(way, rounds) for way, rounds in own if rounds is not None and rounds.known.any()]
        if known:
            questions[cell.id] = [_question(way, rounds, several=len(known) > 1) for way, rounds in known]
    return questions


def _question(way: Way, rounds: JudgedRounds, *, several: bool) -> SearchQuestion:
    words = [f"sampling {way.sampling}", f"{way.draft_sampling} draft", f"{way.acceptance_rule} rule"]
    return SearchQuestion(
        tokens_per_round=rounds.tokens_per_round[: 1 + REPLICATES],
        full_acceptance=rounds.full_acceptance[0],
        draft_shares=None if rounds.draft_shares is None else rounds.draft_shares[0],
        words=", ".join(words) if several else "",
    )
