"""Forwards over static shapes, compiled or captured once: their buffers, the traced step, its replay, the count.

    positions = length of the row + 0 … N−1        mask[b, n, s] = s ≤ positions[b, n]
    keys[b, :, positions[b, n]] = the new keys     attention reads the whole bucket under the mask

A bucket is the smallest multiple of 64 slots that holds what a cell or a text needs, so that cost follows the context.
Lengths and tokens are copied into buffers before the call, positions and masks are computed from them inside.  Nothing
is read back, and no buffer moves.  Every (new tokens, kept logits, bucket) has its own tokens, positions and masks,
over the first slots of the same keys and values.

    static = StaticForward(model, "compile", name="pair 'qwen' target", device=device)
    cache = static.new_cache(batch_size=2, tokens=200)         # 256 slots a row, lent until the cache is dropped
    logits = forward(model, cache, tokens)                     # `specgauge.bench.cache.cache.forward`

A compilation inside a timed region would be measured with it, so compilations are counted:

    with no_compilation("verify:3"):
        samples = [sample() for _ in range(5)]        # CompileInsideError where something was compiled meanwhile

Shapes: B batch, N new tokens, S slots of a bucket, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specgauge.bench.cache.adapter import (
    Masks,
    TracedLayer,
    cache_of,
    layer_count,
    layer_masks,
    run_model,
    sliding_window,
)
from specgauge.bench.cache.cache import RowCache, RowLayer, capacity_bucket, on_host, prefill
from specgauge.bench.models.load_errors import kind_and_line, refused
from specgauge.configs.fields import Mode

BACKEND = "inductor"
"""What torch.compile compiles with."""
_KEPT = 4
"""Sets of buffers kept for the next cache of their size."""
_MOST_SHAPES = 4096
"""Shapes that torch.compile may hold for one forward; each is compiled once, so its own limit of 8 means nothing."""
_CAPTURE_WARM_UPS = 3


@dataclass
class Compilation:
    """What was compiled and captured."""

    count: int = 0
    """Graphs compiled, whoever asked for them, and CUDA graphs captured; a recompilation counts again."""
    seconds: float = 0.0
    """Wall time of that, the compiled or captured forward's first run included."""

    def since(self, earlier: Compilation) -> Compilation:
        """What came after an earlier count."""
        return Compilation(count=self.count - earlier.count, seconds=self.seconds - earlier.seconds)


class CompileInsideError(RuntimeError):
    """Something was compiled or captured while a clock ran."""


_OURS = Compilation()
"""Captures, which torch does not count, and the seconds of captures and compilations."""


def torch_graphs() -> int:
    """Graphs that torch.compile has made in this process, recompilations included."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def compiled_so_far() -> Compilation:
    """What this process has compiled and captured."""
    return Compilation(count=torch_graphs() + _OURS.count, seconds=_OURS.seconds)


@contextmanager
def no_compilation(what: str) -> Iterator[None]:
    """Guard a timed block.

    Raises:
        CompileInsideError: the block compiled or captured anything; it says ``what`` was timed.
    """
    before = compiled_so_far()
    yield
    found = compiled_so_far().since(before)
    if found.count:
        raise CompileInsideError(
            f"compile-inside: {found.count} graph{'' if found.count == 1 else 's'} compiled or captured in "
            f"{found.seconds:.3g} s while {what} was timed; its times would hold the compiler's, so they are dropped"
        )


@dataclass(kw_only=True)
class StaticShape:
    """One forward's buffers, none of which ever moves."""

    tokens: Tensor
    """(B, N), copied in before the call."""
    arguments: tuple[Any, ...]
    """What a `static_step` takes."""
    is_compiled: bool = False
    graph: Any = None
    logits: Tensor | None = None
    """What the captured graph writes."""


def static_step(model: PreTrainedModel) -> Callable[..., Tensor]:
    """A model's step, from `StaticShape.arguments` to (B, keep or N, V) logits: a function of tensors alone.

    Tokens (B, N) and lengths (B,) are read, positions (B, N) and masks (B, 1, N, S) written into the buffers given;
    ``sliding``, for layers with a window, is ``full`` itself where there are none.  Keys and values are (B, K, S, D) of
    each layer; keep 0 keeps the logits of all positions.  Nothing in it depends on a value.
    """
    window = sliding_window(model)

    def step(
        tokens: Tensor,
        lengths: Tensor,
        positions: Tensor,
        full: Tensor,
        sliding: Tensor,
        keys: tuple[Tensor, ...],
        values: tuple[Tensor, ...],
        keep: int,
    ) -> Tensor:
        positions.copy_(lengths[:, None] + torch.arange(tokens.shape[1], device=tokens.device))
        slots = torch.arange(full.shape[-1], device=tokens.device)
        full.copy_((slots <= positions[:, :, None])[:, None])
        mask: Masks = full
        if window is not None:
            sliding.copy_(full & (slots > positions[:, :, None] - window)[:, None])
            mask = layer_masks(model, full, sliding)
        layers = cache_of([TracedLayer(k, v, positions) for k, v in zip(keys, values, strict=True)])
        return run_model(model, tokens, layers=layers, mask=mask, positions=positions, keep=keep)

    return step


class StaticLayer(RowLayer):
    """A layer whose buffers outlive their cache."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """As ever, but as tensors that compiled code may write to in and out of inference mode alike."""
        with torch.inference_mode(False):
            super().lazy_initialization(key_states, value_states)


class StaticBuffers:
    """The buffers of one cache: every layer's keys and values, the lengths, and each shape that ran on them."""

    def __init__(self, *, layers: int, batch_size: int, capacity: int, device: torch.device) -> None:
        self.layers = [StaticLayer() for _ in range(layers)]
        self.batch_size, self.capacity = batch_size, capacity
        with torch.inference_mode(False):
            self.lengths = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.shapes: dict[tuple[int, int, int], StaticShape] = {}

    def clear(self) -> None:
        """Zero the keys and values: what a broken model left behind, NaN say, would reach through the mask."""
        for layer in self.layers:
            if layer.is_initialized:
                for buffer in layer.both:
                    buffer.zero_()

    def shape(self, new_tokens: int, keep: int, bucket: int, *, has_window: bool) -> StaticShape:
        """The buffers of a forward of ``new_tokens`` over the first ``bucket`` slots; the same ones every time."""
        key = new_tokens, keep, bucket
        if key not in self.shapes:
            device = self.lengths.device
            with torch.inference_mode(False):
                tokens = torch.zeros(self.batch_size, new_tokens, dtype=torch.long, device=device)
                full = torch.zeros(self.batch_size, 1, new_tokens, bucket, dtype=torch.bool, device=device)
                positions, sliding = torch.zeros_like(tokens), torch.zeros_like(full) if has_window else full
                keys, values = (tuple(layer.both[index][:, :, :bucket] for layer in self.layers) for index in (0, 1))
                arguments = (tokens, self.lengths, positions, full, sliding, keys, values, keep)
                self.shapes[key] = StaticShape(tokens=tokens, arguments=arguments)
        return self.shapes[key]


class StaticCache(RowCache):
    """A cache on lent buffers, whose forwards run over a static bucket of their slots."""

    def __init__(self, forwards: StaticForward, buffers: StaticBuffers) -> None:
        super().__init__(
            layers=buffers.layers,
            batch_size=buffers.batch_size,
            capacity=buffers.capacity,
            window=forwards.window,
        )
        self.buffers, self.bucket, self.run_static = buffers, buffers.capacity, forwards.run

    def reserve(self, tokens: int) -> None:
        """Run over the smallest bucket that holds ``tokens``; where a forward reaches further, over a larger one."""
        self.bucket = min(capacity_bucket(tokens), self.capacity)


class StaticForward:
    """One model's forwards in one mode."""

    def __init__(self, model: PreTrainedModel, mode: Mode, *, name: str, device: torch.device) -> None:
        """Take a model; ``name`` is who it is in messages, ``device`` where its inputs go."""
        assert mode in ("compile", "cuda_graph")
        self.model, self.mode, self.name, self.device = model, mode, name, device
        self._step = static_step(model)
        self.window = sliding_window(model)
        self._idle: list[StaticBuffers] = []
        self._pool: Any = None
        if mode == "compile":
            import torch._dynamo.config as limits

            limits.recompile_limit = max(limits.recompile_limit, _MOST_SHAPES)
            limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, _MOST_SHAPES)
            # transformers keeps a table of every class loaded; without the filter another pair would mean recompiling
            unguarded: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_guard_on_globals_unsafe}
            self._compiled = torch.compile(
                self._step, fullgraph=True, dynamic=False, backend=BACKEND, options=unguarded
            )

    def new_cache(self, *, batch_size: int, tokens: int) -> StaticCache:
        """An empty cache, on buffers that an earlier one of its size has left where there are any."""
        capacity = capacity_bucket(tokens)
        self._idle[:] = [buffers for buffers in self._idle if buffers.batch_size == batch_size][-_KEPT:]
        buffers = next((one for one in self._idle if one.capacity == capacity), None)
        if buffers is None:
            layers = layer_count(self.model)
            buffers = StaticBuffers(layers=layers, batch_size=batch_size, capacity=capacity, device=self.device)
        else:
            self._idle.remove(buffers)
            buffers.clear()
        cache = StaticCache(self, buffers)
        weakref.finalize(cache, self._idle.append, buffers).atexit = False
        return cache

    def compile(self, *, batch_size: int, tokens: int, new_tokens: Iterable[int], keep: int) -> None:
        """Compile or capture the forwards of so many new tokens each, on a cache of that size."""
        cache = self.new_cache(batch_size=batch_size, tokens=tokens)
        for new in new_tokens:
            cache.set_lengths(0)
            fed = torch.zeros(batch_size, new, dtype=torch.long, device=self.device)
            self.run(self.model, cache, fed, keep)

    def release(self) -> None:
        """Give up the buffers that no cache uses, and what was captured on them."""
        self._idle.clear()

    @torch.inference_mode()
    def run(
        self, model: PreTrainedModel, cache: RowCache, tokens: Tensor, keep: int, *, is_plain: bool = False
    ) -> Tensor:
        """`specgauge.bench.cache.cache.forward` of a cache of this model.

        ``is_plain`` neither compiles nor captures the same computation over the same shapes: to check what it computes.
        """
        assert model is self.model
        assert isinstance(cache, StaticCache)
        new, buffers = tokens.shape[1], cache.buffers
        cache.check_room(new)
        if not buffers.layers[0].is_initialized:
            self._allocate(cache, tokens[:, :1])
        bucket = max(cache.bucket, capacity_bucket(max(cache.lengths) + new))
        shape = buffers.shape(new, keep if keep < new else 0, bucket, has_window=self.window is not None)
        buffers.lengths.copy_(on_host(cache.lengths, self.device), non_blocking=True)
        shape.tokens.copy_(tokens)
        if is_plain:
            logits = self._step(*shape.arguments)
        else:
            logits = self._counted(shape) if shape.is_compiled else self._first_run(shape)
        cache.advance(new)
        return logits

    def _allocate(self, cache: StaticCache, tokens: Tensor) -> None:
        """Let a forward that counts for nothing allocate every layer's buffers, in whatever form the model has."""
        lengths = cache.lengths
        cache.set_lengths(0)
        prefill(self.model, cache, tokens, keep=1)
        cache.set_lengths(lengths)

    def _counted(self, shape: StaticShape) -> Tensor:
        """Run what was compiled or captured before; should torch compile all the same, its seconds are counted."""
        before, start = torch_graphs(), time.perf_counter()
        logits = self._execute(shape)
        if torch_graphs() != before:
            _OURS.seconds += time.perf_counter() - start
        return logits

    def _first_run(self, shape: StaticShape) -> Tensor:
        """The first run over a shape's buffers; ValueError, in one line, where the model cannot run in the mode."""
        done = "compiled as one graph" if self.mode == "compile" else "captured as a CUDA graph"
        what = f"{self.name}: {type(self.model).__name__} cannot be {done}"
        with refused(lambda error: f"{what} ({kind_and_line(error)}); use mode: eager"):
            logits = self._counted(shape)
        shape.is_compiled = True
        return logits

    def _execute(self, shape: StaticShape) -> Tensor:
        """Run compiled code or replay a graph, whose next replay writes over its logits: they are copied out."""
        if self.mode == "compile":
            logits: Tensor = self._compiled(*shape.arguments)
            return logits
        if shape.graph is None:
            self._capture(shape)
        assert shape.logits is not None
        shape.graph.replay()
        return shape.logits.clone()

    def _capture(self, shape: StaticShape) -> None:
        """Capture the step on a side stream, after runs that let libraries choose kernels and allocate.

        All graphs of a model share one memory pool: they run one after the other, and no result stays in it.
        """
        start = time.perf_counter()
        with torch.cuda.device(self.device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for _ in range(_CAPTURE_WARM_UPS):
                    self._step(*shape.arguments)
            torch.cuda.current_stream(self.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=side):
                shape.logits = self._step(*shape.arguments)
            torch.cuda.synchronize(self.device)
        shape.graph = graph
        _OURS.count += 1
        _OURS.seconds += time.perf_counter() - start
