"""Server-sent events of a completion: which of them carry tokens, how many, and what the last ones tell.

A chat stream's first event has the role and no token. A server tells the tokens of an event by their ids (vLLM), by a
usage that grows, or by timings (llama.cpp, which streams one token an event: those of a round have the same
`predicted_ms`, and are one chunk here).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")


def json_of(text: str | bytes | None) -> Any:
    """The value of a JSON text; None where it is none."""
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return None


@dataclass
class Chunks:
    """What was read of a stream so far."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    speculative: Mapping[str, Any] | None = None
    error: str | None = None
    is_done: bool = False
    has_ids: bool = False
    _rest: bytes = b""
    _told: int = 0
    _round_ms: float | None = None

    def read(self, part: bytes, now: float) -> None:
        """Take what arrived at `now`, in seconds since the request."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        event = json_of(data.decode(errors="replace"))
        if not isinstance(event, dict):
            self.error = self.error or f"expected JSON in the stream, got {data[:60].decode(errors='replace')!r}"
            return
        if event.get("error"):
            said = event["error"]
            said = said.get("message", said) if isinstance(said, dict) else said
            self.error = (
                self.error or f"expected tokens, got an error in the stream: {' '.join(str(said).split())[:200]}"
            )
            return
        self.usage = event.get("usage") or self.usage
        metrics = event.get("metrics")
        if isinstance(metrics, dict) and isinstance(metrics.get("speculative_decoding"), dict):
            self.speculative = metrics["speculative_decoding"]
        timings = event.get("timings")
        if isinstance(timings, dict) and "draft_n" in timings:
            self.speculative = {name: timings.get(name) for name in ("predicted_n", "draft_n", "draft_n_accepted")}
        for choice in event.get("choices") or ():
            self._choice(choice, event, now)

    def _choice(self, choice: Mapping[str, Any], event: Mapping[str, Any], now: float) -> None:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or choice.get("message") or {}
        ids = choice.get("token_ids") or delta.get("token_ids")
        has_text = bool(choice.get("text")) or any(delta.get(name) for name in _TEXTS)
        timings = event.get("timings") or {}
        tokens: int | None = None
        if ids:
            tokens, self.has_ids = len(ids), True
        elif (told := timings.get("predicted_n", (event.get("usage") or {}).get("completion_tokens"))) is not None:
            tokens = told - self._told
        if not (tokens or has_text):
            return
        self._told += tokens or 0
        # a token whose text is held back until the next one comes: the text of an event that tells no new token
        if tokens == 0:
            return
        round_ms = timings.get("predicted_ms")
        if round_ms is not None and round_ms == self._round_ms and self.tokens:
            self.tokens[-1] = (self.tokens[-1] or 0) + (tokens or 0)
            return
        self._round_ms = round_ms
        self.seconds.append(now)
        self.tokens.append(tokens)

    def fields(self) -> dict[str, Any]:
        """The fields of a `Stream` that its events tell."""
        told = self.usage.get("completion_tokens")
        known = [tokens for tokens in self.tokens if tokens is not None]
        seen = sum(known) if len(known) == len(self.tokens) else None
        return {
            "prompt_tokens": self.usage.get("prompt_tokens"),
            "tokens": told if told is not None else seen,
            "chunk_s": tuple(self.seconds),
            "chunk_tokens": tuple(self.tokens),
            "finish_reason": self.finish_reason,
            "cached_tokens": (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            "speculative": self.speculative,
        }
