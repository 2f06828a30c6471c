"""The distribution of what the decoder writes, counted against the target's exact one; and faults the count must catch.

A tiny random pair of four tokens writes thousands of continuations of γ + 3 tokens of one prompt.  The joint
distributions of the first three and of the last three tokens are compared with the target's own, enumerated over every
continuation with transformers' own attention and the chain in numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from specgauge.bench.cache.adapter import ATTENTION_NAMES
from specgauge.bench.decoding import verification
from specgauge.bench.decoding.drafters import Drafter, ModelDrafter, NgramDrafter
from specgauge.bench.decoding.sampling import draw
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.checks import FloatArray
from specgauge.model.exact import AcceptanceRule
from specgauge.model.sampling import SamplingSettings, chain_name, processed_probs
from tests.bench.conftest import exact, loaded
from tests.bench.decoded import decode
from tests.bench.scripted import after, scripted
from tests.bench.tiny_checkpoints import llama

TOKENS = 4
SETTINGS = SamplingSettings(temperature=0.9, top_p=0.95)
PROMPT = (1,)
MANY, SEEDED = 10_000, 4_000
PASSES, CAUGHT = 1e-4, 1e-6


@cache
def network(seed: int) -> LoadedModel:
    own = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = dict.fromkeys(("bos_token_id", "eos_token_id"))
    model = llama(TOKENS, seed=seed, num_key_value_heads=1, initializer_range=0.7, **own, **ids)
    return loaded(exact(model), max_context=32)


TARGET, DRAFT = 2, 5


@cache
def exact_distribution(length: int) -> FloatArray:
    """(4, …, 4) probability of every continuation, by transformers' own attention and the chain in numpy."""
    model: Any = network(TARGET).model
    heads = torch.tensor(list(product(range(TOKENS), repeat=length - 1)))
    fed = torch.cat([torch.tensor([PROMPT]).expand(len(heads), -1), heads], dim=1)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = model(fed, use_cache=False).logits[:, len(PROMPT) - 1 :]
    model.set_attn_implementation(ATTENTION_NAMES["sdpa"])
    probs = processed_probs(logits.numpy(), SETTINGS)
    chances = probs[:, -1]
    for place, token in enumerate(heads.numpy().T):
        chances = chances * probs[np.arange(len(heads)), place, token][:, None]
    return chances.reshape((TOKENS,) * length)


def p_value(texts: list[tuple[int, ...]], chances: FloatArray, first: bool) -> float:
    """Chi-square of the joint distribution of three tokens; 0 where something impossible was written."""
    axes = tuple(range(3, chances.ndim)) if first else tuple(range(chances.ndim - 3))
    expected = chances.sum(axis=axes) * len(texts)
    counts = Counter(text[:3] if first else text[-3:] for text in texts)
    observed = np.array([counts[cell] for cell in product(range(TOKENS), repeat=3)], dtype=np.float64)
    wanted = expected.ravel()
    if observed[wanted == 0].any():
        return 0.0
    rare = wanted < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    wanted = np.append(wanted[~rare], wanted[rare].sum())
    kept = wanted > 0
    statistic = float(((observed[kept] - wanted[kept]) ** 2 / wanted[kept]).sum())
    return float(chi2.sf(statistic, int(kept.sum()) - 1))


def continuations(
    gamma: int, *, count: int = SEEDED, draft: Drafter | None = None, rule: AcceptanceRule = "ratio"
) -> list[tuple[int, ...]]:
    options: Any = {"new": gamma + 3, "seed": 11, "acceptance_rule": rule}
    drafter = network(DRAFT) if draft is None else draft
    found = decode(network(TARGET), drafter, SETTINGS, [PROMPT] * count, gamma=gamma, **options)
    return [text.tokens for text in found.texts]


def p_values(gamma: int, texts: list[tuple[int, ...]]) -> tuple[float, float]:
    chances = exact_distribution(gamma + 3)
    return p_value(texts, chances, True), p_value(texts, chances, False)


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_the_distribution_is_the_targets(gamma: int) -> None:
    assert min(p_values(gamma, continuations(gamma, count=MANY))) > PASSES


@pytest.mark.parametrize("rule", ["ratio", "match"])
@pytest.mark.parametrize(
    "make",
    [lambda: ModelDrafter(network(DRAFT), SETTINGS, draft_sampling="greedy"), NgramDrafter],
    ids=["greedy draft", "ngram"],
)
def test_drafts_that_are_certain_keep_the_distribution(make: Callable[[], Drafter], rule: AcceptanceRule) -> None:
    assert min(p_values(2, continuations(2, draft=make(), rule=rule))) > PASSES


def softmax_of_the_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(probs: Tensor, uniforms: Tensor) -> Tensor:
        is_residual = probs.sum(dim=-1, keepdim=True) < 0.9999
        return draw(torch.where(is_residual, probs.softmax(dim=-1), probs), uniforms)

    monkeypatch.setattr(verification, "draw", mutant)


def no_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    right = verification.accept_by_ratio

    def mutant(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        accepted, _ = right(*arguments)
        rows = torch.arange(len(accepted))
        return accepted, draw(arguments[2][rows, accepted], arguments[5][rows, accepted])

    monkeypatch.setattr(verification, "accept_by_ratio", mutant)


def draft_probs_for_the_bonus(monkeypatch: pytest.MonkeyPatch) -> None:
    right = verification.accept_by_ratio

    def mutant(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        accepted, following = right(*arguments)
        drafts, draft_probs, follow = arguments[0], arguments[1], arguments[5]
        if not drafts.shape[1]:
            return accepted, following
        bonus = draw(draft_probs[:, -1], follow[:, -1])
        return accepted, torch.where(accepted == drafts.shape[1], bonus, following)

    monkeypatch.setattr(verification, "accept_by_ratio", mutant)


def logits_shifted_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = verification.verify_block

    def mutant(*arguments: Any) -> Tensor:
        logits = right(*arguments)
        return torch.cat([logits[:, :1], logits[:, :-1]], dim=1)

    monkeypatch.setattr("specgauge.bench.decoding.decoder.verify_block", mutant)


@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize(
    "mutation", [softmax_of_the_residual, no_residual, draft_probs_for_the_bonus, logits_shifted_by_one]
)
def test_a_fault_in_the_decoder_is_caught(
    mutation: Callable[[pytest.MonkeyPatch], None], gamma: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    assert min(p_values(gamma, continuations(gamma))) < CAUGHT


CHAINS = [
    SamplingSettings(temperature=0.5),
    SamplingSettings(top_k=2),
    SamplingSettings(top_p=0.7),
    SamplingSettings(min_p=0.3),
    SamplingSettings(repetition_penalty=1.6),
    SamplingSettings(temperature=0.8, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.3, min_tokens_to_keep=2),
]


@pytest.mark.parametrize("settings", CHAINS, ids=chain_name)
def test_every_processor_acts_at_every_place_of_a_block(settings: SamplingSettings) -> None:
    """Four tokens of a pair whose logits follow the last one: the joint distribution of three, history and all."""
    tables = torch.randn(2, TOKENS, TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    target, draft = (scripted(after(table), vocabulary=TOKENS) for table in 1.5 * tables)
    chances = np.zeros((TOKENS,) * 4)
    for text in product(range(TOKENS), repeat=4):
        chance, history = 1.0, list(PROMPT)
        for token in text:
            logits = 1.5 * tables[0, history[-1]].numpy()
            chance *= processed_probs(logits, settings, np.array(history))[token]
            history.append(token)
        chances[text] = chance
    found = decode(target, draft, settings, [PROMPT] * SEEDED, gamma=2, new=4, seed=4)
    texts = [text.tokens for text in found.texts]
    assert min(p_value(texts, chances, True), p_value(texts, chances, False)) > PASSES
