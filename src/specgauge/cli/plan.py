"""`specgauge plan`: the document of a plan as text, 80 columns wide, and what was typed as the parts of a plan.

The map comes first, then what it means for each context in sentences, what bounds each part, and last what is unsure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from specgauge.cli.parsing import GivenAcceptance, RecordedProfile, parse_acceptance, parse_gammas
from specgauge.sweeps.foretell.acceptance_lengths import read_acceptance_lengths
from specgauge.sweeps.foretell.document import Plan
from specgauge.sweeps.foretell.machine import PlannedPair
from specgauge.sweeps.foretell.words import PART_WORDS, acceptance_words, context_sentence, span_words, trust_words
from specgauge.sweeps.text_table import text_table

WIDTH = 80
_NARROWEST = len("context 1  ")


def typed_acceptance(
    given: Mapping[str, Any], gamma: str | None, *, lengths: Path | None = None, table: str | None = None
) -> GivenAcceptance:
    """Acceptance from a rate, rates or a file of acceptance lengths, whichever is given.

    Raises:
        ValueError: none or several are given, the one cannot be read, or it does not reach a gamma that is asked.
    """
    if lengths is None:
        found = parse_acceptance(given, gamma)
        known, beyond = found.profile.gamma_drafted, max(found.gammas)
        if found.profile.source != "alpha" and beyond > known:
            raise ValueError(
                f"--rates: expected a rate for each of {beyond} drafts, as --gamma goes to {beyond}, got {known}; give "
                f"the others, or end --gamma at {known} (--gamma 1:{known})"
            )
        return found
    typed = [name for name, value in given.items() if value is not None]
    if typed:
        raise ValueError(f"acceptance: expected --acceptance-lengths or --{typed[0]}, got both")
    tabled = read_acceptance_lengths(lengths, table)
    profile, gammas = tabled.profile(None if gamma is None else parse_gammas(gamma, "--gamma"))
    return GivenAcceptance(profile=profile, gammas=gammas, inputs={"file": tabled.path, "table": tabled.name})


def plan_of(
    pair: PlannedPair,
    given: GivenAcceptance,
    *,
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    max_itl_s: float | None = None,
) -> Plan:
    """A plan from acceptance as it was typed, or as a run recorded it, replicates and all."""
    profile = given.profile
    acceptance = profile.recorded.only(given.gammas) if isinstance(profile, RecordedProfile) else None
    return Plan(
        pair=pair,
        acceptance=profile.at(given.gammas) if acceptance is None else acceptance,
        given={"source": profile.source, "gamma_drafted": profile.gamma_drafted, **given.inputs},
        batch_sizes=batch_sizes,
        contexts=contexts,
        max_itl_s=max_itl_s,
    )


def plan_text(document: Mapping[str, Any]) -> str:
    """The text of the document of `plan_document`."""
    lines = [*_machine(document), ""]
    lines += _map(document)
    lines += [line for one in document["contexts"] for line in _wrapped(context_sentence(one, document), hanging=True)]
    lines += ["", *_bounds(document), ""]
    lines += [line for words in trust_words(document) for line in _wrapped(words)]
    return "\n".join(lines)


def _wrapped(words: str, *, hanging: bool = False) -> list[str]:
    return textwrap.wrap(words, WIDTH, subsequent_indent="  " if hanging else "", break_on_hyphens=False)


def _machine(document: Mapping[str, Any]) -> Iterator[str]:
    card = document["hardware"]
    bandwidth, peak = card["memory_bandwidth_bytes_per_s"], card["peak_flops_per_s"]
    devices = f"{card['tensor_parallel']} x {card['name']}" if card["tensor_parallel"] > 1 else card["name"]
    yield f"{devices}: {bandwidth / 1e9:,.0f} GB/s, {peak / 1e12:,.4g} TFLOP/s in {card['compute_dtype']} a device"
    for role in ("target", "draft"):
        model = document[role]
        if model["name"] is None:
            yield f"{role} {model['kind']}: lookups, taken to cost nothing"
            continue
        copied = ", a copy on every device" if 1 == model["tensor_parallel"] < card["tensor_parallel"] else ""
        words = (
            f"{role} {model['name']}: {model['parameters'] / 1e9:.3f} G parameters in {model['weights']}, "
            f"{model['weight_bytes_per_device'] / 1e9:.2f} GB on a device{copied}, "
            f"{model['kv_bytes_per_token'] / 1e3:.1f} kB of cache a token"
        )
        yield from _wrapped(words, hanging=True)
    yield from _wrapped(f"acceptance: {acceptance_words(document)}", hanging=True)
    yield from _wrapped(f"{document['provenance']}: {document['label']}", hanging=True)


def _map(document: Mapping[str, Any]) -> Iterator[str]:
    """Best gamma and S by batch size (rows) and context (columns), as many beside each other as fit the width."""
    points = {(one["batch_size"], one["context"]): one for one in document["points"]}
    contexts = [one["context"] for one in document["contexts"]]
    while contexts:
        most = min(len(contexts), WIDTH // _NARROWEST)
        tables = (_table(document["batch_sizes"], contexts[:count], points) for count in range(most, 0, -1))
        count, lines = next((count, lines) for count, lines in tables if count == 1 or max(map(len, lines)) <= WIDTH)
        contexts = contexts[count:]
        yield from (*lines, "")
    yield from _wrapped(_legend(document))
    yield ""


def _table(
    batch_sizes: Sequence[int], contexts: Sequence[int], points: Mapping[tuple[int, int], Mapping[str, Any]]
) -> tuple[int, list[str]]:
    headings = ["batch", *(f"context {context}" for context in contexts)]
    rows = [[size, *(_cell(points[size, context]) for context in contexts)] for size in batch_sizes]
    return len(contexts), text_table(headings, rows).splitlines()


def _cell(point: Mapping[str, Any]) -> str:
    if point["fits"] is False:
        return "does not fit"
    if point["recommended_gamma"] == 0:
        return "over the limit"
    low, high = point["low"], point["high"]
    reach = "" if low is None else f" ±{(high - low) / 2:.2f}"
    value = f"{point['speedup']:.2f}{reach}"
    unsure = " ?" if low is not None and point["decision"]["verdict"] == "undecided" else ""
    words = f"γ{point['gamma']} {value}" if point["gamma"] else f"plain ({value})"
    return words + unsure


def _legend(document: Mapping[str, Any]) -> str:
    words = "the smallest γ within 1% of the best, and its speed-up S"
    if any(one["low"] is not None for one in document["points"]):
        words += f" with half its {document['confidence']:.0%} interval"
    words += "; plain: plain decoding is as fast, with that S in brackets"
    if any(one["low"] is not None and one["decision"]["verdict"] == "undecided" for one in document["points"]):
        words += "; ?: the interval does not tell which side of break-even"
    if document["max_itl_s"] is not None:
        words += f"; rounds of up to {document['max_itl_s'] * 1e3:g} ms only (--max-itl)"
    return words


def _bounds(document: Mapping[str, Any]) -> Iterator[str]:
    """What takes most of each part, by batch size; contexts that are alike share a row."""
    by_context = [list(own) for _, own in groupby(document["points"], key=lambda point: point["context"])]
    rows = []
    for part in ("decode", "draft", "verify"):
        if document["points"][0]["parts"][part] is None:
            continue
        spans = [(own[0]["context"], _bound_spans(own, part)) for own in by_context]
        for words, alike in groupby(spans, key=lambda one: one[1]):
            contexts = [context for context, _ in alike]
            rows.append([part, span_words(contexts[0], contexts[-1]), words])
    yield from text_table(["part", "context", "takes most of its time, by batch size"], rows).splitlines()


def _bound_spans(points: Sequence[Mapping[str, Any]], part: str) -> str:
    spans = []
    for bound, alike in groupby(points, key=lambda point: point["parts"][part]["bound"]):
        sizes = [point["batch_size"] for point in alike]
        spans.append(f"{PART_WORDS[bound]} {span_words(sizes[0], sizes[-1])}")
    return ", ".join(spans)
