"""The sampling chain and its numpy twin equal transformers' own processors, break ties low, draw what they should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
from transformers.generation.logits_process import TopPLogitsWarper

from specgauge.bench.decoding.records import PromptBatch
from specgauge.bench.decoding.sampling import (
    NO_TOKEN,
    ROUND_DRAFT,
    Draws,
    _keep_nucleus,
    _keep_top_p_sorted,
    draw,
    keep_top_p,
    lowest_argmax,
    next_tokens,
    probabilities,
    processed_logits,
    seen_along,
    seen_tokens,
)
from specgauge.bench.end_to_end.baselines import processor_chain
from specgauge.model.sampling import PROCESSORS, PURPOSES, SamplingSettings, inverse_cdf, processed_probs, uniforms
from specgauge.model.sampling import processed_logits as numpy_logits

VOCABULARY = 300

settings_strategy = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([None, 1, 3, 17, 1000]),
    top_p=st.sampled_from([None, 0.1, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([None, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    min_tokens_to_keep=st.sampled_from([1, 2, 5]),
)


def test_the_chain_is_the_one_that_generate_builds() -> None:
    given = {"repetition_penalty": 1.1, "temperature": 0.8, "top_k": 64, "top_p": 0.9, "min_p": 0.02}
    config: Any = GenerationConfig(do_sample=True, **given)
    model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=4, n_layer=1, n_head=1))
    built = model._get_logits_processor(config, input_ids_seq_length=4)
    ours = processor_chain(SamplingSettings(**given))  # type: ignore[arg-type]
    assert [(type(one), vars(one)) for one in ours] == [(type(one), vars(one)) for one in built]
    assert [name.lower().replace("_", "") for name in PROCESSORS] == [
        type(one).__name__.removesuffix("LogitsProcessor").removesuffix("LogitsWarper").lower() for one in built
    ]


@given(settings_strategy, st.integers(0, 10_000), st.booleans())
@settings(max_examples=150, deadline=None)
def test_equals_transformers_bit_for_bit_and_the_numpy_twin(
    chain: SamplingSettings, seed: int, with_ties: bool
) -> None:
    """Ties at the boundary of top-p excepted: there transformers keeps whichever its unstable sort put last.

    Of ties for the tokens that min-p must keep, numpy keeps others than torch does.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, VOCABULARY, generator=generator) * 3
    if with_ties and chain.top_p in (None, 1.0):
        logits = logits.round()
    history = torch.randint(0, VOCABULARY, (4, 9), generator=generator)
    expected = processor_chain(chain)(history, logits.clone())  # type: ignore[arg-type]
    seen = seen_tokens(history, torch.ones_like(history, dtype=torch.bool), VOCABULARY)
    assert torch.equal(processed_logits(logits, chain, seen), expected)
    if with_ties and chain.min_p and chain.min_tokens_to_keep > 1:
        return
    found = numpy_logits(logits.numpy(), chain, history.numpy(), dtype=np.float32)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected.numpy())
    narrow = processed_probs(logits.numpy(), chain, history.numpy(), dtype=np.float32)
    np.testing.assert_allclose(narrow, torch.softmax(expected, -1).numpy(), rtol=2e-6)
    wide = processed_probs(logits.double().numpy(), chain, history.numpy())
    np.testing.assert_allclose(probabilities(logits.double(), chain, seen).numpy(), wide, rtol=0, atol=1e-12)


@pytest.mark.parametrize("top_p", [0.11, 0.37, 0.83])
def test_ties_of_top_p_are_those_of_a_stable_sort(top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of equal logits transformers keeps is up to torch's sort; a stable one keeps what we keep."""
    unstable_sort = torch.sort
    monkeypatch.setattr(torch, "sort", lambda scores, **options: unstable_sort(scores, stable=True, **options))
    logits = np.random.default_rng(5).integers(0, 3, (12, VOCABULARY)).astype(np.float32)
    expected = TopPLogitsWarper(top_p)(torch.empty(0), torch.from_numpy(logits))
    found = numpy_logits(logits, SamplingSettings(top_p=top_p), dtype=np.float32)
    np.testing.assert_array_equal(found, expected.numpy())


def test_ties_go_to_the_lowest_index() -> None:
    logits = torch.tensor([0.0, 1.0, 1.0])
    greedy = SamplingSettings(temperature=0.0)
    assert lowest_argmax(logits) == 1
    assert next_tokens(logits, greedy, None) == 1
    assert probabilities(logits, greedy).tolist() == [0.0, 1.0, 0.0]


@given(st.integers(1, 300), st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1))
def test_of_many_ties_the_lowest_is_found_at_any_width_and_stride(
    width: int, levels: int, is_transposed: bool, seed: int
) -> None:
    values = torch.randint(0, levels, (3, width), generator=torch.Generator().manual_seed(seed)).float()
    laid_out = values.t().contiguous().t() if is_transposed else values
    assert lowest_argmax(laid_out).tolist() == [row.index(max(row)) for row in values.tolist()]
    values[1, width // 2] = torch.nan
    assert lowest_argmax(values)[1] == width


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 60),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.floats(0.01, 0.999),
    st.integers(1, 3),
)
def test_a_nucleus_found_among_few_is_the_one_of_the_whole_order(
    seed: int, ranks: int, scale: float, step: float, top_p: float, keep: int
) -> None:
    logits = scale * torch.randn(4, 80, generator=torch.Generator().manual_seed(seed))
    if step:  # ties
        logits = (logits / step).round() * step
    logits[1, 30:] = -torch.inf
    expected = _keep_top_p_sorted(logits, top_p, keep)
    assert torch.equal(_keep_nucleus(logits, top_p, keep, max(ranks, keep + 1)), expected)
    assert torch.equal(keep_top_p(logits, top_p, keep), expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("column", [0, 399])
@pytest.mark.parametrize(
    "chain",
    [
        SamplingSettings(temperature=0.0),
        SamplingSettings(temperature=0.0, repetition_penalty=1.2),
        SamplingSettings(),
        SamplingSettings(temperature=0.7, top_k=1),
        SamplingSettings(top_k=5, top_p=0.9),
        SamplingSettings(top_p=0.9),
        SamplingSettings(min_p=0.2, repetition_penalty=1.2),
    ],
)
def test_what_is_not_a_number_gives_no_token_and_a_first_probability_of_nan(
    chain: SamplingSettings, column: int, value: float
) -> None:
    """Whatever the processors do with it; the row beside it is chosen as it would be alone."""
    logits = torch.linspace(-3, 3, 400, dtype=torch.float64).repeat(2, 1)
    logits[:, 7] = -torch.inf
    logits[1, column] = value
    seen = torch.ones(2, 400, dtype=torch.bool)
    uniforms = torch.tensor([0.5, 0.5], dtype=torch.float64)
    probs = probabilities(logits, chain, seen)
    assert probs[:, 0].isnan().tolist() == [False, True]
    good, bad = next_tokens(logits, chain, uniforms, seen).tolist()
    assert (good, bad) == (int(next_tokens(logits[:1], chain, uniforms[:1], seen[:1])), NO_TOKEN)
    assert good > 200


def test_low_precision_logits_become_float32_probabilities() -> None:
    probs = probabilities(torch.zeros(2, 3, dtype=torch.bfloat16), SamplingSettings())
    assert probs.dtype == torch.float32
    assert probabilities(torch.zeros(3, dtype=torch.float64), SamplingSettings()).dtype == torch.float64


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.24, 1), (0.25, 3), (0.5, 3), (0.999999, 3)])
def test_draw_is_the_inverse_cdf_and_never_a_token_without_mass(u: float, token: int) -> None:
    probs = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0])
    assert draw(probs, torch.tensor(u)) == token


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30), st.floats(0.0, 1.0, exclude_max=True))
def test_draw_equals_the_numpy_twin(masses: list[float], u: float) -> None:
    if sum(masses) < 1e-12:
        masses = [*masses, 1.0]
    probs = torch.tensor(masses, dtype=torch.float64)
    token = int(draw(probs, torch.tensor(u, dtype=torch.float64)))
    assert token == int(inverse_cdf(probs.numpy(), np.float64(u)))
    assert probs[token] > 0


def test_history_leaves_out_padding_and_grows_along_a_block() -> None:
    tokens = torch.tensor([[1, 2, 0], [3, 0, 0]])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    seen = seen_tokens(tokens, valid, 5)
    assert seen.nonzero().tolist() == [[0, 1], [0, 2], [1, 3]]
    along = seen_along(seen, torch.tensor([[4, 4], [0, 2]]))
    assert along[0].nonzero().tolist() == [[0, 1], [0, 2], [0, 4], [1, 1], [1, 2], [1, 4]]
    assert along[1].nonzero().tolist() == [[0, 0], [0, 3], [1, 0], [1, 2], [1, 3]]


CPU = torch.device("cpu")


def draws(prompts: list[int], round_drafts: int | None = None) -> Draws:
    purposes = ["accept", "draft"]
    batch = PromptBatch(prompts=[], numbers=prompts, max_new_tokens=8, repetition=2)
    return Draws(purposes, batch, seed=1, device=CPU, round_drafts=round_drafts)


def test_a_uniform_is_that_of_its_place() -> None:
    """Beyond the text the last one repeats."""
    found = draws([3, 5])
    found.move([1, 6], 3)
    places = np.array([[1, 2, 3], [6, 7, 7]])
    for purpose in ("accept", "draft"):
        wanted = uniforms(1, np.array([[3], [5]]), 2, places, PURPOSES[purpose])
        np.testing.assert_array_equal(found.at(purpose, 3).numpy(), wanted)


@pytest.mark.parametrize("known", [0, 2, 4])
def test_drafts_of_a_round_have_their_own_as_many_as_it_takes(known: int) -> None:
    found = draws([3, 5], known)
    for positions in ([0, 2], [1, 2]):
        found.move(positions, 4)
        wanted = uniforms(1, np.array([[3], [5]]), 2, np.array(positions)[:, None], ROUND_DRAFT + np.arange(3))
        np.testing.assert_array_equal(found.at("draft", 3).numpy(), wanted)
        np.testing.assert_array_equal(found.at("draft", 1).numpy(), wanted[:, :1])
    found.move([0, 0], 8)
    rounds = [found.at("draft", 7)[0]]
    for start in range(1, 8):
        found.move([start, 0], 8)
        rounds.append(found.at("draft", 7)[0])
    assert torch.stack(rounds).unique().numel() == 8 * 7
