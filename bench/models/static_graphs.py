"""Forwards over fixed shapes, compiled or captured once: their buffers, the traced step, and its replay.

A bucket is the smallest multiple of 64 slots that holds what a cell or a text needs, so that cost follows the context.
The keys and values of all its slots are read, and a mask hides those past a row's length.  Lengths, tokens, positions
and masks are buffers: lengths and tokens are copied in before the call, positions and masks are computed from them on
the device, inside.  Nothing is read back, and no buffer ever moves; rolling back changes lengths and nothing else.

    fixed = FixedForward(model, "compile", name="pair 'qwen' target", device=device)
    cache = fixed.new_cache(batch_size=2, tokens=200)          # 256 slots a row, lent until the cache is dropped
    logits = forward(model, cache, tokens)                     # `specgauge.bench.cache.cache.forward`

Shapes: B batch, N new tokens, S slots of a bucket, K key/value heads, D head size, V vocabulary.

The forward that is compiled or captured: a function of tensors, which computes positions and masks by itself.

    positions = length of the row + 0 … N−1        mask[b, n, s] = s ≤ positions[b, n]
    keys[b, :, positions[b, n]] = the new keys     attention reads the whole bucket under the mask

Nothing in it depends on a value, so nothing is read back to the host.

Shapes: B batch, N new tokens, S slots of a bucket, K key/value heads, D head size, V vocabulary.

The buffers of forwards over fixed shapes: keys and values, lengths, tokens, positions, masks; none of them moves.

Every (new tokens, kept logits, bucket) has its own tokens, positions and masks, and looks at the first slots of the
same keys and values.

Shapes: B batch, N new tokens, S slots of a bucket, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from specgauge.bench.cache.cache import (
    RowCache,
    RowLayer,
    cache_argument,
    capacity_bucket,
    layer_count,
    mask_argument,
    on_host,
    prefill,
    sliding_window,
)
from specgauge.bench.device import is_out_of_memory
from specgauge.bench.models.compilation import compilations, count_build
from specgauge.bench.models.load_errors import one_line
from specgauge.configs.fields import Mode


class _TracedLayer(CacheLayerMixin):
    """A layer's buffers as the model sees them inside a step: written at the rows' positions, read as a whole."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = keys, values, True
        self.index = positions.to(keys.device)
        self.rows = torch.arange(positions.shape[0], device=keys.device)[:, None]
        self.slots, self.new = keys.shape[2], positions.shape[1]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the buffers are there."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Scatter (B, K, N, D) states to the rows' positions; return the whole bucket."""
        assert self.keys is not None
        assert self.values is not None
        self.keys[self.rows, :, self.index] = key_states.transpose(1, 2)
        self.values[self.rows, :, self.index] = value_states.transpose(1, 2)
        return self.keys, self.values

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:  # noqa: ARG002
        """As if the bucket were full after this forward (only read by models that ignore position ids)."""
        return self.slots - self.new

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:  # noqa: ARG002
        """(slots, offset 0)."""
        return self.slots, 0

    def get_max_length(self) -> int:
        """The bucket in tokens (name used by newer releases)."""
        return self.slots

    def get_max_cache_shape(self) -> int:
        """The bucket in tokens (name used by older releases)."""
        return self.slots


def fixed_step(model: PreTrainedModel) -> Callable[..., Tensor]:
    """A model's step, from `specgauge.bench.models.static_graphs.Shape.arguments` to (B, keep or N, V) logits.

    Positions and masks are written into the buffers given.
    """
    argument, window = cache_argument(model), sliding_window(model)

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
        mask: Any = full
        if window is not None:
            sliding.copy_(full & (slots > positions[:, :, None] - window)[:, None])
            mask = mask_argument(model, full, sliding)
        layers: list[Any] = [_TracedLayer(k, v, positions) for k, v in zip(keys, values, strict=True)]
        output = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            **{argument: Cache(layers=layers)},
        )
        logits: Tensor = output.logits
        return logits

    return step


@dataclass(kw_only=True)
class Shape:
    """One forward's buffers, none of which ever moves."""

    tokens: Tensor
    """(B, N), copied in before the call."""
    lengths: Tensor
    """(B,), copied in before the call, shared by all shapes of a cache."""
    positions: Tensor
    """(B, N), computed inside."""
    full: Tensor
    """(B, 1, N, S), computed inside."""
    sliding: Tensor
    """The same for layers with a window; ``full`` itself where there are none."""
    keys: tuple[Tensor, ...]
    """(B, K, S, D) of each layer, a view of the cache's."""
    values: tuple[Tensor, ...]
    keep: int
    """Last positions whose logits are wanted; 0 for all."""
    is_built: bool = False
    graph: Any = None
    logits: Tensor | None = None
    """What the captured graph writes."""

    def arguments(self) -> tuple[Any, ...]:
        """What `specgauge.bench.models.static_graphs.fixed_step` takes."""
        return (
            self.tokens,
            self.lengths,
            self.positions,
            self.full,
            self.sliding,
            self.keys,
            self.values,
            self.keep,
        )


class Slots:
    """The buffers of one cache: every layer's keys and values, the lengths, and each shape that ran on them."""

    def __init__(self, *, layers: int, batch_size: int, capacity: int, device: torch.device) -> None:
        self.layers = [SlotLayer() for _ in range(layers)]
        self.batch_size, self.capacity = batch_size, capacity
        with torch.inference_mode(False):
            self.lengths = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.shapes: dict[tuple[int, int, int], Shape] = {}

    def clear(self) -> None:
        """Zero the keys and values: what a broken model left behind, NaN say, would reach through the mask."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.both[0].zero_()
                layer.both[1].zero_()

    def shape(self, new_tokens: int, keep: int, bucket: int, *, has_window: bool) -> Shape:
        """The buffers of a forward of ``new_tokens`` over the first ``bucket`` slots; the same ones every time."""
        key = new_tokens, keep, bucket
        if key not in self.shapes:
            device = self.lengths.device
            with torch.inference_mode(False):
                tokens = torch.zeros(self.batch_size, new_tokens, dtype=torch.long, device=device)
                full = torch.zeros(self.batch_size, 1, new_tokens, bucket, dtype=torch.bool, device=device)
                self.shapes[key] = Shape(
                    tokens=tokens,
                    lengths=self.lengths,
                    positions=torch.zeros_like(tokens),
                    full=full,
                    sliding=torch.zeros_like(full) if has_window else full,
                    keys=tuple(layer.both[0][:, :, :bucket] for layer in self.layers),
                    values=tuple(layer.both[1][:, :, :bucket] for layer in self.layers),
                    keep=keep,
                )
        return self.shapes[key]


class SlotLayer(RowLayer):
    """A layer whose buffers outlive their cache."""

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """(keys, values), once they are allocated."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """As ever, but as tensors that compiled code may write to in and out of inference mode alike."""
        with torch.inference_mode(False):
            super().lazy_initialization(key_states, value_states)


BACKEND = "inductor"
"""What torch.compile compiles with."""
_KEPT = 4
"""Sets of buffers kept for the next cache of their size."""
_MOST_SHAPES = 4096
"""Shapes that torch.compile may hold for one forward; each is compiled once, so its own limit of 8 means nothing."""
_CAPTURE_WARM_UPS = 3


class FixedCache(RowCache):
    """A cache on lent slots, whose forwards run over a fixed bucket of them."""

    def __init__(self, forwards: FixedForward, slots: Slots) -> None:
        super().__init__(layers=slots.layers, batch_size=slots.batch_size, capacity=slots.capacity)
        self.slots, self.bucket, self.fixed = slots, slots.capacity, forwards.run

    def reserve(self, tokens: int) -> None:
        """Run over the smallest bucket that holds ``tokens``; where a forward reaches further, over a larger one."""
        self.bucket = min(capacity_bucket(tokens), self.capacity)


class FixedForward:
    """One model's forwards in one mode."""

    def __init__(self, model: PreTrainedModel, mode: Mode, *, name: str, device: torch.device) -> None:
        """Take a model; ``name`` is who it is in messages, ``device`` where its inputs go."""
        assert mode in ("compile", "cuda_graph")
        self.model, self.mode, self.name, self.device = model, mode, name, device
        self._step = fixed_step(model)
        self._has_window = sliding_window(model) is not None
        self._idle: list[Slots] = []
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

    def new_cache(self, *, batch_size: int, tokens: int) -> FixedCache:
        """An empty cache, on slots that an earlier one of its size has left where there are any."""
        capacity = capacity_bucket(tokens)
        self._idle = [slots for slots in self._idle if slots.batch_size == batch_size][-_KEPT:]
        slots = next((one for one in self._idle if one.capacity == capacity), None)
        if slots is None:
            layers = layer_count(self.model)
            slots = Slots(layers=layers, batch_size=batch_size, capacity=capacity, device=self.device)
        else:
            self._idle.remove(slots)
            slots.clear()
        cache = FixedCache(self, slots)
        weakref.finalize(cache, self._idle_again, slots).atexit = False
        return cache

    def build(self, *, batch_size: int, tokens: int, new_tokens: Iterable[int], keep: int) -> None:
        """Compile or capture the forwards of so many new tokens each, on a cache of that size."""
        cache = self.new_cache(batch_size=batch_size, tokens=tokens)
        for new in new_tokens:
            cache.set_lengths(0)
            fed = torch.zeros(batch_size, new, dtype=torch.long, device=self.device)
            self.run(self.model, cache, fed, keep)

    def _idle_again(self, slots: Slots) -> None:
        self._idle.append(slots)

    def release(self) -> None:
        """Give up the slots that no cache uses, and what was captured on them."""
        self._idle.clear()

    @torch.inference_mode()
    def run(self, model: PreTrainedModel, cache: RowCache, tokens: Tensor, keep: int) -> Tensor:
        """`specgauge.bench.cache.cache.forward` of a cache of this model."""
        return self._run(model, cache, tokens, keep, self._compile if self.mode == "compile" else self._replay)

    @torch.inference_mode()
    def run_plainly(self, cache: RowCache, tokens: Tensor, keep: int = 0) -> Tensor:
        """The same computation over the same shapes, neither compiled nor captured: to check what it computes."""
        return self._run(self.model, cache, tokens, keep, self._plain)

    def _run(
        self, model: PreTrainedModel, cache: RowCache, tokens: Tensor, keep: int, execute: Callable[[Shape], Tensor]
    ) -> Tensor:
        assert model is self.model
        assert isinstance(cache, FixedCache)
        new, slots = tokens.shape[1], cache.slots
        cache.check_room(new)
        if not slots.layers[0].is_initialized:
            self._allocate(cache, tokens[:, :1])
        bucket = max(cache.bucket, capacity_bucket(max(cache.lengths) + new))
        shape = slots.shape(new, keep if keep < new else 0, bucket, has_window=self._has_window)
        shape.lengths.copy_(on_host(cache.lengths, self.device), non_blocking=True)
        shape.tokens.copy_(tokens)
        first = not shape.is_built and execute != self._plain
        logits = self._build(shape, execute) if first else self._built(shape, execute)
        cache.advance(new)
        return logits

    def _allocate(self, cache: FixedCache, tokens: Tensor) -> None:
        """Let a forward that counts for nothing allocate every layer's buffers, in whatever form the model has."""
        lengths = cache.lengths
        cache.set_lengths(0)
        prefill(self.model, cache, tokens, keep=1)
        cache.set_lengths(lengths)

    def _built(self, shape: Shape, execute: Callable[[Shape], Tensor]) -> Tensor:
        """Run what was compiled or captured before; should torch compile all the same, its seconds are counted."""
        before, start = compilations(), time.perf_counter()
        logits = execute(shape)
        if compilations() != before:
            count_build(captures=0, seconds=time.perf_counter() - start)
        return logits

    def _build(self, shape: Shape, execute: Callable[[Shape], Tensor]) -> Tensor:
        """The first run over a shape's buffers; raises ValueError, in one line, where the model cannot be built."""
        try:
            logits = self._built(shape, execute)
        except Exception as error:  # whatever torch raises means that this model does not run in this mode
            if is_out_of_memory(error):
                raise
            done = "compiled as one graph" if self.mode == "compile" else "captured as a CUDA graph"
            raise ValueError(
                f"{self.name}: {type(self.model).__name__} cannot be {done} ({type(error).__name__}: "
                f"{one_line(error)}); use mode: eager"
            ) from error
        shape.is_built = True
        return logits

    def _plain(self, shape: Shape) -> Tensor:
        return self._step(*shape.arguments())

    def _compile(self, shape: Shape) -> Tensor:
        logits: Tensor = self._compiled(*shape.arguments())
        return logits

    def _replay(self, shape: Shape) -> Tensor:
        """Logits are copied out: the next replay writes over the graph's own, and over those of its neighbours."""
        if shape.graph is None:
            self._capture(shape)
        assert shape.logits is not None
        shape.graph.replay()
        return shape.logits.clone()

    def _capture(self, shape: Shape) -> None:
        """Capture the step on a side stream, after runs that let libraries choose kernels and allocate.

        All graphs of a model share one memory pool, which is safe as they run one after the other and no result stays
        in it.  Running the step more than once writes the same keys to the same slots.
        """
        start = time.perf_counter()
        with torch.cuda.device(self.device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for _ in range(_CAPTURE_WARM_UPS):
                    self._step(*shape.arguments())
            torch.cuda.current_stream(self.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=side):
                shape.logits = self._step(*shape.arguments())
            torch.cuda.synchronize(self.device)
        shape.graph = graph
        count_build(captures=1, seconds=time.perf_counter() - start)
