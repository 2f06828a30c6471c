"""What a pair should take in memory, stage by stage, and which cells do not fit, before anything is loaded. No torch.

    weights                 parameters · bytes, of quantised ones what they are packed to
    keys and values         2 · layers · heads · width · slots · rows · bytes of each model, slots in steps of 64
    activations             tokens of a forward · the most numbers of a token that a layer holds at once · bytes
    logits                  rows · positions · vocabulary · 4 bytes, as many copies as exist at once

A stage's activations and logits do not exist at once; the larger counts. Libraries of matrix products keep 32 MiB. The
interpreter and tokenizers come on top. Cells over `limits.memory` are skipped, and those that no device here could
hold: over `SURE` times what it has, since the estimate is mostly right to 10 %, and rather too low.
Whatever lies between is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.configs.pairs import ModelConfig
from specgauge.model.arms import BASELINES, GENERATE
from specgauge.sweeps.model_sizes import ModelSize, PairSizes, is_on_cpu
from specgauge.sweeps.plan import Cell, decoded_points, decoded_tokens, plan_cells
from specgauge.sweeps.run.progress import size_text

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config, ValidateConfig
    from specgauge.configs.variants import GridPoint

SURE = 1.1
"""Of what a device has: an estimate above it leaves a cell out."""
PREFILL_TOKENS = 16384
"""Tokens of one prefill in timing, all rows together; 2048 of each row where texts are written."""
TEXT_CHUNK = 2048
LIBRARY_BYTES = 32 << 20
"""What the libraries of matrix products keep for themselves once a model has run, as measured on a CPU."""
SLOTS = 64
"""Steps in which a cache grows."""
LOGIT_COPIES = 4
"""Of the target's logits where drafts are verified: logits, and three on the way to probabilities."""
PASSED_COPIES = 11
"""Where acceptance is recorded: both models' logits, probabilities, log-probabilities, and products in float64."""
PROMPT_TOKENS = 128
"""Tokens a prompt is taken to have, where only its text is known."""
RECOMMENDED_GAMMAS = 3
"""γ decoded end to end where the recommended one and its neighbours are."""
ALONE = (
    "acceptance alone, one model after the other: both do not fit together by estimate, so nothing is timed or decoded "
    "end to end"
)
"""What is measured of a pair whose models fit one at a time."""
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """What one stage needs beside the weights, in bytes; what no file tells is not counted."""

    name: str
    kv_bytes: int
    working_bytes: int
    """The larger of activations and logits."""

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.kv_bytes + self.working_bytes


def kv_bytes(config: Config, sizes: PairSizes, cell: Cell | GridPoint) -> int | None:
    """Bytes of both models' keys and values in a cell or point; None where a size is unknown."""
    return sizes.kv_bytes(cell.batch_size, slots(cell.context + max(config.grid.gamma) + 1))


def slots(tokens: int) -> int:
    """Places of a cache that holds so many tokens."""
    return -(-tokens // SLOTS) * SLOTS


def timing_memory(config: Config, sizes: PairSizes, cell: Cell | GridPoint) -> StageMemory:
    """Of the timing of one cell."""
    tokens = cell.context + max(config.grid.gamma) + 1
    models = [size for size in (sizes.target, sizes.draft) if size is not None]
    fed = min(PREFILL_TOKENS, cell.batch_size * tokens)
    verified = cell.batch_size * (max(config.grid.gamma) + 1)
    return StageMemory(
        name="timing",
        kv_bytes=sum(size.kv_cache_bytes(cell.batch_size, slots(tokens)) or 0 for size in models),
        working_bytes=max(
            *(size.activation_bytes(fed) for size in models), _logits(sizes.target, verified, LOGIT_COPIES), 0
        ),
    )


def stages(config: Config, sizes: PairSizes, cells: Sequence[Cell]) -> Iterator[StageMemory]:
    """Every stage of a pair, the timing of its largest cell last."""
    models = [size for size in (sizes.target, sizes.draft) if size is not None]
    own, workload = config.acceptance, config.workload
    prompt = max(workload.prompt_tokens or (PROMPT_TOKENS,))
    whole = slots(prompt + workload.max_new_tokens)
    passed = own.batch_size * min(own.chunk, workload.max_new_tokens)
    widest = max(models, key=lambda size: size.vocabulary or 0, default=None)
    yield StageMemory(
        name="acceptance",
        kv_bytes=sum(size.kv_cache_bytes(own.batch_size, whole) or 0 for size in models),
        working_bytes=max(
            *(size.activation_bytes(own.batch_size * min(TEXT_CHUNK, prompt)) for size in models),
            _logits(widest, passed, PASSED_COPIES),
            0,
        ),
    )
    for cell in cells:
        yield timing_memory(config, sizes, cell)


def _logits(size: ModelSize | None, positions: int, copies: int) -> int:
    """Bytes of logits in float32, beside those in the model's own type where that is another."""
    if size is None or size.vocabulary is None:
        return 0
    return positions * size.vocabulary * (4 * copies + (0 if size.dtype == "float32" else 2))


def memory_bytes(config: Config, sizes: PairSizes, cells: Sequence[Cell]) -> dict[str, int | None]:
    """Bytes by part at the stage of a pair that needs most.

    The parts: `weights`, `keys and values`, `activations and logits`, `buffers of libraries`. The first two are None
    where a model's size is unknown.
    """
    largest = max(stages(config, sizes, cells), key=lambda stage: stage.total_bytes)
    is_known = all(kv_bytes(config, sizes, cell) is not None for cell in cells)
    return {
        "weights": sizes.weight_bytes,
        "keys and values": largest.kv_bytes if is_known else None,
        "activations and logits": largest.working_bytes,
        "buffers of libraries": LIBRARY_BYTES,
    }


def over_memory(config: Config, sizes: PairSizes, cell: Cell | GridPoint) -> str | None:
    """Why a cell should not fit, with the figures and the remedy; None where it may, or nothing is known."""
    limit, weights, kv = config.limits.memory, sizes.weight_bytes, kv_bytes(config, sizes, cell)
    if weights is None or kv is None:
        return None
    if limit is None or weights + kv <= limit:
        return over_device(config, sizes, cell)
    remedy = "load the models in a smaller dtype" if weights > limit else "lower grid.batch_size or grid.context"
    return (
        f"needs {size_text(weights + kv)} by estimate (weights {size_text(weights)}, keys and values {size_text(kv)}), "
        f"limits.memory is {size_text(limit)}; raise it, or {remedy}"
    )


def nothing_fits(config: Config, sizes: Mapping[str, PairSizes]) -> str | None:
    """Where no cell of any pair fits, the first one and why; None where one may."""
    found: list[str] = []
    for cell in plan_cells(config):
        reason = over_memory(config, sizes[cell.pair], cell)
        if reason is None:
            return None
        found.append(f"pair {cell.pair}, batch size {cell.batch_size}, context {cell.context}: {reason}")
    return next(iter(found), None)


def over_what(config: Config, sizes: PairSizes, cell: Cell | GridPoint) -> str | None:
    """What a cell is over, in words; None where it is over nothing that is known."""
    reason = over_memory(config, sizes, cell)
    if reason is None:
        return None
    return "limits.memory" if over_device(config, sizes, cell) != reason else "what the device has"


def over_device(config: Config, sizes: PairSizes, cell: Cell | GridPoint) -> str | None:
    """Why no device here can hold a cell, sure by a margin; None where one may, or nothing is known.

    Nodes of a cluster have memory of their own, which is not this machine's.
    """
    if config.executor.kind != "local":
        return None
    pair = next(one for one in config.pairs if one.name == cell.pair)
    for device, held in _held(pair, sizes).items():
        has = memory_of(device)
        part = timing_memory(config, held, cell)
        weights = held.weight_bytes
        if has is None or weights is None or weights + part.total_bytes <= SURE * has:
            continue
        remedy = "load the models in a smaller dtype or quantised" if weights > SURE * has else "lower grid.batch_size"
        return (
            f"needs {size_text(weights + part.total_bytes)} by estimate (weights {size_text(weights)}, keys and values "
            f"{size_text(part.kv_bytes)}, activations {size_text(part.working_bytes)}), {device} has {size_text(has)}; "
            f"{remedy}"
        )
    return None


def fit_alone(config: Config, pair: PairConfig, sizes: PairSizes) -> bool:
    """Whether a pair's two models fit one at a time, and not together, by the estimate of their weights.

    Together they may take what `limits.memory` is, and `SURE` times what a device has.
    """
    if not isinstance(pair.draft, ModelConfig):
        return False
    specs = (pair.target, pair.draft)
    devices, weights = [_device_of(spec) for spec in specs], [_weights(sizes.target), _weights(sizes.draft)]
    limit = config.limits.memory
    both, alone = [(limit, sum(weights))], [(limit, max(weights))]
    if config.executor.kind == "local":
        for device in {device for device in devices if device is not None}:
            own = [one for one, place in zip(weights, devices, strict=True) if place == device]
            most = int(SURE * has) if (has := memory_of(device)) is not None else None
            both.append((most, sum(own)))
            alone.append((most, max(own)))
    return _is_over(both) and not _is_over(alone)


def _is_over(places: Iterable[tuple[int | None, int]]) -> bool:
    """Whether any place, as (the most it takes, what it is to hold), is overfull."""
    return any(most is not None and held > most for most, held in places)


def _weights(size: ModelSize | None) -> int:
    """Bytes of a model's weights; 0 where they are unknown."""
    return 0 if size is None else size.weight_bytes or 0


def _held(pair: PairConfig, sizes: PairSizes) -> Mapping[str, PairSizes]:
    """What lies on each device, as the sizes of a pair that is there alone; without models spread over several."""
    target = _device_of(pair.target)
    draft = _device_of(pair.draft) if isinstance(pair.draft, ModelConfig) else target
    if target == draft:
        return {} if target is None else {target: sizes}
    found: dict[str, PairSizes] = {}
    if target is not None:
        found[target] = PairSizes(target=sizes.target, draft=NOTHING)
    if draft is not None:
        found[draft] = PairSizes(target=NOTHING, draft=sizes.draft)
    return found


NOTHING = ModelSize(parameters=0, dtype="float32", layers=0, kv_heads=0, head_dim=0, vocabulary=0)
"""On a device that a model is not on."""


def _device_of(spec: ModelConfig) -> str | None:
    """Where a model will be; None where it is spread."""
    if spec.device_map is not None or spec.parallel is not None:
        return None
    if is_on_cpu(spec):
        return "cpu"
    return "cuda:0" if spec.device in ("auto", "cuda") else spec.device


def memory_of(device: str) -> int | None:
    """Bytes that a device has, used or not: of the host what its container may take, of a GPU what the driver says.

    Of several GPUs it is the largest, since what a process sees may be numbered otherwise. None where nothing tells.
    """
    if device != "cpu":
        return _gpu_bytes()
    lines = _read(Path("/proc/meminfo")).splitlines()
    total = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    limits = [int(text) for name in CGROUP_LIMITS if (text := _read(Path(name)).strip()).isdigit()]
    return min((*total, *limits), default=None)


@cache
def _gpu_bytes() -> int | None:
    """Of the largest GPU; asked of the driver once, since every cell of a grid is held against it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count))
        return max((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles), default=None)
    except Exception:  # no bindings, library, driver or permission
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def interleaved_bytes(config: Config, pair: PairConfig, sizes: PairSizes) -> int | None:
    """Bytes of the caches of all arms that are interleaved at the largest point, where each has caches of its own.

    None where nothing is decoded, arms are not interleaved (compiled, captured), or a size is unknown.
    """
    points = [point for point in decoded_points(config, pair.name) if over_memory(config, sizes, point) is None]
    if config.validation is None or not points or config.mode_of(pair) != "eager":
        return None
    arms = sum(arm != GENERATE for arm in BASELINES)
    arms += len(decoded_gammas(config, config.validation)) + len(config.validation.policies or ())
    own = [sizes.kv_bytes(point.batch_size, slots(point.context + decoded_tokens(config))) for point in points]
    known = [one for one in own if one is not None]
    return arms * max(known) if len(known) == len(own) else None


def decoded_gammas(config: Config, asked: ValidateConfig) -> tuple[int, ...]:
    """γ that are decoded end to end, or as many as there should be where the recommended ones are."""
    return config.grid.gamma[:RECOMMENDED_GAMMAS] if asked.gamma == "recommended" else asked.gamma
