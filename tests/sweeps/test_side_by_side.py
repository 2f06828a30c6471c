from __future__ import annotations

from typing import Any

import pytest

from specgauge.configs.canonical import strict_loads
from specgauge.sweeps.analysis.answers import Recommendations
from specgauge.sweeps.answer_table import answer_text
from specgauge.sweeps.recommend import recommendations_json
from specgauge.sweeps.side_by_side import Ranking, side_by_side
from tests.sweeps import made

PAIRS = {
    pair.name: pair
    for pair in made.config(
        pairs=[
            {"name": "small", "target": "embedded", "draft": "embedded"},
            {"name": "early", "target": {"model": "embedded", "dtype": "float32"}, "draft": {"layers": 2}},
            {"name": "lookup", "target": "embedded", "draft": "ngram"},
            {"name": "alien", "target": "org/other", "draft": "ngram"},
            {"name": "threaded", "target": "embedded", "draft": "embedded", "threads": 1},
        ]
    ).pairs
}
PAIRS["far"] = PAIRS["small"].model_copy(update={"name": "far", "accelerator_type": "H100"})
PAYS, NOT, OPEN = "speculate", "do not speculate", "undecided"


def entry(pair: str, value: float | None, low: float | None, high: float | None, **changes: Any) -> dict[str, Any]:
    """An answer at batch 2, context 64, where a plain step takes 20 ms: 100 tokens a second."""
    plain: dict[str, Any] = {
        "pair": pair, "mode": "eager", "sampling": "greedy", "draft_sampling": "same", "acceptance_rule": "ratio",
        "batch_size": 2, "context": 64, "decision": PAYS, "gamma": 3, "best_gamma": 3, "recommended_gamma": 3,
        "speedup": {"value": value, "low": low, "high": high}, "tokens_per_round": 2.5, "t_decode_s": 0.02,
        "t_round_s": 0.03, "reason": "", "t_overhead_s": 0.001,
    }  # fmt: skip
    return plain | {"speedup_predicted": plain["speedup"]} | changes


def answers(*entries: dict[str, Any]) -> Recommendations:
    return Recommendations(entries=entries, confidence=0.9, warnings=(), pairs=PAIRS)


def ranking(*entries: dict[str, Any]) -> Ranking:
    (found,) = side_by_side(answers(*entries))
    return found


def standings(*entries: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.name, one.standing) for one in ranking(*entries).alternatives]


SMALL = entry("small", 1.6, 1.5, 1.7)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([entry("early", 1.3, 1.2, 1.4)], [("small", "best"), ("early", "slower")]),
        ([entry("early", 1.7, 1.45, 1.9)], [("early", "undecided"), ("small", "undecided")]),
        ([entry("early", 1.4, 1.3, 1.5)], [("small", "undecided"), ("early", "undecided")]),  # the ends touch
        ([entry("early", 1.4, None, None)], [("small", "best"), ("early", "slower")]),
        ([entry("early", 0.9, 0.8, 0.95, decision=NOT)], [("small", "best"), ("early", "does not pay")]),
        ([entry("early", 1.3, 0.9, 1.4, decision=OPEN)], [("small", "best"), ("early", "slower")]),
        ([entry("early", 1.8, 1.75, 1.9, decision=OPEN)], [("early", "undecided"), ("small", "slower")]),
        (
            [entry("early", 1.3, 1.2, 1.55), entry("lookup", 1.1, 1.0, 1.2)],
            [("small", "undecided"), ("early", "undecided"), ("lookup", "slower")],
        ),
        # the same S of a plain loop twice as fast
        (
            [entry("early", 1.6, 1.5, 1.7, mode="compile", t_decode_s=0.01)],
            [("early", "best"), ("small", "slower")],
        ),
        # plain decoding of the other mode, which does not pay, is faster still
        (
            [entry("early", 0.9, 0.8, 0.95, decision=NOT, mode="compile", t_decode_s=0.01)],
            [("early", "does not pay"), ("small", "undecided")],
        ),
        (
            [entry("small", 1.3, 1.2, 1.4, acceptance_rule="match", draft_sampling="greedy")],
            [("small", "best"), ("small, greedy draft, match rule", "slower")],
        ),
    ],
)
def test_the_best_is_told_where_it_is_clear(others: list[dict[str, Any]], expected: list[tuple[str, str]]) -> None:
    assert standings(SMALL, *others) == expected
    best = ranking(SMALL, *others).best
    assert (None if best is None else (best.name, "best")) == next((one for one in expected if one[1] == "best"), None)


def test_where_nothing_pays_nothing_is_best() -> None:
    nothing = [entry("small", 0.9, 0.8, 0.95, decision=NOT), entry("early", 0.7, 0.6, 0.8, decision=NOT)]
    assert {standing for _, standing in standings(*nothing)} == {"does not pay"}


def test_rates_are_those_of_one_plain_step() -> None:
    """Median of .02 and .021 s for a batch of 2: 97.56 tokens a second plain."""
    first, second = ranking(SMALL, entry("lookup", 1.3, 1.2, 1.4, t_decode_s=0.021)).alternatives
    assert (first.tokens_per_s, first.low, first.high) == pytest.approx((1.6 / 0.01025, 1.5 / 0.01025, 1.7 / 0.01025))
    assert second.tokens_per_s == pytest.approx(1.3 / 0.01025)
    assert (first.draft, second.draft) == ("embedded", "lookups of 3 down to 1 tokens")


@pytest.mark.parametrize("pair", ["early", "far", "threaded"])
def test_what_runs_elsewhere_or_otherwise_has_a_plain_step_of_its_own(pair: str) -> None:
    """Another type of weights, device or number of threads: 100 tokens a second plain of one, 50 of the other."""
    first, second = ranking(SMALL, entry(pair, 1.3, 1.2, 1.4, t_decode_s=0.04)).alternatives
    assert (first.tokens_per_s, second.tokens_per_s) == pytest.approx((160, 65))


def test_only_answers_about_one_target_at_one_point_meet() -> None:
    apart = [
        entry("alien", 1.3, 1.2, 1.4),
        entry("early", 1.3, 1.2, 1.4, context=128),
        entry("early", 1.3, 1.2, 1.4, sampling="t1"),
        entry("early", None, None, None),
    ]
    assert side_by_side(answers(SMALL, *apart)) == []


def test_terminal_and_json_tell_it() -> None:
    long = entry("early", 1.3, 1.2, 1.4, acceptance_rule="match", draft_sampling="greedy")
    found = answers(SMALL, entry("lookup", 1.1, 1.0, 1.2), long)
    text = answer_text(found).partition("side by side: target embedded, greedy\n")[2].partition("\n\n")[0]
    assert text.splitlines() == [
        "batch     ctx  of these      γ  S                   Ω  tokens/s  pair",
        "    2      64  best          3  1.60 (1.50-1.70)  2.5       160  small",
        "               slower        3  1.30 (1.20-1.40)  2.5       130",
        "  early, greedy draft, match rule",
        "               slower        3  1.10 (1.00-1.20)  2.5       110  lookup",
    ]
    (told,) = strict_loads(recommendations_json(found))["side_by_side"]
    assert {name: told[name] for name in ("target", "sampling", "batch_size", "context", "best")} == {
        "target": "embedded", "sampling": "greedy", "batch_size": 2, "context": 64, "best": "small",
    }  # fmt: skip
    assert [(one["pair"], one["standing"]) for one in told["alternatives"]] == [
        ("small", "best"), ("early", "slower"), ("lookup", "slower"),
    ]  # fmt: skip
    assert told["alternatives"][0]["tokens_per_s"] == pytest.approx({"value": 160, "low": 150, "high": 170})
