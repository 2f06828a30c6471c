"""The client: what it asks, what it makes of a server that refuses, and that it tells nobody its key."""

import asyncio
from typing import Any

import httpx
import pytest

from specgauge.bench.serving.closed_loop import run_block
from specgauge.bench.serving.streams import OpenAIClient, Prompt, Stream
from tests.bench.serving.blocks import engine_of, with_client
from tests.engine_server.server import running
from tests.engine_server.simulated import EngineTransport, simulate

KEY = "sk-a1b2c3"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    return "ENGINE_KEY"


def answered(handler: Any, **client: Any) -> OpenAIClient:
    """A client whose every request is answered by a function."""
    return OpenAIClient("http://engine", "target", transport=httpx.MockTransport(handler), **client)


async def one_stream(client: OpenAIClient, prompt: Prompt = "a b c", **more: Any) -> Stream:
    return await client.stream(prompt, max_new_tokens=8, **more)


async def probed(client: OpenAIClient) -> OpenAIClient:
    await client.probe("a b c")
    return client


def test_a_stream_tells_times_and_tokens_of_its_chunks() -> None:
    engine = engine_of(gamma=3, alpha=1.0, step_s=0.01, draft_s=0.001, prefill_token_s=0.01)
    found = with_client(engine, one_stream)
    assert found.chunk_tokens == (1, 4, 3)
    assert found.chunk_s == pytest.approx((0.03, 0.043, 0.056))
    assert (found.prompt_tokens, found.tokens, found.seen_tokens, found.later_tokens) == (3, 8, 8, 7)
    assert (found.ttft_s, found.tpot_s) == pytest.approx((0.03, 0.026 / 7))
    assert (found.finish_reason, found.error, found.status, found.together) == ("length", None, 200, 0)


@pytest.mark.parametrize(
    ("prompt", "path", "field"),
    [
        ("a b", "/v1/completions", "prompt"),
        ((1, 2), "/v1/completions", "prompt"),
        (({"role": "user", "content": "a b"},), "/v1/chat/completions", "messages"),
    ],
)
def test_text_and_ids_are_completed_and_messages_answered(prompt: Prompt, path: str, field: str) -> None:
    transport = EngineTransport(engine_of())
    found = with_client(transport.engine, lambda client: one_stream(client, prompt), transport=transport)
    assert (found.error, found.tokens, found.prompt_tokens) == (None, 8, 2)
    (sent,) = transport.sent
    assert sent.url.path == path
    assert field.encode() in sent.content


def test_fields_of_a_request_and_of_a_person() -> None:
    transport = EngineTransport(engine_of(n_max_honoured=True, gamma=1, alpha=1.0))
    extra = {"speculative": {"n_max": 3}, "ignore_eos": False}
    found = with_client(
        transport.engine, lambda client: one_stream(client, extra=extra, temperature=0.5), transport=transport
    )
    assert found.chunk_tokens == (1, 4, 3)
    asked = httpx.Response(200, content=transport.sent[0].content).json()
    assert asked == {
        "model": "target", "prompt": "a b c", "max_tokens": 8, "min_tokens": 8, "temperature": 0.5, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "ignore_eos": False,
        "return_token_ids": True, "timings_per_token": True, "speculative": {"n_max": 3},
        "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "strict", [(), ("min_tokens",), ("return_token_ids", "ignore_eos"), ("stream_options",), ("top_k",)]
)
def test_fields_that_a_server_refuses_are_left_out(strict: tuple[str, ...]) -> None:
    client = with_client(engine_of(strict=strict), probed)
    assert client.options is not None
    left = {"usage" if name == "stream_options" else name for name in strict}
    everything = {
        "timings_per_token",
        "min_tokens",
        "ignore_eos",
        "return_token_ids",
        "continuous_usage_stats",
        "usage",
        "top_k",
        "min_p",
    }
    # a usage in every chunk is of use only where token ids do not tell
    of_no_use = set() if "return_token_ids" in strict else {"continuous_usage_stats"}
    assert client.options == everything - left - of_no_use


def test_per_request_metrics_are_kept() -> None:
    found = with_client(engine_of(gamma=2, alpha=1.0, per_request=True), one_stream)
    assert found.speculative is not None
    assert found.speculative["per_step_accepted"] == [2, 2, 2]


def test_a_server_that_cannot_be_reached() -> None:
    async def ask() -> None:
        async with OpenAIClient("http://127.0.0.1:9", "target") as client:
            stream = await client.stream("a", max_new_tokens=1)
            assert (stream.error or "").startswith("http://127.0.0.1:9/v1/completions: expected a server that answers")
            await client.models()

    with pytest.raises(ValueError, match=r"^http://127\.0\.0\.1:9/v1/models: expected a server that answers, got none"):
        asyncio.run(ask())


def test_a_key_that_is_refused_is_not_told(key: str) -> None:
    engine = engine_of(api_key="sk-other")

    async def ask(client: OpenAIClient) -> str:
        with pytest.raises(
            ValueError, match="status 401; put a valid key into the environment variable ENGINE_KEY"
        ) as told:
            await client.models()
        with pytest.raises(ValueError, match="status 401"):
            await client.probe("a")
        stream = await client.stream("a", max_new_tokens=1)
        return f"{told.value} {told.value.__cause__} {told.value.__context__} {stream} {client!r} {vars(stream)}"

    assert KEY not in with_client(engine, ask, api_key_env=key)
    assert with_client(engine_of(api_key=KEY), one_stream, api_key_env=key).error is None
    without = with_client(engine, one_stream).error
    assert without is not None
    assert without.endswith("got status 401; name the environment variable that holds the key as api_key_env")


def test_a_key_that_a_server_repeats_is_left_out(key: str) -> None:
    def repeat(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, text=f"no luck with {request.headers['Authorization']}")

    async def ask() -> Stream:
        async with answered(repeat, api_key_env=key) as client:
            return await one_stream(client)

    found = simulate(ask())
    assert found.error == "http://engine/v1/completions: expected status 200, got 500: no luck with Bearer …"


def test_a_key_goes_to_its_own_server_alone(key: str) -> None:
    seen: dict[str, str | None] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        seen[str(request.url)] = request.headers.get("Authorization")
        return httpx.Response(200, text="up 1\n")

    async def ask(**client: Any) -> None:
        async with answered(answer, api_key_env=key, **client) as one:
            await one.metrics()

    simulate(ask())
    simulate(ask(metrics_url="http://metrics:9000/metrics"))
    assert seen == {"http://engine/metrics": f"Bearer {KEY}", "http://metrics:9000/metrics": None}


@pytest.mark.parametrize(("value", "got"), [(None, "ENGINE_KEY is not set"), ("ключ", "got other characters")])
def test_an_environment_variable_without_a_key(monkeypatch: pytest.MonkeyPatch, value: str | None, got: str) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("ENGINE_KEY", value)
    with pytest.raises(ValueError, match=got) as told:
        OpenAIClient("http://engine", api_key_env="ENGINE_KEY")
    assert value is None or value not in str(told.value)


def test_a_model_that_is_not_served_is_told_with_those_that_are() -> None:
    async def check(client: OpenAIClient) -> str:
        return await client.check_model()

    engine = engine_of(model="target-8b")
    assert with_client(engine, check) == "target-8b"
    assert with_client(engine, check, model=None) == "target-8b"
    with pytest.raises(
        ValueError, match=r"one of its models \(target-8b\), got 'target-8'; did you mean 'target-8b'\?"
    ):
        with_client(engine, check, model="target-8")
    stream = with_client(engine, one_stream, model="other")
    assert stream.error == (
        "http://engine/v1/completions: expected status 200, got 404: The model `other` does not exist."
    )


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://engine:8000", "http://engine:8000/v1"),
        ("http://engine:8000/", "http://engine:8000/v1"),
        ("http://engine:8000/v1/", "http://engine:8000/v1"),
        ("https://engine/proxy/v1", "https://engine/proxy/v1"),
    ],
)
def test_the_api_is_where_it_is_said_to_be(url: str, base: str) -> None:
    assert OpenAIClient(url).base_url == base


@pytest.mark.parametrize("url", ["engine:8000", "ftp://engine", "http://", "http://me:secret@engine", "http://[::1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^base_url: expected a URL such as http://127\.0\.0\.1:8000, got") as told:
        OpenAIClient(url)
    assert "secret" not in str(told.value)


def test_a_redirect_is_not_followed() -> None:
    async def ask() -> Stream:
        async with answered(lambda request: httpx.Response(307, headers={"Location": "http://other"})) as client:
            return await one_stream(client)

    error = simulate(ask()).error
    assert error is not None
    assert error.endswith("expected the server itself, got a redirect (status 307); give the URL it leads to")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'data: {"choices": [{"text": "a"}]}\n\n', "expected a stream that ends with [DONE], it broke off after 0 s"),
        (b"data: {oops\n\ndata: [DONE]\n\n", "expected a completion's events, got '{oops'"),
        (b'data: {"choices": [1]}\n\ndata: [DONE]\n\n', "expected a completion's events, got '{\"choices\": [1]}'"),
        (b'data: {"usage": 3}\n\ndata: [DONE]\n\n', "expected a completion's events, got '{\"usage\": 3}'"),
        (
            b'data: {"error": {"message": "out of\\nmemory"}}\n\ndata: [DONE]\n\n',
            "expected tokens, got an error in the stream: out of memory",
        ),
    ],
)
def test_streams_that_break(text: bytes, error: str) -> None:
    async def ask() -> Stream:
        async with answered(lambda request: httpx.Response(200, content=text)) as client:
            return await one_stream(client)

    assert simulate(ask()).error == f"http://engine/v1/completions: {error}"


def test_a_page_in_the_place_of_metrics_is_none() -> None:
    async def ask() -> str | None:
        async with answered(lambda request: httpx.Response(200, text="<html>no metrics</html>")) as client:
            return await client.metrics()

    assert simulate(ask()) is None


def test_metrics_that_are_refused_are_none_unless_they_were_asked_for() -> None:
    async def ask(**client: Any) -> str | None:
        async with answered(lambda request: httpx.Response(403), **client) as one:
            return await one.metrics()

    assert simulate(ask()) is None
    with pytest.raises(
        ValueError, match=r"^http://engine/metrics: expected a key that the server takes, got status 403"
    ):
        simulate(ask(metrics_url="http://engine/metrics"))


@pytest.mark.parametrize("closed", [httpx.RemoteProtocolError("closed"), httpx.ReadError(""), httpx.WriteError("")])
def test_a_kept_connection_that_the_server_closed_is_replaced(closed: httpx.HTTPError) -> None:
    """Requests 2, 4 and 6 find their kept connection closed; request 6 meets a server that is gone on a new one too."""
    sent: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request.url.path)
        if len(sent) in (2, 4, 6, 7):
            raise closed
        return httpx.Response(200, text="data: [DONE]\n\n" if request.method == "POST" else "a 1\n")

    async def ask() -> None:
        async with answered(handler) as client:
            assert [await client.metrics() for _ in range(2)] == ["a 1\n"] * 2
            assert (await one_stream(client)).error is None
            with pytest.raises(ValueError, match="expected a server that answers, got none"):
                await client.metrics()
            assert await client.metrics() == "a 1\n"

    simulate(ask())
    assert sent == ["/metrics"] * 3 + ["/v1/completions"] * 2 + ["/metrics"] * 3


def test_what_a_new_connection_loses_is_told_at_once() -> None:
    sent: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request.url.path)
        raise httpx.RemoteProtocolError("closed")

    async def ask() -> Stream:
        async with answered(handler) as client:
            return await one_stream(client)

    assert "expected a server that answers, got none (closed)" in str(simulate(ask()).error)
    assert sent == ["/v1/completions"]


def test_an_answer_that_is_no_list_of_models() -> None:
    async def ask() -> None:
        async with answered(lambda request: httpx.Response(200, text="[]")) as client:
            await client.models()

    with pytest.raises(ValueError, match="expected the list of models of an OpenAI-compatible server"):
        simulate(ask())


def test_over_a_real_port_with_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    engine = engine_of(gamma=2, step_s=0.002, draft_s=0.0, token_s=0.0)

    async def measure(base_url: str) -> None:
        async with OpenAIClient(base_url) as client:
            assert await client.check_model() == "target"
            block = await run_block(client, [f"a {n}" for n in range(8)], batch_size=4, max_new_tokens=16, gamma=2)
            assert block.void is None
            assert block.counts is not None
            assert block.counts.tokens == sum(stream.later_tokens or 0 for stream in block.done) == 8 * 15
            assert block.counts.rounds == sum(len(stream.chunk_s) - 1 for stream in block.done)

    with running(engine) as base_url:
        asyncio.run(measure(base_url))


def test_without_httpx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(ValueError, match=r"measuring a server needs httpx: pip install 'specgauge\[serve\]'"):
        OpenAIClient("http://engine")


def test_chunks_that_came_at_once_had_waited() -> None:
    """Rounds of 10 ms; after a stall three came within half a millisecond, the last of them in time."""
    stream = Stream(chunk_s=(0.1, 0.11, 0.1395, 0.1398, 0.14, 0.15))
    assert stream.arrivals == ((0.1, 1), (0.11, 1), (0.14, 3), (0.15, 1))
    assert stream.together == 2
    whole = Stream(chunk_s=(0.5, 0.5, 0.5))
    assert (whole.arrivals, whole.together) == (((0.5, 3),), 2)
    assert Stream(chunk_s=(0.5,)).arrivals == ((0.5, 1),)
    assert Stream().arrivals == ()
