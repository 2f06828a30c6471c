"""What the simulated engine answers to a request over HTTP, whatever carries it: status, and the parts of the body."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.engine_server.engine import Engine, EngineSettings, GoneError, Request

FOREVER_S = 1e6
BEGIN = 1
"""The id of the token before a text."""


@dataclass(kw_only=True)
class Answer:
    status: int = 200
    content_type: str = "application/json"
    body: bytes = b""
    parts: AsyncIterator[bytes] | None = None


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status=status, body=json.dumps(value).encode())


def _error(status: int, message: str) -> Answer:
    return _json({"error": {"message": message, "type": "error", "code": status}}, status)


async def answer(engine: Engine, method: str, path: str, authorization: str | None, body: bytes) -> Answer:
    """Raises GoneError where the engine has crashed."""
    own = engine.settings
    if engine.is_gone:
        raise GoneError
    if path == "/metrics":
        if not own.has_metrics:
            return _error(404, "Not Found")
        return Answer(content_type="text/plain; version=0.0.4", body=engine.metrics().encode())
    if path == "/health":
        return Answer()
    if own.api_key is not None and authorization != f"Bearer {own.api_key}":
        return _error(401, f"Incorrect API key provided: {authorization}")
    if path == "/v1/models":
        return _json({"object": "list", "data": [{"id": own.model, "object": "model"}]})
    if path == "/tokenize" and own.tokenizes:
        asked = json.loads(body)
        engine.tokenized += 1
        special = asked.get("add_special_tokens", False) or asked.get("add_special", False)
        return _json({"tokens": tokens_of(asked.get(own.tokenizes, ""), own, has_special=special)})
    if path not in ("/v1/completions", "/v1/chat/completions"):
        return _error(404, "Not Found")
    asked = json.loads(body)
    engine.requests += 1
    if own.crash_after is not None and engine.requests > own.crash_after:
        engine.crash()
        raise GoneError
    if asked.get("model") != own.model:
        return _error(404, f"The model `{asked.get('model')}` does not exist.")
    refused = [name for name in own.strict if name in asked or name in asked.get("stream_options", {})]
    if refused:
        return _error(400, f"Extra inputs are not permitted: {refused[0]}")
    if not own.takes_ids and isinstance(asked.get("prompt"), list):
        return _error(400, "prompt: a string is expected")
    if own.fails_every and engine.requests % own.fails_every == 0:
        return _error(own.fail_status, f"a simulated fault{f' of {authorization}' if own.echoes_key else ''}")
    if own.hangs_every and engine.requests % own.hangs_every == 0:
        await asyncio.sleep(FOREVER_S)
    return Answer(content_type="text/event-stream", parts=_stream(engine, path, asked))


def tokens_of(text: str, own: EngineSettings, *, has_special: bool) -> list[int]:
    """Ids of a text's words, or of their parts of so many letters."""
    size = own.letters or 1000
    parts = [word[at : at + size] for word in text.split() for at in range(0, len(word), size)]
    return [BEGIN] * (own.begins and has_special) + [1000 + zlib.crc32(part.encode()) for part in parts]


def _prompt_of(asked: Mapping[str, Any], own: EngineSettings) -> list[int]:
    prompt = asked.get("prompt")
    if isinstance(prompt, list):
        return [BEGIN] * own.adds_to_ids + prompt
    text = prompt or " ".join(message["content"] for message in asked["messages"])
    return tokens_of(text, own, has_special=True)


async def _stream(engine: Engine, path: str, asked: Mapping[str, Any]) -> AsyncIterator[bytes]:
    ids = _prompt_of(asked, engine.settings)
    speculative = asked.get("speculative") or {}
    one = engine.submit(tuple(ids), len(ids), asked["max_tokens"], speculative.get("n_max"))
    held: list[bytes] = []
    try:
        async for event in _events(engine, one, path, asked):
            held.append(b"data: " + event + b"\n\n")
            if len(held) >= engine.settings.merges:
                yield b"".join(held)
                held = []
        yield b"".join(held)
    finally:
        engine.drop(one)


async def _events(engine: Engine, one: Request, path: str, asked: Mapping[str, Any]) -> AsyncIterator[bytes]:
    own, is_chat = engine.settings, path.endswith("/chat/completions")
    options = asked.get("stream_options") or {}
    told = 0

    def event(choices: list[Any], **more: Any) -> bytes:
        return json.dumps({"id": "1", "model": own.model, "choices": choices, **more}).encode()

    if is_chat:
        yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    joined: list[int] = []
    rounds, decoded_ms = 0, 0.0
    began = asyncio.get_running_loop().time()
    while (ids := await one.out.get()) is not None or joined:
        rounds += 1
        joined += ids or []
        is_last = ids is None or (one.tokens >= one.max_tokens and one.out.qsize() == 1)
        if rounds > 1 and rounds % own.joins and not is_last:
            continue
        groups = [[token] for token in joined] if own.tells == "singly" else [joined]
        joined = []
        decoded_ms = round((asyncio.get_running_loop().time() - began) * 1000, 3)
        for index, group in enumerate(groups):
            told += len(group)
            text = "".join(f" w{token}" for token in group)
            choice: dict[str, Any] = {"index": 0, "finish_reason": None}
            choice |= {"delta": {"content": text}} if is_chat else {"text": text}
            if is_last and index == len(groups) - 1:
                choice["finish_reason"] = "length"
            more: dict[str, Any] = {}
            if own.tells == "ids" and asked.get("return_token_ids"):
                choice["token_ids"] = group
            if own.tells == "usage" and options.get("continuous_usage_stats"):
                more["usage"] = {"prompt_tokens": one.prompt_tokens, "completion_tokens": told}
            if own.tells == "singly" and asked.get("timings_per_token"):
                more["timings"] = {"predicted_n": told, "predicted_ms": decoded_ms}
            yield event([choice], **more)
        if ids is None:
            break
    if engine.is_gone:
        raise GoneError
    usage = {
        "prompt_tokens": one.prompt_tokens,
        "completion_tokens": one.tokens + own.usage_off_by,
        "prompt_tokens_details": {"cached_tokens": one.cached_tokens} if own.prefix_cache else None,
    }
    more = {"usage": usage} if options.get("include_usage") else {}
    if own.per_request:
        more["metrics"] = {"speculative_decoding": _per_request(one, engine) if one.drafted else None}
    if more:
        yield event([], **more)
    yield b"[DONE]"


def _per_request(one: Request, engine: Engine) -> dict[str, Any]:
    longest = max(one.drafted)
    return {
        "acceptance_histogram": [one.accepted.count(number) for number in range(longest + 1)],
        "num_spec_steps": len(one.drafted),
        "num_accepted_draft_tokens": sum(one.accepted),
        "num_draft_tokens": sum(one.drafted),
        "num_spec_tokens": engine.settings.gamma,
        "per_step_accepted": one.accepted,
        "per_step_drafted": one.drafted,
    }
