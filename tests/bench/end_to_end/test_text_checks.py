"""The one-pass estimate against the decoder: on its own texts both count the same rounds."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specgauge.bench.decoding.drafters import ModelDrafter
from specgauge.bench.decoding.records import NonFiniteLogitsError, Text
from specgauge.bench.end_to_end.text_checks import TIE_THRESHOLDS, Divergence, divergences, expected_counts
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.model.sampling import SamplingSettings
from specgauge.model.validate import RoundCheck, round_check
from tests.bench.decoded import GREEDY, decode
from tests.bench.scripted import always, broken_at, scripted, text_of, written

PROMPTS = [[1 + number % 7, 2 + number % 5, 3] for number in range(60)]
NEW = 20


@pytest.mark.parametrize(
    ("rule", "draft_sampling", "temperature"),
    [("ratio", "same", 1.0), ("match", "same", 1.0), ("ratio", "greedy", 0.8), ("ratio", "same", 0.0)],
)
@pytest.mark.parametrize("eos", [(), (4,)], ids=["to the limit", "some end early"])
def test_rounds_counted_are_those_expected(
    tiny_model: Callable[..., LoadedModel], rule: Any, draft_sampling: Any, temperature: float, eos: tuple[int, ...]
) -> None:
    target, draft = tiny_model(eos=eos, scale=0.25), tiny_model(seed=1, layers=1, scale=0.25)
    settings = SamplingSettings(temperature=temperature)
    drafter = ModelDrafter(draft, settings, draft_sampling=draft_sampling)
    found = decode(target, drafter, settings, PROMPTS, gamma=3, new=NEW, seed=2, acceptance_rule=rule)
    options: Any = {"max_new_tokens": NEW, "acceptance_rule": rule, "draft_sampling": draft_sampling}

    def check(of_draft: LoadedModel) -> RoundCheck:
        pair = LoadedPair(name="p", target=target, draft=of_draft)
        expected = expected_counts(pair, found.texts, settings, gammas=[3], window=3, batch_size=60, **options)
        kept = [(text.prompt, one.rounds[0]) for text, one in zip(found.texts, expected, strict=True) if one.rounds[0]]
        counts = Counter(row.prompt for row in found.rows)
        return round_check([counts[prompt] for prompt, _ in kept], [rounds for _, rounds in kept])

    own = check(draft)
    assert own.counted == len(found.rows)
    assert own.agrees
    if temperature == 0.0 or draft_sampling == "greedy":
        assert own.expected == pytest.approx(own.counted, abs=1e-6), "nothing is left to chance"
    else:
        assert own.standard_errors is not None
        assert abs(own.standard_errors) < 3.5
    assert not check(target).agrees, "rounds of another draft are noticed"


def test_logits_that_are_no_numbers_are_named_by_the_texts_own_prompt() -> None:
    """Equal texts are passed over once, under numbers that nobody else knows."""
    pair = LoadedPair(
        name="x",
        target=scripted(text_of(range(3, 12), 2, 12), vocabulary=12),
        draft=scripted(broken_at(5, torch.nan), vocabulary=12, name="pair 'x' draft"),
    )
    texts = [written(range(3, 3 + count), number) for number, count in ((30, 4), (20, 4), (40, 9), (50, 9))]
    with pytest.raises(NonFiniteLogitsError, match="pair 'x' draft: prompt 40: the logits of token 5 of its text"):
        expected_counts(pair, texts, SamplingSettings(), gammas=[2], window=2, max_new_tokens=9)


def text(tokens: tuple[int, ...], prompt: int = 0) -> Text:
    return written(tokens, prompt, prompt=(0,))


def first_divergence(logits: list[float], dtype: torch.dtype, plain: Any, other: Any) -> Divergence:
    target = scripted(always(logits), vocabulary=len(logits))
    network: Any = target.model
    network.dtype = dtype
    equal = text((1,), 1)
    (found,) = divergences(target, [text(plain), equal], [equal, text(other)], GREEDY)
    return found


def test_a_divergence_is_reported_with_its_top_2_margin() -> None:
    logits = [0.0, 10.0, 10.0 - 1e-4]
    found = first_divergence(logits, torch.float32, (1, 1, 2), (1, 2, 2))
    assert (found.position, found.plain_token, found.speculative_token) == (1, 1, 2)
    assert found.margin == pytest.approx(1e-4, abs=1e-12)
    assert found.threshold == pytest.approx(10 * TIE_THRESHOLDS[torch.float32], abs=1e-12)
    assert found.is_tie
    assert found.line() == (
        "prompt 0, token 1: plain 1, speculative 2: numeric tie (top-2 margin 0.0001, threshold 0.0002)"
    )


@pytest.mark.parametrize(
    ("logits", "dtype", "plain", "other"),
    [
        ([0.0, 10.0, 9.99], torch.float32, (1, 1), (1, 2)),
        ([0.0, 10.0, 10.0 - 1e-9], torch.float64, (1, 1), (1, 2)),
        ([0.0, 10.0, 10.0 - 1e-5], torch.float32, (1, 0), (1, 2)),
        ([0.0, 10.0, 10.0 - 1e-5], torch.float32, (1, 1), (1,)),
    ],
    ids=["too far apart", "float64 has no ties", "a token far below", "one text ended"],
)
def test_what_is_no_tie_is_a_failure(logits: list[float], dtype: torch.dtype, plain: Any, other: Any) -> None:
    found = first_divergence(logits, dtype, plain, other)
    assert not found.is_tie
    assert "FAILURE" in found.line()
