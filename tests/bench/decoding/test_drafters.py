"""Drafters: what a draft model's cache holds after every round, the lookup, and the target's own first layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgauge.bench.cache.adapter import ATTENTION_NAMES
from specgauge.bench.cache.cache import RowCache, forward, new_cache
from specgauge.bench.decoding.drafters import ModelDrafter, NgramDrafter, confidence
from specgauge.bench.models.pair import LoadedModel, first_layers
from tests.bench.decoded import GREEDY, PROMPTS, Make, decode, plain
from tests.bench.decoding.test_decoder_families import FAMILIES, network
from tests.bench.scripted import Trace


class Watcher(Trace):
    """A policy that notes how many tokens both caches hold after every round."""

    def __init__(self, gammas: Sequence[int], drafter: ModelDrafter, caches: list[RowCache]) -> None:
        super().__init__(*gammas, reads_signals=False)
        self.drafter, self.caches = drafter, caches
        self.lengths: list[tuple[list[int], list[int]]] = []

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        super().observe(drafted, accepted)
        self.lengths.append((list(self.caches[0].lengths), list(self.drafter.cache.lengths)))


@pytest.mark.parametrize("draft_seed", [0, 1], ids=["always accepted", "often rejected"])
@pytest.mark.parametrize("gammas", [[1], [4], [3, 0, 0, 5]], ids=str)
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1], [[1], PROMPTS[2]]], ids=["three", "one", "short and long"])
def test_caches_hold_the_committed_tokens(
    tiny_model: Make,
    prompts: list[list[int]],
    gammas: list[int],
    draft_seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The target's: all but the last; the draft's: all but the last, or the last two after full acceptance."""
    caches: list[RowCache] = []

    def kept(loaded: LoadedModel, **options: Any) -> RowCache:
        caches.append(new_cache(loaded.model, **options))
        return caches[-1]

    monkeypatch.setattr(LoadedModel, "new_cache", kept)
    target, draft = tiny_model(scale=0.4), tiny_model(seed=draft_seed, scale=0.4)
    drafter = ModelDrafter(draft, GREEDY)
    watcher = Watcher(gammas, drafter, caches)
    found = decode(target, drafter, prompts=prompts, gamma=watcher, new=18)
    assert found.texts == plain(target, prompts=prompts, new=18)
    for row in found.rows:
        of_target, of_draft = (lengths[row.prompt] for lengths in watcher.lengths[row.round])
        committed = row.context + 1 + row.emitted
        assert of_target == committed - 1
        if row.drafted:
            assert of_draft == committed - 1 or (of_draft == committed - 2 and row.accepted == row.drafted)
        if len(prompts) == 1 and row.drafted:
            assert of_draft == committed - (2 if row.accepted == row.drafted else 1)


def test_entropy_of_a_certain_draft_is_zero() -> None:
    top, entropy = confidence(torch.tensor([[0.0, -torch.inf, -torch.inf]]))
    assert (top.tolist(), entropy.tolist()) == ([1.0], [0.0])


def scanned(tokens: list[int], gamma: int, longest: int, shortest: int) -> tuple[list[int], int]:
    """The lookup by its definition: scan backwards for the longest tail that occurred before, copy what followed."""
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                text = list(tokens)
                for step in range(gamma):
                    text.append(text[start + size + step])
                return text[len(tokens) :], size
    return [], 0


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 6), max_size=12),
    gamma=st.integers(1, 7),
    longest=st.integers(1, 4),
)
def test_the_lookup_finds_what_a_scan_finds_as_the_text_grows(
    tokens: list[int], cuts: list[int], gamma: int, longest: int
) -> None:
    drafter = NgramDrafter(longest=longest)
    end = 1
    drafter.start([tokens[:end]], 50)
    for cut in [0, *cuts]:
        end = min(end + cut, len(tokens))
        assert drafter.rows[0].lookup(tokens[:end], gamma) == scanned(tokens[:end], gamma, longest, 1)


def test_a_lookup_of_many_tokens_costs_what_was_added() -> None:
    """4,000 rounds over a growing text index every place once."""
    text = list(range(4_000))
    drafter = NgramDrafter(longest=3)
    drafter.start([text[:1]], 4_000)
    for end in range(2, len(text)):
        assert drafter.rows[0].lookup(text[:end], 4) == ([], 0)
    assert len(drafter.rows[0].ends) == 3 * (len(text) - 2) - 3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_layers_share_every_weight_and_compute_what_they_say(family: str) -> None:
    target = network(family, 3)
    whole: Any = target.model
    cut = first_layers(target, 1)
    assert cut.name == f"{family} (first 1 layers)"
    own = {parameter.data_ptr() for parameter in whole.parameters()}
    assert {parameter.data_ptr() for parameter in cut.model.parameters()} < own
    assert (cut.model.config.num_hidden_layers, whole.config.num_hidden_layers) == (1, 2)
    ids = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(1))
    found = forward(cut.model, new_cache(cut.model, batch_size=2, tokens=9), ids)
    inner = whole.transformer if family == "gpt2" else whole.model
    blocks, norm = (inner.h, inner.ln_f) if family == "gpt2" else (inner.layers, inner.norm)
    states: list[torch.Tensor] = []
    hook = blocks[0].register_forward_hook(
        lambda _module, _inputs, output: states.append(output[0] if isinstance(output, tuple) else output)
    )
    whole.set_attn_implementation("eager")
    whole(ids, use_cache=False)
    hook.remove()
    whole.set_attn_implementation(ATTENTION_NAMES["sdpa"])
    expected = whole.lm_head(norm(states[-1]))
    cap = getattr(whole.config, "final_logit_softcapping", None)
    torch.testing.assert_close(found, expected if cap is None else cap * torch.tanh(expected / cap), rtol=0, atol=2e-6)


@pytest.mark.parametrize("layers", [0, 2, 5])
def test_layers_that_are_not_there_are_refused(tiny_model: Make, layers: int) -> None:
    with pytest.raises(ValueError, match=f"tiny: draft layers: expected 1 to 1 of its 2, got {layers}"):
        first_layers(tiny_model(), layers)


def test_a_model_spread_by_hooks_is_refused(tiny_model: Make) -> None:
    target = tiny_model()
    network: Any = target.model
    network.forward = network.forward
    with pytest.raises(ValueError, match="spread over devices by hooks"):
        first_layers(target, 1)
