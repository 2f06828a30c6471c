"""Requests to an OpenAI-compatible server as their client sees them: when each chunk came, and the tokens in it.

    async with OpenAIClient("http://127.0.0.1:8000", "target") as client:
        await client.probe("Say hello.")
        stream = await client.stream("Say hello.", max_new_tokens=64)
        stream.chunk_s, stream.chunk_tokens

Times are those of the event loop's clock, which no step of the wall clock moves. Nothing is sent to any other place
than `base_url` and `metrics_url`: no proxy of the environment, no redirect. The key is read from an environment
variable, and neither shown nor kept.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from specgauge.bench.serving.events import LONGEST_TOLD, Chunks, json_of
from specgauge.configs.errors import did_you_mean

if TYPE_CHECKING:
    import httpx

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text or token ids, which are completed, or chat messages."""
PromptForm = Literal["text", "ids", "chat"]

CONNECT_S = 10.0
KEEP_S = 2.0
"""That an idle connection is kept: less than servers do, which close it while a request is on its way."""
REFUSED = (400, 422)
"""Statuses of a server that does not take a field."""
UNAUTHORIZED = (401, 403)
MISSING = (404, 405, 501)
AT_ONCE = 0.1
"""Of a usual gap: what follows sooner had waited."""
USUAL = 0.75
"""The share of a stream's gaps that are no longer than a usual one."""
_WHOLE = {"top_k": -1, "min_p": 0.0}
"""Of a distribution that is not cut: servers have other defaults, of their own (llama.cpp) or of the model's files."""
_OPTIONS = (
    *("timings_per_token", "min_tokens", "ignore_eos", "return_token_ids", "continuous_usage_stats", "usage"),
    *_WHOLE,
)
"""Fields that not every server takes, in the order in which they are left out where it refuses them together."""

_TOKENIZED = (("prompt", "add_special_tokens"), ("content", "add_special"))
"""What `/tokenize` calls the text, and whether tokens are put around it."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One request as its client saw it; seconds on the clock of the event loop."""

    prompt: int = 0
    """Its number among the prompts."""
    prompt_tokens: int | None = None
    tokens: int | None = None
    """As the server's usage says, else as its chunks tell; None where neither does."""
    sent_s: float = 0.0
    chunk_s: tuple[float, ...] = ()
    """Seconds since `sent_s` of each chunk with tokens; tokens that a server streams one by one are joined to the round
    they are from where it tells (llama.cpp's timings)."""
    chunk_tokens: tuple[int | None, ...] = ()
    """Tokens of each; None where the server does not tell."""
    ended_s: float = 0.0
    """Seconds since `sent_s` of its end."""
    finish_reason: str | None = None
    cached_tokens: int | None = None
    """Tokens of the prompt that the server had in its prefix cache."""
    speculative: Mapping[str, Any] | None = None
    """The server's own speculative metrics of this request."""
    error: str | None = None
    status: int | None = None

    @cached_property
    def arrivals(self) -> tuple[tuple[float, int], ...]:
        """When chunks came, and how many with each other: those that followed at once had waited, in a proxy or for
        the client, and when they were sent is not known; the last of them waited least."""
        gaps = sorted(later - earlier for earlier, later in pairwise(self.chunk_s))
        if not gaps:
            return tuple((at, 1) for at in self.chunk_s)
        at_once = AT_ONCE * gaps[int(USUAL * (len(gaps) - 1))]
        found = [(self.chunk_s[0], 1)]
        for earlier, later in pairwise(self.chunk_s):
            if later - earlier <= at_once:
                found[-1] = (later, found[-1][1] + 1)
            else:
                found.append((later, 1))
        return tuple(found)

    @property
    def together(self) -> int:
        """Chunks that came at once after another."""
        return len(self.chunk_s) - len(self.arrivals)

    @property
    def seen_tokens(self) -> int | None:
        """Tokens counted in its chunks; None where one does not tell."""
        known = [tokens for tokens in self.chunk_tokens if tokens is not None]
        return sum(known) if len(known) == len(self.chunk_tokens) else None

    @property
    def later_tokens(self) -> int | None:
        """Tokens after those of the first chunk, which is one token where no chunk tells."""
        if self.tokens is None or not self.chunk_tokens:
            return None
        return self.tokens - (1 if self.chunk_tokens[0] is None else self.chunk_tokens[0])

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token; None where none came."""
        return self.chunk_s[0] if self.chunk_s else None

    @property
    def tpot_s(self) -> float | None:
        """Time per token after those of the first chunk; None where there are none, or not told."""
        after = self.later_tokens
        return (self.chunk_s[-1] - self.chunk_s[0]) / after if after and len(self.chunk_s) > 1 else None


def form_of(prompt: Prompt) -> PromptForm:
    """What a prompt is sent as."""
    if isinstance(prompt, str):
        return "text"
    return "chat" if prompt and not isinstance(prompt[0], int) else "ids"


class OpenAIClient:
    """A client of one server and model.

    `base_url` is where the API is, with or without `/v1`; `metrics_url` its metrics, by default `/metrics` of the same
    server; `model` None is the only one it serves. `api_key_env` names the environment variable that holds the key.
    `timeout_s` is the longest wait for a request to begin, and for each of its chunks.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key_env: str | None = None,
        metrics_url: str | None = None,
        timeout_s: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Raises:
            ValueError: httpx is not installed, a URL is none, or the environment variable is not set.
        """
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise ValueError("measuring a server needs httpx: pip install 'specgauge[serve]'") from error
        base = _url(base_url, "base_url")
        self.base_url = str(base.copy_with(path="/v1") if base.path == "/" else base).rstrip("/")
        self._metrics = _url(metrics_url, "metrics_url") if metrics_url else base.copy_with(path="/metrics")
        self.metrics_url = str(self._metrics)
        self._is_metrics_given = metrics_url is not None
        self.model = model
        self.timeout_s = timeout_s
        self.options: frozenset[str] | None = None
        """What the server takes beside the fields of every server, once it was probed."""
        self._tells_ids = False
        self._tokenized: tuple[str, str] | None = None
        self._key_env, self._key = api_key_env, _key(api_key_env)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._is_same_origin = (self._metrics.scheme, self._metrics.netloc) == (base.scheme, base.netloc)
        has_tls = "https" in (base.scheme, self._metrics.scheme)
        self._new: Callable[[], httpx.AsyncClient] = partial(
            httpx.AsyncClient,
            headers={**headers, "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(None, connect=min(CONNECT_S, timeout_s)),
            limits=httpx.Limits(keepalive_expiry=KEEP_S),
            trust_env=False,
            follow_redirects=False,
            transport=transport,
            verify=httpx.create_ssl_context() if has_tls else False,
        )
        # a connection each: a shared pool looks at all its connections for each request, with hundreds too long
        self._idle: list[httpx.AsyncClient] = []
        self._errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError)
        self._closed: tuple[type[Exception], ...] = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close its connections."""
        for one in self._idle:
            await one.aclose()

    @asynccontextmanager
    async def _answer(
        self, method: str, url: str, *, body: Any = None, has_key: bool = True
    ) -> AsyncIterator[tuple[httpx.Response, float]]:
        """A response, of which the body is yet to be read, and when its request was sent.

        A server may close a kept connection while the next request is on its way, which it then never saw: that one is
        sent again on a new connection. What a new connection loses is an error.
        """
        clock = asyncio.get_running_loop().time
        is_kept, response = bool(self._idle), None
        one = self._idle.pop() if is_kept else self._new()
        while response is None:
            request = one.build_request(method, url, json=body)
            if not has_key:
                request.headers.pop("Authorization", None)
            sent = clock()
            try:
                response = await one.send(request, stream=True)
            except BaseException as error:
                await one.aclose()
                if not is_kept or not isinstance(error, self._closed):
                    raise
                one, is_kept = self._new(), False
        try:
            yield response, sent
        finally:
            await response.aclose()
            self._idle.append(one)

    async def models(self) -> tuple[str, ...]:
        """Names of the models it serves.

        Raises:
            ValueError: it cannot be reached, refuses the key, or does not answer as an OpenAI-compatible server does.
        """
        url = f"{self.base_url}/models"
        answer = json_of(await self._fetch(url))
        entries = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(entries, list):
            raise ValueError(f"{url}: expected the list of models of an OpenAI-compatible server, got another answer")
        return tuple(str(one["id"]) for one in entries if isinstance(one, dict) and "id" in one)

    async def check_model(self) -> str:
        """The model's name; where none was given, the only one served.

        Raises:
            ValueError: as `models`, or the server has no such model, or several and none was named; they are listed.
        """
        found = await self.models()
        if self.model is None and len(found) == 1:
            self.model = found[0]
        if self.model is None or self.model not in found:
            got = "several" if self.model is None else f"{self.model!r}{did_you_mean(self.model, found)}"
            raise ValueError(f"{self.base_url}: expected one of its models ({', '.join(found) or 'none'}), got {got}")
        return self.model

    async def metrics(self) -> str | None:
        """The text at its metrics; None where it has none there, or other than text.

        Raises:
            ValueError: it cannot be reached, or refuses what was given as `metrics_url`.
        """
        none = MISSING if self._is_metrics_given else range(400, 600)
        text = await self._fetch(self.metrics_url, has_key=self._is_same_origin, none=none)
        return text if text is not None and "\0" not in text and not text.lstrip().startswith(("<", "{")) else None

    async def tokenize(self, text: str, *, has_special: bool = False) -> tuple[int, ...] | None:
        """The token ids of a text, with those that the tokenizer puts around it or without; None where no server of
        `base_url` tells them at `/tokenize` (vLLM and SGLang take `prompt`, llama.cpp `content`).

        Raises:
            ValueError: it cannot be reached.
        """
        url = f"{self.base_url.removesuffix('/v1')}/tokenize"
        for name, special in _TOKENIZED if self._tokenized is None else (self._tokenized,):
            body = {name: text, special: has_special, **({"model": self.model} if self.model else {})}
            answer = json_of(await self._fetch(url, body=body, none=range(300, 600)))
            ids = answer.get("tokens") if isinstance(answer, dict) else None
            if isinstance(ids, list) and ids and all(type(one) is int for one in ids):
                self._tokenized = name, special
                return tuple(ids)
        return None

    async def probe(self, prompt: Prompt, *, max_new_tokens: int = 2) -> Stream:
        """Send one short request and learn which of the optional fields the server takes and answers.

        Raises:
            ValueError: it refuses the request without any of them too, or cannot be reached.
        """
        options = [*_OPTIONS]
        while True:
            self.options = frozenset(options)
            stream = await self.stream(prompt, max_new_tokens=max_new_tokens)
            if stream.error is None:
                if self._tells_ids:  # a chunk need not tell its tokens twice
                    self.options -= {"continuous_usage_stats"}
                return stream
            if stream.status not in REFUSED or not options:
                raise ValueError(stream.error)
            named = [one for one in options if one in stream.error]
            if not named and "stream_options" in stream.error:
                named = [one for one in ("continuous_usage_stats", "usage") if one in options]
            options.remove(named[0] if named else options[0])

    async def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        extra: Mapping[str, Any] | None = None,
        number: int = 0,
    ) -> Stream:
        """Send one request and read its stream; whatever fails is told in the stream's `error`, in one line.

        `extra` are more fields of the request. Cancelling it closes the connection, on which servers end the request.
        """
        path, body = self._request(prompt, max_new_tokens, temperature, extra or {})
        url = f"{self.base_url}{path}"
        clock = asyncio.get_running_loop().time
        chunks = Chunks()
        status: int | None = None
        sent = looked = clock()
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                async with self._answer("POST", url, body=body) as (response, sent):
                    status = response.status_code
                    if status != 200:
                        chunks.error = self._refusal(url, status, (await response.aread()).decode(errors="replace"))
                    else:
                        async for part in response.aiter_bytes():
                            now = clock()
                            if now > looked + self.timeout_s / 100:  # moving a timer costs as much as a chunk
                                limit.reschedule(now + self.timeout_s)
                                looked = now
                            chunks.read(part, now - sent)
        except TimeoutError:
            chunks.error = f"{url}: expected an answer or its next chunk within {self.timeout_s:g} s, got none"
        except self._errors as error:
            chunks.error = f"{url}: {self._told(error)}"
        ended = clock() - sent
        if chunks.error is None and not chunks.is_done:
            chunks.error = f"{url}: expected a stream that ends with [DONE], it broke off after {ended:.3g} s"
        elif chunks.error is not None and not chunks.error.startswith(url):
            chunks.error = f"{url}: {self._without_key(chunks.error)}"
        self._tells_ids = self._tells_ids or chunks.has_ids
        return replace(
            Stream(**chunks.fields()), prompt=number, sent_s=sent, ended_s=ended, error=chunks.error, status=status
        )

    def _request(
        self, prompt: Prompt, max_new_tokens: int, temperature: float, extra: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        options = frozenset(_OPTIONS) if self.options is None else self.options
        body: dict[str, Any] = {"max_tokens": max_new_tokens, "temperature": temperature, "top_p": 1.0, "stream": True}
        if self.model is not None:
            body["model"] = self.model
        if "usage" in options:
            body["stream_options"] = {"include_usage": True}
            if "continuous_usage_stats" in options:
                body["stream_options"]["continuous_usage_stats"] = True
        if "min_tokens" in options:
            body["min_tokens"] = max_new_tokens
        body.update({one: True for one in ("ignore_eos", "return_token_ids", "timings_per_token") if one in options})
        body.update({one: value for one, value in _WHOLE.items() if one in options})
        is_chat = form_of(prompt) == "chat"
        body["messages" if is_chat else "prompt"] = prompt if isinstance(prompt, str) else [*prompt]
        return ("/chat/completions" if is_chat else "/completions"), {**body, **extra}

    async def _fetch(self, url: str, *, body: Any = None, has_key: bool = True, none: Collection[int] = ()) -> Any:
        """The text at a URL, or what it answers to a body; None at some statuses."""
        try:
            async with asyncio.timeout(min(self.timeout_s, CONNECT_S * 3)):
                async with self._answer("POST" if body else "GET", url, body=body, has_key=has_key) as (response, _):
                    await response.aread()
        except self._errors as error:
            raise ValueError(f"{url}: {self._told(error)}") from None  # its request holds the key
        if response.status_code in none:
            return None
        if response.status_code != 200:
            raise ValueError(self._refusal(url, response.status_code, response.text))
        return response.text

    def _refusal(self, url: str, status: int, text: str) -> str:
        """A status other than 200 in one line."""
        answer = json_of(text)
        said: Any = answer.get("error", answer) if isinstance(answer, dict) else text
        said = said.get("message", said) if isinstance(said, dict) else said
        told = self._without_key(" ".join(str(said).split()))[:LONGEST_TOLD] or "nothing"
        if status in UNAUTHORIZED:
            remedy = (
                f"put a valid key into the environment variable {self._key_env}"
                if self._key_env
                else ("name the environment variable that holds the key as api_key_env")
            )
            return f"{url}: expected a key that the server takes, got status {status}; {remedy}"
        if 300 <= status < 400:
            return f"{url}: expected the server itself, got a redirect (status {status}); give the URL it leads to"
        return f"{url}: expected status 200, got {status}: {told}"

    def _told(self, error: Exception) -> str:
        """What went wrong on the way, in one line."""
        about = self._without_key(" ".join(str(error).split()))[:LONGEST_TOLD] or type(error).__name__
        return f"expected a server that answers, got none ({about}); is it running, and is this its address?"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text


def _key(variable: str | None) -> str | None:
    """The key in an environment variable; ValueError where there is none."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(f"api_key_env: expected an environment variable that holds the key, {variable} is not set")
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"api_key_env: expected a key of printable ASCII in {variable}, got other characters")
    return key


def _url(text: str, name: str) -> httpx.URL:
    import httpx

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"{name}: expected a URL such as http://127.0.0.1:8000, got {text!r}") from error
    if url.scheme not in ("http", "https") or not url.host or url.userinfo:
        got = "one with a user or password" if url.userinfo else repr(text)
        raise ValueError(f"{name}: expected a URL such as http://127.0.0.1:8000, got {got}")
    return url
