"""What a server's own counters say of a block: rounds, tokens and accepted drafts between two scrapes of its metrics.

    counted = count(before, after, gamma=2)
    counted.rounds, counted.tokens, counted.accepted_by_position

    vLLM         rounds are inter_token_latency_seconds_count: num_drafts has none where a lookup found nothing
    SGLang       rounds are spec_verify_calls; the first token of a request is in none
    llama.cpp    rounds are tokens less accepted drafts, as n_decode times busy slots; first tokens are among them

Omega = tokens after first ones / rounds. vLLM counts accepted drafts that a length limit then cuts off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_GAUGES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "cache_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
}
_LINES = {
    field: re.compile(rf"^(?:{'|'.join(names)})(?:\{{.*\}})?\s+(\S+)", re.MULTILINE) for field, names in _GAUGES.items()
}


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """What a server says of the moment it was asked; None where it does not."""

    running: float | None = None
    waiting: float | None = None
    cache_share: float | None = None
    """Of its cache, in use: 1 is full."""


def read_gauges(text: str) -> Gauges:
    """The gauges in the text of a server's metrics, several engines (data parallelism) added up."""
    found = {field: [_number(one) for one in line.findall(text)] for field, line in _LINES.items()}
    shares = found.pop("cache_share")
    sums = {field: sum(values) if values else None for field, values in found.items()}
    return Gauges(**sums, cache_share=max(shares, default=None))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
