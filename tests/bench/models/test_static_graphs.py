"""Forwards over static shapes: what they compute, that nothing moves or is read back, and when they are compiled."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaForCausalLM

from specgauge.bench.cache.cache import forward, prefill
from specgauge.bench.end_to_end.end_to_end import EndToEnd
from specgauge.bench.models import static_graphs as static
from specgauge.bench.models.pair import (
    LoadedModel,
    LoadedPair,
    first_layers,
    in_mode,
    pair_in_mode,
    refuse_mode_of,
)
from specgauge.bench.models.placement import refuse_mode
from specgauge.bench.models.static_graphs import (
    CompileInsideError,
    StaticBuffers,
    StaticCache,
    StaticForward,
    compiled_so_far,
    no_compilation,
)
from specgauge.configs.pairs import PairConfig
from tests.bench.decoded import GREEDY, NEW, PROMPTS, Make, batch_of, decoder_of, plain
from tests.bench.decoding.test_decoder_families import FAMILIES, nearly, network
from tests.bench.timing.conftest import cell, measured

TOLERANCE = 2e-6
"""Models compute rotary angles and norms partly in float32, whatever the weights' type."""
LENGTHS = [3, 7, 12]
COMPILED = [
    ("gpt2", "aot_eager"),  # AOTAutograd makes every write a new value, and copies it back
    *((family, "eager") for family in FAMILIES if family not in ("gpt2", "llama", "mistral, sliding")),
]
CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The static shapes' computation as it stands, at once."""
    monkeypatch.setattr(StaticForward, "_execute", lambda static, shape: static._step(*shape.arguments))


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace as ever, but run what was traced without generating code."""
    monkeypatch.setattr(static, "BACKEND", "eager")


@pytest.fixture(scope="module")
def pair() -> Iterator[LoadedPair]:
    """A Llama and a disturbed copy, compiled."""
    before, static.BACKEND = static.BACKEND, "eager"
    target = network("llama", 1, layers=1)
    yield pair_in_mode(LoadedPair(name="p", target=target, draft=nearly(target, 2)), "compile")
    static.BACKEND = before


def ragged(model: LoadedModel, new: int) -> tuple[StaticCache, Tensor, Tensor]:
    """A cache of rows of 3, 7 and 12 tokens, new tokens for them, and the logits of an eager forward over those."""
    assert model.static is not None
    cache = model.static.new_cache(batch_size=3, tokens=40)
    tokens = torch.randint(0, 40, (3, 20), generator=torch.Generator().manual_seed(new))
    prefill(model.model, cache, tokens[:, :14])
    fed = torch.stack([tokens[row, start : start + new] for row, start in enumerate(LENGTHS)])
    cache.set_lengths(LENGTHS)
    expected = prefill(model.model, cache, fed)
    cache.set_lengths(LENGTHS)
    return cache, fed, expected


@pytest.mark.parametrize(("family", "how"), COMPILED)
def test_every_family_is_one_graph_with_the_eager_logits(
    family: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static, "BACKEND", how)
    layers = 2 if "gemma" in family else 1  # of two kinds, or all alike
    model = in_mode(network(family, 1, layers), "compile")
    cache, fed, expected = ragged(model, 3)
    before = compiled_so_far()
    for _ in range(2):
        torch.testing.assert_close(forward(model.model, cache, fed), expected, rtol=0, atol=TOLERANCE)
        assert cache.lengths == [6, 10, 15]
        cache.set_lengths(LENGTHS)
    assert compiled_so_far().since(before).count == 1


@pytest.mark.usefixtures("uncompiled")
def test_the_first_layers_draft_in_the_mode_of_their_target(tiny_model: Make) -> None:
    cut = first_layers(in_mode(tiny_model(vocabulary=40), "compile"), 1)
    assert cut.mode == "compile"
    assert in_mode(cut, "compile") is cut
    assert cut.static is not None
    assert cut.static.model is cut.model
    cache, fed, expected = ragged(cut, 3)
    torch.testing.assert_close(forward(cut.model, cache, fed), expected, rtol=0, atol=TOLERANCE)


class NoReadBack(TorchDispatchMode):
    """Fails where a tensor's value, or a size that depends on one, comes to the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        read = name in ("_local_scalar_dense", "item", "equal", "nonzero", "masked_select", "_unique2", "is_nonzero")
        if name in ("index", "index_put", "index_put_", "_unsafe_index"):
            read = any(index is not None and index.dtype == torch.bool for index in args[1])
        assert not read, f"read back by {func}"
        return func(*args, **(kwargs or {}))


def test_a_read_back_would_be_seen() -> None:
    values = torch.ones(2)
    for read in (values.max().item, lambda: values[values > 0], values.nonzero, lambda: bool(values[0] > 0)):
        with pytest.raises(AssertionError, match="read back"), NoReadBack():
            read()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_step_of_every_family_reads_nothing_back(family: str) -> None:
    model = in_mode(network(family, 1), "compile")
    assert model.static is not None
    cache, fed, expected = ragged(model, 3)
    found = model.static.run(model.model, cache, fed, 0, is_plain=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
    ((_, shape),) = cache.buffers.shapes.items()
    with torch.inference_mode(), NoReadBack():
        model.static._step(*shape.arguments)


def pointers(cache: StaticCache) -> dict[Any, list[int]]:
    """Where everything lies that a forward reads or writes, by shape."""
    return {
        key: [t.data_ptr() for t in tree_leaves(shape.arguments) if isinstance(t, Tensor)]
        for key, shape in cache.buffers.shapes.items()
    }


def test_twenty_rounds_compile_nothing_and_move_nothing(
    pair: LoadedPair, tiny_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever other classes of models are loaded meanwhile."""
    caches: list[StaticCache] = []
    real = StaticForward.new_cache

    def kept(self: StaticForward, **options: Any) -> StaticCache:
        caches.append(real(self, **options))
        return caches[-1]

    monkeypatch.setattr(StaticForward, "new_cache", kept)
    expected = plain(pair_in_mode(pair, "eager").target)
    decoder = decoder_of(pair.target, pair.draft_model)
    decoder.compile(batch_size=3, prompt_tokens=17, gamma=1, max_new_tokens=NEW)
    places, rounds = [pointers(cache) for cache in caches], 0
    caches.clear()
    another: type[Any] = type("Another", (LlamaForCausalLM,), {})
    as_class(tiny_model(layers=1), another)
    with no_compilation("decoding"):
        for _ in range(3):
            found = decoder.run(batch_of(PROMPTS, NEW), gamma=1)
            rounds += len(found.times)
            assert [pointers(cache) for cache in caches] == places
            assert found.texts == expected
            caches.clear()
    assert rounds >= 20


def test_arms_end_to_end_are_compiled_before_they_are_timed(pair: LoadedPair) -> None:
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    runs = []
    for one in (pair_in_mode(pair, "eager"), pair):
        bench = EndToEnd(one, GREEDY, max_new_tokens=NEW, seed=0)
        for arm in ("plain", "generate", "speculate:1"):
            bench.warm_up(arm, prompts)
            found = bench.run([arm], prompts, prompt_numbers=range(3), repetition=0)
            runs.append([request.tokens for request in found[arm].requests])
    assert all(tokens == runs[0] for tokens in runs)


def test_an_arm_that_is_compiled_while_it_is_timed_fails(tiny_model: Make) -> None:
    model = in_mode(tiny_model(layers=1), "compile")
    bench = EndToEnd(LoadedPair(name="p", target=model, draft=model), GREEDY, max_new_tokens=2, seed=0)
    with pytest.raises(
        CompileInsideError, match=r"^compile-inside: 1 graph compiled .* while plain, 1 prompts, was timed"
    ):
        bench.run(["plain"], [[1, 2, 3]], prompt_numbers=[0], repetition=0)


def test_graphs_are_counted_whoever_compiles_them() -> None:
    def add(tensor: Tensor) -> Tensor:
        return tensor + 1

    compiled = torch.compile(add, backend="eager", dynamic=False)
    before = compiled_so_far()
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    with no_compilation("nothing new"):
        compiled(torch.ones(2))
    words = "^compile-inside: 1 graph compiled or captured in .* s while it was timed; "
    with pytest.raises(CompileInsideError, match=words), no_compilation("it"):
        compiled(torch.ones(3))
    static._OURS.count += 2
    static._OURS.seconds += 1.5
    found = compiled_so_far().since(before)
    assert (found.count, found.seconds) == (4, 1.5)


@pytest.mark.usefixtures("uncompiled")
def test_cost_follows_the_context(tiny_model: Make) -> None:
    """The smallest bucket that holds what was reserved; a forward that reaches further runs over the next."""
    model = in_mode(tiny_model(), "compile")
    cache = model.new_cache(batch_size=2, tokens=200)
    assert isinstance(cache, StaticCache)
    assert (cache.capacity, cache.bucket) == (256, 256)
    text = torch.randint(0, 11, (2, 140), generator=torch.Generator().manual_seed(0))
    expected = prefill(model.model, cache, text)
    for reserved, start, bucket in ((60, 50, 64), (64, 60, 128), (100, 62, 128), (65, 125, 192), (200, 10, 256)):
        cache.reserve(reserved)
        cache.set_lengths(start)
        found = forward(model.model, cache, text[:, start : start + 5])
        torch.testing.assert_close(found, expected[:, start : start + 5], rtol=0, atol=TOLERANCE)
        assert (5, 0, bucket) in cache.buffers.shapes
    assert len(cache.buffers.shapes) == 4
    assert [shape.arguments[5][0].shape[2] for shape in cache.buffers.shapes.values()] == [64, 128, 192, 256]
    assert len({shape.arguments[5][0].data_ptr() for shape in cache.buffers.shapes.values()}) == 1


@pytest.mark.usefixtures("uncompiled")
def test_a_cell_runs_over_its_bucket_and_notes_it(
    tiny_model: Make, memory_journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of (target or draft, new tokens, logits kept), each over the bucket of each context."""
    used, real = set(), StaticBuffers.shape

    def watched(self: StaticBuffers, *key: int, **options: bool) -> Any:
        used.add(({2: "target", 1: "draft"}[len(self.layers)], *key))
        return real(self, *key, **options)

    pair = LoadedPair(name="p", target=tiny_model(), draft=tiny_model(seed=1, layers=1))
    compiled = pair_in_mode(pair, "compile")
    monkeypatch.setattr(StaticBuffers, "shape", watched)
    measured(compiled, [cell(2, 62), cell(2, 130)], memory_journal, [1, 2])
    forwards = [*(("target", new, 0) for new in (1, 2, 3)), ("draft", 1, 0), ("draft", 2, 1)]
    assert used == {(*one, bucket) for one in forwards for bucket in (128, 192)}
    for line in memory_journal.lines:
        assert line.status == "ok"
        bucket = 128 if line.cell_id == "2-62" else 192
        assert [line.notes[name] for name in ("bucket", "graphs_built", "build_s")] == [bucket, 0, 0.0]


@pytest.mark.usefixtures("uncompiled")
def test_buffers_go_to_the_next_cache_of_their_size(tiny_model: Make) -> None:
    model = in_mode(tiny_model(), "compile")
    token = torch.ones(2, 1, dtype=torch.long)

    def used(batch_size: int = 2, tokens: int = 10) -> StaticCache:
        cache = model.new_cache(batch_size=batch_size, tokens=tokens)
        assert isinstance(cache, StaticCache)
        forward(model.model, cache, token[:batch_size])
        return cache

    first = used()
    expected, where = first.buffers.layers[0].both[0][:, :, :1].clone(), pointers(first)
    first.buffers.layers[0].both[1].fill_(torch.nan)
    other = used()
    assert pointers(other) != where, "the first is still in use"
    del first
    again = used()
    assert pointers(again) == where
    torch.testing.assert_close(again.buffers.layers[0].both[0][:, :, :1], expected, rtol=0, atol=0)
    assert bool((again.buffers.layers[0].both[1][:, :, 1:] == 0).all()), "what lay there is gone"
    del again, other
    larger = used(tokens=100)
    assert model.static is not None
    assert len(model.static._idle) == 2
    del larger
    used(batch_size=1)
    assert [buffers.batch_size for buffers in model.static._idle] == [1]
    model.release()
    assert model.static._idle == []


@pytest.mark.parametrize("draft", ["embedded", "ngram", {"layers": 2}])
def test_cuda_graphs_are_refused_where_they_cannot_be(draft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded, where the configuration tells."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pair = PairConfig.model_validate({"name": "x", "target": {"model": "no/where"}, "draft": draft})
    with pytest.raises(
        ValueError, match=r"^pair 'x' target: mode cuda_graph: expected a CUDA device, got cpu .*: eager"
    ):
        refuse_mode_of(pair, "cuda_graph")
    refuse_mode_of(pair, "compile")
    first = torch.device("cuda", 0)
    with pytest.raises(ValueError, match="expected one device, got a model spread over several by device_map"):
        refuse_mode("cuda_graph", first, "m", spread=True)
    refuse_mode("cuda_graph", first, "m")


class Branching(LlamaForCausalLM):
    """Looks at a value, as no graph can."""

    def forward(self, input_ids: Any = None, cache: Any = None, **options: Any) -> Any:
        assert int(input_ids.max()) >= 0
        return super().forward(input_ids=input_ids, **{CACHE_ARGUMENT: cache}, **options)


class Counting(LlamaForCausalLM):
    """Places tokens by the cache's length, whatever positions it is given."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, cache: Any = None, **options: Any) -> Any:
        if cache is not None:
            position_ids = cache.get_seq_length() + torch.arange(input_ids.shape[1])[None]
            options[CACHE_ARGUMENT] = cache
        return super().forward(input_ids=input_ids, position_ids=position_ids, **options)


def as_class(model: LoadedModel, kind: type[Any]) -> LoadedModel:
    network: Any = kind(model.model.config).double().eval().requires_grad_(False)
    network.load_state_dict(model.model.state_dict())
    return replace(model, model=network)


def test_a_model_that_is_not_one_graph_is_told_in_one_line(tiny_model: Make) -> None:
    model = in_mode(as_class(tiny_model(layers=1), Branching), "compile")
    cache = model.new_cache(batch_size=1, tokens=10)
    with pytest.raises(ValueError, match=r"^tiny: Branching cannot be compiled as one graph \(.*\); use mode: eager$"):
        forward(model.model, cache, torch.zeros(1, 1, dtype=torch.long))


def test_a_model_that_computes_something_else_over_static_shapes_is_refused(tiny_model: Make) -> None:
    model = as_class(tiny_model(layers=1), Counting)
    with pytest.raises(
        ValueError, match=r"^tiny: Counting computes other logits over static shapes than eagerly .* use mode: eager$"
    ):
        in_mode(model, "compile")
