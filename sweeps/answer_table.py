"""The answers of a run as a table of 80 columns, with how far to trust them and what to do next. No torch.

    print_answer(recommend(Run.open(path)))              # verdicts in colour on a terminal

    embedded, greedy              speed-up over plain               tokens/s  ms per
    batch     ctx  verdict     γ  predicted (90 %)  measured   plain    spec   round
        1     128  speculate   3  1.27 (1.14-1.44)      1.29      72      92    31.7
        4     128  conflict    1  1.17 (1.11-1.38)      0.98     165     193    37.0

γ is the one to use, or where it does not pay the one that the figures belong to. `conflict` is undecided because
prediction and measurement disagree. Tokens/s are of the whole batch: plain is B / T_decode, speculative that times S
from all evidence. Measured is of that γ, or where it was not decoded of the nearest one that was, with its own γ before
it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from specgauge.model.decision import DISAGREE
from specgauge.sweeps.recommend import Recommendations, is_optimistic
from specgauge.sweeps.text_table import count, printable

HIGH, MIDDLING, LOW = "high", "middling", "low"
CLOSE_ERROR, WIDE_ERROR = 0.08, 0.15
"""Mean relative error of predicted S under which trust can be high, and over which it is low."""
SHOWN_WARNINGS = 3
WEIGHTS = (
    *("altered", "impossible_figure"),
    *("generate_differs", "pair_refused", "out_of_time", "not_lossless", "texts_differ", "rounds_unexpected"),
    *("chain_inconsistent", "failed", "killed", "oom", "skipped", "unmeasured", "acceptance_missing"),
    *("prompt_ends", "no_chat_template", "end_tokens_differ", "rope_switch", "stray_window", "fields_unused"),
    *("prediction_contradicted", "busy_machine", "cost_error", "slow_baseline", "drift", "not_converged", "undecided"),
    "not_decoded",
)
"""Codes of warnings, the heaviest first; the others follow in the order they were found."""
DOUBTFUL = {
    *("busy_machine", "drift", "not_converged", "few_prompts", "cost_error", "slow_baseline", "texts_differ"),
    *("rounds_unexpected", "chain_inconsistent", "prediction_contradicted", "degenerate_text"),
    *("acceptance_extrapolated", "not_lossless", "altered", "impossible_figure"),
}
"""Warnings that leave no high trust."""

_VERDICTS = {"speculate": "speculate", "do not speculate": "don't", "undecided": "undecided"}
_HEADINGS = ("batch", "ctx", "verdict", "γ", "", "measured", "plain", "spec", "round")
_WIDTHS = (5, 6, 9, 2, 16, 8, 6, 6, 6)
_LEFT = {2, 4}
_TITLE_WIDTH = 30
_COLOURS = {"speculate": "green", "don't": "red", "undecided": "yellow", "conflict": "yellow", "unknown": "dim"}

Entry = Mapping[str, Any]


def print_answer(answers: Recommendations, *, every_warning: bool = False) -> None:
    """Print `answer_text`; on a terminal with its verdicts in colour."""
    text = answer_text(answers, every_warning=every_warning)
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console
    from rich.text import Text

    shown = Text(text)
    for word, colour in _COLOURS.items():
        shown.highlight_words([f" {word} "], style=colour)
    Console(soft_wrap=True).print(shown)


def answer_text(answers: Recommendations, *, every_warning: bool = False) -> str:
    """The tables by pair and sampling, then trust, the next step, and the heaviest warnings (or all of them)."""
    lines: list[str] = []
    for title, entries in groupby(answers.entries, title_text):
        lines += [*_table(title, list(entries), answers), ""]
    if answers.max_itl_s is not None:
        lines.append(f"Rounds of over {answers.max_itl_s * 1e3:g} ms were left out.")
    lines += _whole_requests(answers)
    level, reason = trust(answers)
    lines += [f"TRUST: {level.upper()}, {reason}", f"next: {next_step(answers)}"]
    return "\n".join([*lines, *_warnings(answers, every_warning)])


def _whole_requests(answers: Recommendations) -> Iterator[str]:
    """What whole requests gained at the γ of the answers, which S leaves out."""
    rows = [answers.nearest_measured(entry) for entry in answers.entries if _is_measured(entry, answers)]
    gains = [row["speedup_whole"] for row in rows if row is not None and row["speedup_whole"] is not None]
    if gains:
        yield (
            f"Whole requests, with prefills and in a batch the wait for its longest text: {min(gains):.2f} to "
            f"{max(gains):.2f} ×."
        )


def _table(title: str, entries: list[Entry], answers: Recommendations) -> Iterator[str]:
    interval = f"predicted ({100 * answers.confidence:g} %)"
    title = printable(title)
    if len(title) > _TITLE_WIDTH:
        yield title
        title = ""
    yield f"{title:<{_TITLE_WIDTH}}{'speed-up over plain':<28}{'tokens/s':>14}{'ms per':>8}"
    yield _line([*_HEADINGS[:4], interval, *_HEADINGS[5:]])
    reasons = []
    for entry in entries:
        yield _line(_cells(entry, answers))
        if entry["decision"] == "undecided" or entry["recommended_gamma"] is None:
            reasons.append(f"  batch {entry['batch_size']}, context {entry['context']}: {printable(entry['reason'])}")
    yield from reasons


def _line(cells: list[str]) -> str:
    padded = [
        text.ljust(width) if place in _LEFT else text.rjust(width)
        for place, (text, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _cells(entry: Entry, answers: Recommendations) -> list[str]:
    here = [str(entry["batch_size"]), str(entry["context"])]
    value = entry["speedup"]["value"]
    if value is None:
        return [*here, "unknown", *[""] * 6]
    predicted, low, high = (entry["speedup_predicted"][name] for name in ("value", "low", "high"))
    plain, speculative = tokens_per_second(entry)
    round_s = entry["t_round_s"]
    return [
        *here,
        verdict(entry),
        str(entry["recommended_gamma"] or "-"),
        f"{predicted:.2f}" + ("" if low is None else f" ({low:.2f}-{high:.2f})"),
        _measured(entry, answers),
        "-" if plain is None else f"{plain:.0f}",
        "-" if speculative is None else f"{speculative:.0f}",
        "-" if round_s is None else f"{1e3 * round_s:.1f}",
    ]


def _measured(entry: Entry, answers: Recommendations) -> str:
    row = answers.nearest_measured(entry)
    if row is None:
        return "-"
    other = "" if row["gamma"] == entry["recommended_gamma"] else f"γ{row['gamma']} "
    return f"{other}{row['speedup_measured']:.2f}"


def _is_measured(entry: Entry, answers: Recommendations) -> bool:
    """Whether the γ that the answer is about was decoded."""
    row = answers.nearest_measured(entry)
    return row is not None and row["gamma"] == (entry["recommended_gamma"] or row["gamma"])


def tokens_per_second(entry: Entry) -> tuple[float | None, float | None]:
    """Of the whole batch, plain and speculative; None where it is not known."""
    decode_s, value = entry["t_decode_s"], entry["speedup"]["value"]
    plain = entry["batch_size"] / decode_s if decode_s else None
    return plain, None if plain is None or value is None else plain * value


def verdict(entry: Entry) -> str:
    """One word: speculate, don't, undecided, conflict (undecided since two figures disagree), unknown."""
    if entry["speedup"]["value"] is None:
        return "unknown"
    return "conflict" if is_conflict(entry) else _VERDICTS[entry["decision"]]


def is_conflict(entry: Entry) -> bool:
    """Whether a decision is open because prediction and measurement disagree."""
    return entry["decision"] == "undecided" and str(entry["reason"]).startswith(DISAGREE)


def trust(answers: Recommendations) -> tuple[str, str]:
    """How far the answers can be relied on, and the figures that say so."""
    known = [entry for entry in answers.entries if entry["speedup"]["value"] is not None]
    if not known:
        return LOW, "no cell has both timings and acceptance"
    if any(one["code"] == "generate_differs" for one in answers.warnings):
        return LOW, "a model's texts are not those of transformers' generate"
    conflicts = sum(map(is_conflict, known))
    if conflicts:
        return LOW, f"prediction and measurement disagree in {conflicts} of {count(len(known), 'cell')}"
    measured = sum(_is_measured(entry, answers) for entry in known)
    errors = None if answers.summary is None else answers.summary.speedup
    optimistic = sum(map(is_optimistic, known))
    unknown = f"; the overhead of a round is not measured in {optimistic} of {len(known)}" if optimistic else ""
    if not measured or errors is None:
        return LOW, f"no speed-up was decoded end to end{unknown}"
    over = "" if errors.count == measured else f" over {errors.count} γ"
    found = f"predicted S {errors.text()}{over} in {measured} of {count(len(known), 'cell')}{unknown}"
    if errors.mean > WIDE_ERROR:
        return LOW, found
    doubts = sorted({str(one["code"]) for one in answers.warnings} & DOUBTFUL)
    if errors.mean > CLOSE_ERROR or measured < len(known) or optimistic or doubts:
        return MIDDLING, f"{found}{'; warned of ' + ', '.join(doubts).replace('_', ' ') if doubts else ''}"
    return HIGH, found


def next_step(answers: Recommendations) -> str:
    """What to do with these answers."""
    known = [entry for entry in answers.entries if entry["speedup"]["value"] is not None]
    codes = {str(one["code"]) for one in answers.warnings}
    if not known:
        if "pair_refused" in codes:
            return "put right what the warnings name; what is refused would be so again"
        return "see to what the warnings name, then run the same command again; it goes on where it stopped"
    if any(map(is_conflict, known)):
        return "measure again with --fresh, nothing beside it and more validate.prompts"
    if answers.max_itl_s is not None and all(entry["recommended_gamma"] is None for entry in known):
        return "decode plainly, or allow longer rounds (--max-itl)"
    if "not_lossless" in codes:
        return "set validate.acceptance: null to have the real speed-up decoded"
    if all(answers.nearest_measured(entry) is None for entry in known):
        if codes & {"not_decoded", "out_of_time"}:
            return "run the same command again; it goes on with decoding end to end"
        return "have the speed-ups decoded end to end: a new run (--fresh) with `validate: {gamma: recommended}`"
    if any(entry["decision"] == "undecided" for entry in known):
        return "a new run with more prompts, larger precision.max_blocks and max_seconds decides what is open"
    gammas = sorted({entry["gamma"] for entry in known if entry["gamma"]})
    if not gammas:
        return "decode plainly here; the report says how far from paying it is"
    is_everywhere = len(gammas) == 1 and all(entry["gamma"] for entry in known)
    return f"speculate with γ = {', '.join(map(str, gammas))}{'' if is_everywhere else ' where the table says so'}"


def _warnings(answers: Recommendations, every_warning: bool) -> Iterator[str]:
    ordered = sorted(
        answers.warnings, key=lambda one: WEIGHTS.index(one["code"]) if one["code"] in WEIGHTS else len(WEIGHTS)
    )
    shown = ordered if every_warning else ordered[:SHOWN_WARNINGS]
    for warning in shown:
        yield f"warning: {printable(warning['message'])} → {printable(warning['remedy'])}"
    if len(shown) < len(ordered):
        more = count(len(ordered) - len(shown), "more warning")
        yield f"{more}: in the report, or `specgauge recommend RUN --warnings`"


def title_text(entry: Entry) -> str:
    """Pair and sampling setting; what is the plain case is left out."""
    plain = {"mode": ("eager", "mode"), "draft_sampling": ("same", "draft"), "acceptance_rule": ("ratio", "rule")}
    extras = [f"{entry[name]} {what}" for name, (usual, what) in plain.items() if entry[name] != usual]
    return ", ".join([str(entry["pair"]), str(entry["sampling"]), *extras])
