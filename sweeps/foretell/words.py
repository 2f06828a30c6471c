"""The words of a plan's document, for terminal and page alike: acceptance, where speculation pays, what fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PART_WORDS = {
    "weights": "weights",
    "kv": "KV cache",
    "flops": "FLOPs",
    "launch": "launches",
    "all_reduce": "all-reduce",
}
"""What the seconds of a step go to."""


def acceptance_words(document: Mapping[str, Any]) -> str:
    """What acceptance was taken from."""
    given = document["acceptance"]
    if given["source"] == "alpha":
        return f"alpha {given['alpha']:g}, assumed the same at every position"
    if given["source"] == "run":
        return f"recorded in {given['run']}, pair {given['pair']}, sampling {given['sampling']}"
    rates = ", ".join(f"{one['tokens_per_round']:.2f} at gamma {one['gamma']}" for one in given["by_gamma"])
    where = f" of {given['table']}" if "table" in given else ""
    return f"tokens a round{where}, the bonus included: {rates}"


def context_sentence(one: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Where speculation pays in a context, with which gamma, and what fits."""
    return f"Context {one['context']}: {_pays(one, document)}{_schedule(one)}. {_room(one)}"


def _pays(one: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    sizes, ranges = document["batch_sizes"], one["pays"]
    if not one["schedule"]:
        return f"not even {min(sizes)} sequences fit" if min(sizes) > 1 else "nothing fits"
    if not ranges:
        return "speculation pays at no batch size"
    if one["break_even_batch_size"] is None and ranges[0][0] == one["schedule"][0]["first"]:
        return "speculation pays at every batch size"
    where = " and ".join(span_words(first, last) for first, last in ranges)
    end = one["break_even_batch_size"]
    return f"speculation pays at batch sizes {where}{f', not from {end} on' if end == ranges[-1][1] + 1 else ''}"


def _schedule(one: Mapping[str, Any]) -> str:
    steps = one["schedule"]
    if len(steps) < 2 and not any(step["gamma"] for step in steps):
        return ""
    words = [f"γ {step['gamma']}" if step["gamma"] else "plain" for step in steps]
    spans = [span_words(step["first"], step["last"]) for step in steps]
    return "; " + ", ".join(f"{span}: {word}" for span, word in zip(spans, words, strict=True))


def _room(one: Mapping[str, Any]) -> str:
    if one["largest_batch"] is None:
        return "The memory is not known."
    return f"Largest batch that fits: {one['largest_batch']}, {one['largest_batch_without_draft']} without the draft."


def trust_words(document: Mapping[str, Any]) -> Iterator[str]:
    """What the calibration rests on and covers, and what else to know."""
    fitted = document["calibration"]
    if fitted is not None:
        outside = sum(point["calibrated"] is False for point in document["points"])
        devices = " or ".join(map(str, fitted["tensor_parallel"]))
        batch_sizes, contexts, tokens = (span_words(*fitted[name]) for name in ("batch_sizes", "contexts", "tokens"))
        spans = f"{devices} devices, batch sizes {batch_sizes}, contexts {contexts}, {tokens} tokens a sequence"
        beyond = f"; {outside} of {len(document['points'])} points lie outside, where its error is not known"
        yield f"calibration: {fitted['source']}; {spans}{beyond if outside else ''}"
        if document["draft"]["name"] is not None:
            yield _draft_words(document["draft"]["name"], fitted)
    yield from document["warnings"]


def _draft_words(name: str, fitted: Mapping[str, Any]) -> str:
    own, plain = fitted["draft"], fitted["draft_error"]
    if own is not None:
        other = "" if name.lower() in own["drafts"] else f", {name} not among them"
        error = own["error"]
        return (
            f"drafts: fitted to {own['steps']} times of {', '.join(own['drafts'])}{other}; C(γ) held out by "
            f"{error['held_out'].replace('_', ' ')} was off by {error['mean']:.1%} (mean), {error['worst']:.1%} (worst)"
        )
    known = "no draft was measured" if plain is None else f"C(γ) so predicted was off by {plain:.1%} (root mean square)"
    return f"drafts: by the target's numbers; {known}"


def span_words(first: int, last: int) -> str:
    """`8`, or `1-8`."""
    return str(first) if first == last else f"{first}-{last}"
