"""Plain decoding: each row as if alone, ends where it should, and the greedy text transformers writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specgauge.bench.decoding.plain import decode_plain, first_logits, generate_plain, plain_steps
from specgauge.bench.decoding.records import NonFiniteLogitsError
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.timing.clock import HostClock
from specgauge.model.sampling import SamplingSettings
from tests.bench.scripted import broken_at, scripted, text_of

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 1, 2, 3], [5] * 17]
GREEDY = SamplingSettings(temperature=0.0)
SAMPLED = SamplingSettings(temperature=0.8, top_p=0.9, repetition_penalty=1.2)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, SamplingSettings()])
@pytest.mark.parametrize("eos", [(), (4,)])
def test_every_row_equals_its_own_batch_of_one(
    tiny_model: Callable[..., LoadedModel], settings: SamplingSettings, eos: tuple[int, ...]
) -> None:
    model = tiny_model(eos=eos)
    together = generate_plain(model, PROMPTS, settings, max_new_tokens=20, seed=7, prompt_numbers=[3, 4, 9])
    for text, prompt, number in zip(together, PROMPTS, [3, 4, 9], strict=True):
        (alone,) = generate_plain(model, [prompt], settings, max_new_tokens=20, seed=7, prompt_numbers=[number])
        assert alone == text


def test_an_end_token_is_emitted_and_nothing_after_it(tiny_model: Callable[..., LoadedModel]) -> None:
    free = tiny_model(seed=3)
    (text,) = generate_plain(free, [[1, 2]], SamplingSettings(), max_new_tokens=30, seed=1, prompt_numbers=[0])
    end = text.tokens[4]
    first = text.tokens.index(end)
    ending = tiny_model(seed=3, eos=(end,))
    (short,) = generate_plain(ending, [[1, 2]], SamplingSettings(), max_new_tokens=30, seed=1, prompt_numbers=[0])
    assert short.tokens == text.tokens[: first + 1]
    assert short.end_reason == "eos"


def test_repetitions_and_prompts_draw_their_own_numbers(tiny_model: Callable[..., LoadedModel]) -> None:
    model = tiny_model(scale=0.1)

    def text(number: int, repetition: int, seed: int) -> tuple[int, ...]:
        return generate_plain(
            model,
            [[1, 2]],
            SamplingSettings(),
            max_new_tokens=24,
            seed=seed,
            prompt_numbers=[number],
            repetition=repetition,
        )[0].tokens

    assert len({text(0, 0, 0), text(1, 0, 0), text(0, 1, 0), text(0, 0, 1)}) == 4
    assert text(0, 0, 0) == text(0, 0, 0)


@pytest.mark.parametrize(
    ("prompt", "new", "words"),
    [([], 4, "prompt 5 has no token"), ([1] * 250, 10, "prompt 5 has 250 tokens and 10 more .* takes 256")],
)
def test_prompts_without_room_are_refused(
    tiny_model: Callable[..., LoadedModel], prompt: list[int], new: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        generate_plain(tiny_model(), [prompt], GREEDY, max_new_tokens=new, seed=0, prompt_numbers=[5])


def test_a_repetition_penalty_sees_the_whole_history(tiny_model: Callable[..., LoadedModel]) -> None:
    """With an enormous penalty no token comes twice, neither from the prompt nor from the text."""
    settings = SamplingSettings(temperature=0.0, repetition_penalty=100.0)
    model = tiny_model(scale=0.05, vocabulary=30)
    (text,) = generate_plain(model, [[1, 2, 3]], settings, max_new_tokens=10, seed=0, prompt_numbers=[0])
    assert len({*text.tokens, 1, 2, 3}) == len(text.tokens) + 3


def test_an_id_the_target_has_no_row_for_is_refused(tiny_model: Callable[..., LoadedModel]) -> None:
    with pytest.raises(ValueError, match="prompt 5: expected ids from 0 to 10, got 11"):
        generate_plain(tiny_model(), [[1, 11, 2]], GREEDY, max_new_tokens=3, seed=0, prompt_numbers=[5])


def test_every_step_is_timed_with_the_rows_that_were_active(tiny_model: Callable[..., LoadedModel]) -> None:
    class Ticks(HostClock):
        now_s = 0.0

        def mark(self) -> float:
            self.now_s += 1.0
            return self.now_s

    free = tiny_model()
    (first, _) = generate_plain(free, [[1, 2], [3]], GREEDY, max_new_tokens=6, seed=0, prompt_numbers=[0, 1])
    ending = tiny_model(eos=(first.tokens[2],))
    found = decode_plain(ending, [[1, 2], [3]], GREEDY, max_new_tokens=6, seed=0, prompt_numbers=[0, 1], clock=Ticks())
    lengths = sorted(len(text.tokens) for text in found.texts)
    assert found.prefill_s == 1.0
    assert [step.position for step in found.steps] == list(range(1, lengths[1]))
    assert [step.active_rows for step in found.steps] == [
        2 if step.position < lengths[0] else 1 for step in found.steps
    ]
    assert found.decode_s == lengths[1] - 1
    assert found.texts == generate_plain(ending, [[1, 2], [3]], GREEDY, max_new_tokens=6, seed=0, prompt_numbers=[0, 1])


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(), SamplingSettings(top_p=0.9, repetition_penalty=1.01)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", range(9))
def test_logits_that_are_no_numbers_are_named_before_a_token_is_drawn_from_them(
    place: int, value: float, settings: SamplingSettings
) -> None:
    model = scripted(broken_at(place, value), vocabulary=12, name="pair 'x' target")
    steps = plain_steps(model, [[1, 2]], settings, max_new_tokens=9, seed=0, prompt_numbers=[7])
    for _ in range(place):
        next(steps)
    with pytest.raises(NonFiniteLogitsError) as caught:
        next(steps)
    assert str(caught.value) == (
        f"pair 'x' target: prompt 7: the logits of token {place} of its text are NaN or infinite; its weights are "
        "corrupt, or need a wider dtype, such as bfloat16 or float32"
    )


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(), SamplingSettings(repetition_penalty=1.01)])
def test_only_active_rows_are_checked(settings: SamplingSettings) -> None:
    """Row 0 ends at its second token and moves along over logits that are not numbers; row 1 then meets some."""

    def logits_of(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits = text_of(range(3, 12), 2, 12)(tokens, positions)
        logits[0, positions[0] == 2] = 20.0 * torch.nn.functional.one_hot(torch.tensor(0), 12).double()
        logits[0, positions[0] > 2] = torch.nan
        if broken_from is not None:
            logits[1, positions[1] > broken_from] = torch.nan
        return logits

    broken_from: int | None = None
    model = scripted(logits_of, vocabulary=12, eos=[0])
    options: Any = {"max_new_tokens": 6, "seed": 0, "prompt_numbers": [4, 9]}
    texts = generate_plain(model, [[1, 2], [1, 2]], settings, **options)
    assert [text.tokens for text in texts] == [(3, 0), (3, 4, 5, 6, 7, 8)]
    broken_from = 3
    with pytest.raises(NonFiniteLogitsError, match="scripted: prompt 9: the logits of token 3 of its text"):
        generate_plain(model, [[1, 2], [1, 2]], settings, **options)


@pytest.mark.parametrize(
    ("prompts", "fed"),
    [
        ([[1, 2, 3, 4, 5, 6, 7]], [3, 3, 1]),
        ([[1, 2, 3], [3, 2, 1]], [3]),
        ([[1, 2, 3], [4]], [2, 1]),
        ([[3], [4]], [1]),
    ],
)
def test_prompts_of_one_length_are_fed_whole(
    tiny_model: Callable[..., LoadedModel], prompts: list[list[int]], fed: list[int]
) -> None:
    model, widths = tiny_model(), []
    expected = torch.stack([model.model(input_ids=torch.tensor([prompt])).logits[0, -1] for prompt in prompts])
    model.model.register_forward_pre_hook(
        lambda _, __, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    cache = model.new_cache(batch_size=len(prompts), tokens=20)
    torch.testing.assert_close(first_logits(model, cache, prompts, chunk=3), expected)
    assert widths == fed
    assert cache.lengths == [len(prompt) for prompt in prompts]
