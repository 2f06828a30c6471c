"""Events as real servers sent them, texts shortened: which are chunks with tokens, and how many."""

import json
from typing import Any

from specgauge.bench.serving.events import Chunks


def read(*parts: tuple[float, bytes]) -> dict[str, Any]:
    chunks = Chunks()
    for seconds, part in parts:
        chunks.read(part, seconds)
    return {**chunks.fields(), "error": chunks.error, "is_done": chunks.is_done}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def vllm_chat(content: str, ids: list[int] | None, finish: str | None = None, **more: Any) -> bytes:
    delta = {"content": content} if ids else {"role": "assistant", "content": content}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice | ({"token_ids": ids} if ids else {})], **more})


def test_the_first_event_of_a_chat_has_the_role_and_no_token() -> None:
    last = {"choices": [], "usage": {"prompt_tokens": 42, "total_tokens": 48, "completion_tokens": 6}}
    steps = {"per_step_accepted": [2, 0], "per_step_drafted": [2, 2], "acceptance_histogram": [1, 0, 1]}
    found = read(
        (0.4506, vllm_chat("", None, prompt_token_ids=[1, 9690])),
        (0.4507, vllm_chat("The", [504])),
        (0.637, vllm_chat(" sky is blue", [6376, 314, 4461])),
        (0.8134, vllm_chat(" to", [288])),
        (1.0025, vllm_chat(" a", [253], "length")),
        (
            1.0026,
            event(last | {"metrics": {"mean_itl_ms": 261.67, "speculative_decoding": steps}}) + b"data: [DONE]\n\n",
        ),
    )
    assert found == {
        "prompt_tokens": 42, "tokens": 6, "chunk_s": (0.4507, 0.637, 0.8134, 1.0025), "chunk_tokens": (1, 3, 1, 1),
        "finish_reason": "length", "cached_tokens": None, "speculative": steps, "error": None,
        "is_done": True,
    }  # fmt: skip


def completion(text: str, ids: list[int]) -> bytes:
    return event({"object": "text_completion", "choices": [{"index": 0, "text": text, "token_ids": ids}]})


def test_tokens_without_text_are_a_chunk() -> None:
    found = read(
        (0.9751, completion("", [2]) + completion("\n", [198, 1]) + completion("assistant\n", [520, 9531, 198])),
        (1.1413, completion(" blue", [4461])),
    )
    assert found["chunk_tokens"] == (1, 2, 3, 1)
    assert found["chunk_s"] == (0.9751, 0.9751, 0.9751, 1.1413)
    assert (found["tokens"], found["is_done"]) == (7, False)


def llama_chat(text: str, predicted_n: int, predicted_ms: float, **more: Any) -> bytes:
    timings = {"cache_n": 0, "prompt_n": 42, "predicted_n": predicted_n, "predicted_ms": predicted_ms, **more}
    return event({"choices": [{"finish_reason": None, "index": 0, "delta": {"content": text}}], "timings": timings})


def test_tokens_of_llama_cpp_are_joined_to_rounds_by_their_timings() -> None:
    drafts = {"draft_n": 4, "draft_n_accepted": 2}
    usage = {"completion_tokens": 5, "prompt_tokens": 42, "prompt_tokens_details": {"cached_tokens": 24}}
    found = read(
        (
            0.35,
            event({"choices": [{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}]}),
        ),
        (0.35, llama_chat("The", 1, 0.001)),
        (0.515, llama_chat(" sky", 2, 165.439, **drafts)),
        (0.5152, llama_chat(" is", 3, 165.439, **drafts)),
        (0.5153, llama_chat(" blue", 4, 165.439, **drafts)),
        (0.7, llama_chat(" to", 5, 320.1, draft_n=8, draft_n_accepted=2)),
        (0.7, event({"choices": [{"finish_reason": "length", "index": 0, "delta": {}}]})),
        (0.7, event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"),
    )
    assert (found["chunk_s"], found["chunk_tokens"]) == ((0.35, 0.515, 0.7), (1, 3, 1))
    assert (found["tokens"], found["cached_tokens"], found["finish_reason"]) == (5, 24, "length")
    assert found["speculative"] == {"predicted_n": 5, "draft_n": 8, "draft_n_accepted": 2}


def test_an_event_may_come_in_parts() -> None:
    whole = completion(" blue", [4461]).replace(b"\n", b"\r\n")
    found = read((0.1, whole[:20]), (0.2, whole[20:-3]), (0.3, whole[-3:]))
    assert (found["chunk_s"], found["chunk_tokens"]) == ((0.3,), (1,))


def test_text_whose_tokens_came_before_is_no_chunk() -> None:
    """A tokenizer holds back half a character; the usage tells its token with the event before."""
    usage = [{"completion_tokens": told} for told in (1, 2, 2)]
    found = read(*(
        (0.1 * index, event({"choices": [{"index": 0, "text": text}], "usage": own}))
        for index, (text, own) in enumerate(zip("abc", usage, strict=True))
    ))  # fmt: skip
    assert found["chunk_tokens"] == (1, 1)
