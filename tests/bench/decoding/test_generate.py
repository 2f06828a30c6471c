"""Plain decoding: each row as if alone, where texts end, and whose round is next where decodings are interleaved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specgauge.bench.decoding.plain import (
    Interleavable,
    decode_plain,
    first_logits,
    interleave,
    plain_steps,
    uninterrupted,
)
from specgauge.bench.decoding.records import NonFiniteLogitsError
from specgauge.bench.timing.clock import HostClock
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import DRAWN, GREEDY, Make, batch_of, plain
from tests.bench.scripted import broken_at, scripted, text_of


def test_every_step_is_timed_with_the_rows_that_were_active(tiny_model: Make) -> None:
    class Ticks(HostClock):
        now_s = 0.0

        def mark(self) -> float:
            self.now_s += 1.0
            return self.now_s

    (first, _) = plain(tiny_model(), prompts=[[1, 2], [3]], new=6)
    ending = tiny_model(eos=(first.tokens[2],))
    found = decode_plain(ending, batch_of([[1, 2], [3]], 6), GREEDY, seed=0, clock=Ticks())
    lengths = sorted(len(text.tokens) for text in found.texts)
    assert found.prefill_s == 1.0
    assert [times.active_rows for times in found.times] == [
        2 if position < lengths[0] else 1 for position in range(1, lengths[1])
    ]
    assert found.decode_s == lengths[1] - 1
    assert found.texts == plain(ending, prompts=[[1, 2], [3]], new=6)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN, SamplingSettings(top_p=0.9, repetition_penalty=1.01)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", range(9))
def test_logits_that_are_no_numbers_are_named_before_a_token_is_drawn_from_them(
    place: int, value: float, settings: SamplingSettings
) -> None:
    model = scripted(broken_at(place, value), vocabulary=12, name="pair 'x' target")
    steps = plain_steps(model, batch_of([[1, 2]], 9, [7]), settings, seed=0)
    for _ in range(place):
        next(steps)
    with pytest.raises(NonFiniteLogitsError) as caught:
        next(steps)
    assert (caught.value.model, caught.value.prompt, caught.value.position) == ("pair 'x' target", 7, place)


@pytest.mark.parametrize("settings", [GREEDY, DRAWN, SamplingSettings(repetition_penalty=1.01)])
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
    options: Any = {"prompts": [[1, 2], [1, 2]], "new": 6, "numbers": [4, 9]}
    texts = plain(model, settings, **options)
    assert [(text.tokens, text.end_reason) for text in texts] == [((3, 0), "eos"), ((3, 4, 5, 6, 7, 8), "length")]
    broken_from = 3
    with pytest.raises(NonFiniteLogitsError, match="scripted: prompt 9: the logits of token 3 of its text"):
        plain(model, settings, **options)


@pytest.mark.parametrize(
    ("prompts", "fed"),
    [
        ([[1, 2, 3, 4, 5, 6, 7]], [3, 3, 1]),
        ([[1, 2, 3], [3, 2, 1]], [3]),
        ([[1, 2, 3], [4]], [2, 1]),
        ([[3], [4]], [1]),
    ],
)
def test_prompts_of_one_length_are_fed_whole(tiny_model: Make, prompts: list[list[int]], fed: list[int]) -> None:
    model, widths = tiny_model(), []
    expected = torch.stack([model.model(input_ids=torch.tensor([prompt])).logits[0, -1] for prompt in prompts])
    model.model.register_forward_pre_hook(
        lambda _, __, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    cache = model.new_cache(batch_size=len(prompts), tokens=20)
    torch.testing.assert_close(first_logits(model, cache, prompts, chunk=3), expected)
    assert widths == fed
    assert cache.lengths == [len(prompt) for prompt in prompts]


class Told:
    """Decodings that say when they run and whether they were told of a break."""

    def __init__(self) -> None:
        self.log: list[tuple[str, float]] = []
        self.breaks: list[bool] = []
        self.closed: list[str] = []

    def decoding(self, name: str, steps: list[float], fails: bool = False) -> Interleavable[str]:
        try:
            for step in steps:
                self.log.append((name, step))
                self.breaks.append((yield step))
            if fails:
                raise ValueError(name)
            return f"{name} done"
        finally:
            self.closed.append(name)


def test_alone_there_is_no_break() -> None:
    told = Told()
    assert uninterrupted(told.decoding)("a", [1.0, 2.0, 3.0]) == "a done"
    assert told.breaks == [False] * 3


def test_the_shortest_text_is_next_the_first_named_where_equal() -> None:
    told = Told()
    lengths = {"at once": [], "plain": [1.0, 2.0, 3.0, 4.0], "fast": [1.0, 4.0]}
    found = interleave({name: told.decoding(name, steps) for name, steps in lengths.items()})
    assert told.log == [
        ("plain", 1), ("fast", 1), ("plain", 2), ("fast", 4), ("plain", 3), ("plain", 4)
    ]  # fmt: skip
    assert list(found.items()) == [(name, f"{name} done") for name in lengths]
    assert all(told.breaks)


def test_when_one_fails_all_are_closed() -> None:
    told = Told()
    with pytest.raises(ValueError, match="bad"):
        interleave({"good": told.decoding("good", [1, 5]), "bad": told.decoding("bad", [2], fails=True)})
    assert sorted(told.closed) == ["bad", "good"]
