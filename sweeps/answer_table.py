"""The answers of a run as a table of 80 columns, with how far to trust them and what to do next. No torch.

    print_answer(recommend(Run.open(path)))              # verdicts in colour on a terminal

    embedded, greedy          speed-up S over plain decoding      tokens/s   ms per
    batch    ctx  verdict    γ  S (90 %)         pred. measured  plain   spec  round
        1    128  speculate  3  1.28 (1.17-1.40)  1.27     1.29     72     92   31.7
        4    128  conflict   1  1.07 (0.95-1.20)  1.17  γ2 0.98    165    177   37.0

γ is the one to use, or where it does not pay the one that the figures belong to. S is from all evidence, with its
interval: the prediction and what was measured end to end stand beside it. Measured is of that γ, or where it was not
decoded of the nearest one that was, with its own γ before it. `conflict` is undecided because the two disagree.
Tokens/s are of the whole batch: plain is B / T_decode, speculative that times S.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from specgauge.configs.engines import AT_ZERO
from specgauge.model.decision import ratio_text
from specgauge.sweeps.analysis.answers import Entry, Recommendations, is_conflict, is_known
from specgauge.sweeps.analysis.served import zero_words
from specgauge.sweeps.analysis.timings import REFUSED
from specgauge.sweeps.analysis.validation import outcome
from specgauge.sweeps.side_by_side import side_by_side
from specgauge.sweeps.text_table import count, milliseconds, printable

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

_VERDICTS = {"speculate": "speculate", "do not speculate": "don't", "undecided": "undecided"}
_HEADINGS = ("batch", "ctx", "verdict", "γ", "S", "pred.", "measured", "plain", "spec", "round")
_WIDTHS = (5, 6, 9, 2, 16, 5, 8, 6, 6, 6)
_GAPS = ("", " ", "  ", " ", "  ", *[" "] * 5)
"""Before each column."""
_LEFT = {2, 4}
_TOGETHER = "S weighs prediction and measurement by how well each is known; tokens/s use S."
_TITLE_WIDTH = 26
_MOST_COLUMNS = 80
_COLOURS = {"speculate": "green", "don't": "red", "undecided": "yellow", "conflict": "yellow", "unknown": "dim"}


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
    shown, lines = _heaviest(answers, every_warning), list[str]()
    titles = list(dict.fromkeys(map(title_text, answers.entries)))
    for title, entries in groupby(answers.entries, title_text):
        lines += [*_table(title, list(entries), answers), *([""] if len(titles) > 1 else [])]
    reasons = list(_reasons(answers.entries, shown, has_titles=len(titles) > 1))
    lines += [*reasons, *([""] if reasons or len(titles) == 1 else [])]
    if any(answers.nearest_measured(entry) is not None for entry in answers.entries):
        lines.append(_TOGETHER)
    if answers.max_itl_s is not None:
        lines.append(f"Rounds of over {answers.max_itl_s * 1e3:g} ms were left out.")
    lines += [*_policies(answers), *_side_by_side(answers)]
    lines += [*_wrapped(answers.breaks_even), *_wrapped(answers.whole_requests)]
    trust = answers.trust
    lines += [f"TRUST: {trust.level.upper()}, {'; '.join(trust.reasons)}", f"next: {answers.next_step}"]
    return "\n".join([*lines, *_warnings(answers, shown)])


def _wrapped(words: str) -> list[str]:
    """Lines of 80 columns, none of which begins with a times sign."""
    return [line.replace("\u00a0", " ") for line in wrap(words.replace(" ×", "\u00a0×"), _MOST_COLUMNS)]


def _policies(answers: Recommendations) -> Iterator[str]:
    """Policies as they were run, against plain decoding and the best fixed γ; what was exported first."""
    known = [row for row in answers.policies if row["speedup_measured"] is not None]
    for title, own in groupby(known, title_text):
        yield f"policies as run: {printable(title)}"
        yield f"{'batch':>5}  {'ctx':>6}  {'policy':<14}  {'S':<17} {'plain':<9}  {'over best γ':<21}"
        rows: list[Mapping[str, Any]] = []
        for row in own:
            gain, over = _row_ends(row, "speedup_measured"), _row_ends(row, "over_best_fixed")
            plain, best = (
                outcome(row[f"{name}_low"], row[f"{name}_high"]) for name in ("speedup_measured", "over_best_fixed")
            )
            fixed = "-" if row["best_fixed_gamma"] is None else f"{over}: {best} against γ {row['best_fixed_gamma']}"
            name = printable(str(row["policy"]))
            yield f"{row['batch_size']:>5}  {row['context']:>6}  {name:<14}  {gain:<17} {plain:<9}  {fixed}"
            rows.append(row)
        words = zero_words(rows)
        yield from _wrapped(f"{AT_ZERO}: {words}." if words else "")
        yield ""


def _row_ends(row: Mapping[str, Any], name: str) -> str:
    return _with_ends({"value": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"]})


def _side_by_side(answers: Recommendations) -> Iterator[str]:
    """The pairs of one target at each point, the fastest first."""
    rankings = side_by_side(answers)
    for (target, sampling), own in groupby(rankings, lambda one: (one.target, one.sampling)):
        yield f"side by side: target {printable(target)}, {printable(sampling)}"
        yield f"{'batch':>5}  {'ctx':>6}  {'of these':<12}  γ  {'S':<17}{'Ω':>4}  tokens/s  pair"
        for ranking in own:
            where = f"{ranking.point.batch_size:>5}  {ranking.point.context:>6}"
            for one in ranking.alternatives:
                gain, omega = _with_ends(one.entry["speedup"]), one.entry.get("tokens_per_round")
                figures = f"{one.entry['recommended_gamma'] or '-':>2}  {gain:<17}{_short(omega, 1):>4}"
                line = f"{where}  {one.standing:<12} {figures}  {one.tokens_per_s:>8.0f}"
                name = printable(one.name)
                yield from [f"{line}  {name}"] if len(line) + len(name) < _MOST_COLUMNS - 1 else [line, f"  {name}"]
                where = " " * len(where)
        yield ""


def _with_ends(span: Mapping[str, float | None]) -> str:
    """`1.27 (1.14-1.44)`, or the value alone."""
    value, low, high = span["value"], span["low"], span["high"]
    ends = "" if low is None or high is None else f" ({ratio_text(low)}-{ratio_text(high)})"
    return f"{_short(value, 2)}{ends}"


def _short(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _table(title: str, entries: list[Entry], answers: Recommendations) -> Iterator[str]:
    """The cells of one setting; of one without any number a line."""
    speedup = f"S ({100 * answers.confidence:g} %)"
    title = printable(title)
    if not any(map(is_known, entries)):
        yield from wrap(f"{title}: no number in {count(len(entries), 'cell')}", _MOST_COLUMNS)
        return
    if len(title) > _TITLE_WIDTH:
        yield title
        title = ""
    yield f"{title:<{_TITLE_WIDTH}}  {'speed-up over plain decoding':<31}{'tokens/s':>14}{'ms per':>7}"
    yield _line([*_HEADINGS[:4], speedup, *_HEADINGS[5:]])
    yield from (_line(_cells(entry, answers)) for entry in entries)


def _reasons(entries: Sequence[Entry], shown: Sequence[Mapping[str, Any]], *, has_titles: bool) -> Iterator[str]:
    """Why cells are open or unknown, each reason once; what a pair was refused for, a warning that is shown tells."""
    refused = {str(one["message"]) for one in shown if one["code"] == "pair_refused"}
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry["reason"] and (entry["decision"] == "undecided" or entry["recommended_gamma"] is None):
            found.setdefault(str(entry["reason"]), []).append(entry)
    for reason, (first, *others) in found.items():
        if any(message.endswith(reason.removeprefix(f"{REFUSED}: ")) for message in refused):
            continue
        several = f"{len(others) + 1} cells, first " if others else ""
        title = f"{title_text(first)}, " if has_titles else ""
        why = f"{several}{title}batch {first['batch_size']}, context {first['context']}: {reason}"
        yield from wrap(printable(why), _MOST_COLUMNS, initial_indent="  ", subsequent_indent="    ")


def _line(cells: list[str]) -> str:
    padded = [
        gap + (text.ljust(width) if place in _LEFT else text.rjust(width))
        for place, (gap, text, width) in enumerate(zip(_GAPS, cells, _WIDTHS, strict=True))
    ]
    return "".join(padded).rstrip()


def _cells(entry: Entry, answers: Recommendations) -> list[str]:
    here = [str(entry["batch_size"]), str(entry["context"])]
    value = entry["speedup"]["value"]
    if value is None:
        return [*here, "unknown", *[""] * 7]
    plain, speculative = tokens_per_second(entry)
    round_s = entry["t_round_s"]
    return [
        *here,
        verdict(entry),
        str(entry["recommended_gamma"] or "-"),
        _with_ends(entry["speedup"]),
        _short(entry["speedup_predicted"]["value"], 2),
        _measured(entry, answers),
        _short(plain, 0),
        _short(speculative, 0),
        _short(milliseconds(round_s), 1),
    ]


def _measured(entry: Entry, answers: Recommendations) -> str:
    row = answers.nearest_measured(entry)
    if row is None:
        return "-"
    other = "" if row["gamma"] == entry["recommended_gamma"] else f"γ{row['gamma']} "
    return f"{other}{row['speedup_measured']:.2f}"


def tokens_per_second(entry: Entry) -> tuple[float | None, float | None]:
    """Of the whole batch, plain and speculative; None where it is not known."""
    decode_s, value = entry["t_decode_s"], entry["speedup"]["value"]
    plain = entry["batch_size"] / decode_s if decode_s else None
    return plain, None if plain is None or value is None else plain * value


def verdict(entry: Entry) -> str:
    """One word: speculate, don't, undecided, conflict (undecided since two figures disagree), unknown."""
    if not is_known(entry):
        return "unknown"
    return "conflict" if is_conflict(entry) else _VERDICTS[entry["decision"]]


def rank(code: str) -> int:
    """Where a warning of this code stands among others, from 0, the heaviest."""
    return WEIGHTS.index(code) if code in WEIGHTS else len(WEIGHTS)


def _heaviest(answers: Recommendations, every_warning: bool) -> list[Mapping[str, Any]]:
    ordered = sorted(answers.warnings, key=lambda one: rank(one["code"]))
    return ordered if every_warning else ordered[:SHOWN_WARNINGS]


def _warnings(answers: Recommendations, shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for warning in shown:
        yield f"warning: {printable(warning['message'])} → {printable(warning['remedy'])}"
    if len(shown) < len(answers.warnings):
        more = count(len(answers.warnings) - len(shown), "more warning")
        yield f"{more}: in the report, or `specgauge recommend RUN --warnings`"


def title_text(entry: Entry) -> str:
    """Pair and sampling setting; what is the plain case is left out."""
    plain = {"mode": ("eager", "mode"), "draft_sampling": ("same", "draft"), "acceptance_rule": ("ratio", "rule")}
    extras = [f"{entry[name]} {what}" for name, (usual, what) in plain.items() if entry[name] != usual]
    return ", ".join([str(entry["pair"]), str(entry["sampling"]), *extras])
