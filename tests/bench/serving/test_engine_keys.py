"""Keys of engines' speculation that are nearly known ones."""

import pytest

from specgauge.bench.serving.engine_keys import KNOWN, misspelt
from specgauge.configs.engines import LONGEST, SCHEDULES


@pytest.mark.parametrize(
    ("kind", "key", "found"),
    [
        ("vllm", "num_speculative_token", "num_speculative_tokens"),
        ("vllm", "enable_adaptive_verificaton", "enable_adaptive_verification"),
        ("sglang", "speculative-num-step", "speculative-num-steps"),
        ("sglang", "speculative_num_steps", None),
        ("tensorrt_llm", "draft_length_schedule", "draft_len_schedule"),
        ("llama_cpp", "spec-draft-nmax", "spec-draft-n-max"),
        ("vllm", "a_field_of_next_year", None),
        ("openai", "num_speculative_token", None),
    ],
)
def test_the_known_key_that_one_is_nearly(kind: str, key: str, found: str | None) -> None:
    assert misspelt(kind, [key]) == ({} if found is None else {key: found})


def test_what_is_written_here_itself_is_known() -> None:
    for kind, name in [*LONGEST.items(), *SCHEDULES.items()]:
        assert name in KNOWN[kind]
