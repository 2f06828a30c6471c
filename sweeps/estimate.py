"""How long a sweep should take, before anything is measured. No torch.

A forward of n tokens takes

    layers · launch_s + max(weight bytes / bandwidth, 2 · parameters · n / peak)

on an assumed machine, which is stated with the figure: it is an estimate to plan by, and no part of any result. Cells
that do not fit by estimate (`specgauge.sweeps.memory`) take none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import check_context, check_prompt_tokens
from specgauge.configs.variants import GridPoint
from specgauge.model.arms import OF_PLAIN, PREFILL_BLOCKS
from specgauge.sweeps.memory import PROMPT_TOKENS, decoded_gammas, over_memory
from specgauge.sweeps.model_sizes import ModelSize, PairSizes, has_gpu
from specgauge.sweeps.plan import chains, decoded_points, decoded_tokens, measured_points, planned_pairs

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config

START_S, READ_BYTES_PER_S = 5.0, 500e6
"""Python, torch and transformers; a disk and the move to a device."""
LEAST_SEARCHED = 4
"""γ that a search times at least: the smallest, the best and its neighbours."""

Seconds = Callable[[int], float]
"""Seconds a forward of so many tokens should take."""


@dataclass(frozen=True, kw_only=True)
class AssumedMachine:
    """What time estimates assume of a device."""

    name: str
    bytes_per_s: float
    flops_per_s: float
    launch_s: float
    """Host time a layer's launches take."""

    @property
    def basis(self) -> str:
        """The assumption in words."""
        return (
            f"{self.name} at {self.bytes_per_s / 1e9:g} GB/s, {self.flops_per_s / 1e9:g} GFLOP/s "
            f"and {self.launch_s * 1e3:g} ms a layer"
        )

    def forward_s(self, size: ModelSize, tokens: int) -> float:
        """Seconds a forward of `tokens` tokens, all rows together, should take; the model's size is known."""
        assert size.weight_bytes is not None
        assert size.parameters is not None
        assert size.layers is not None
        memory_s = size.weight_bytes / self.bytes_per_s
        compute_s = 2 * size.parameters * tokens / self.flops_per_s
        return size.layers * self.launch_s + max(memory_s, compute_s)


def assumed_machine(spec: ModelConfig, threads: int | None) -> AssumedMachine:
    """What a model's time is estimated on: a GPU where it is asked for or the driver shows one, else this CPU."""
    if spec.device.startswith("cuda") or (spec.device == "auto" and has_gpu()):
        return AssumedMachine(name="a GPU", bytes_per_s=1e12, flops_per_s=50e12, launch_s=0.5e-3)
    cores = threads or os.cpu_count() or 1
    return AssumedMachine(
        name=f"{cores} CPU core{'s' if cores > 1 else ''}", bytes_per_s=10e9, flops_per_s=60e9 * cores, launch_s=0.7e-3
    )


def check_contexts(config: Config, sizes: Mapping[str, PairSizes]) -> None:
    """Refuse contexts and lengths of prompts that leave no room in a model whose limit its files tell.

    Raises:
        ValueError: the largest context that fits and why.
    """
    gamma_max = max(config.grid.gamma)
    for pair in planned_pairs(config):
        context = max(point.context for point in measured_points(config, pair.name))
        decoded = [point.context for point in decoded_points(config, pair.name)]
        for role, size in (("target", sizes[pair.name].target), ("draft", sizes[pair.name].draft)):
            limit, name = None if size is None else size.max_context, f"pair {pair.name!r} {role}"
            check_context(name, context=context, tokens=gamma_max + 1, max_context=limit)
            check_prompt_tokens(name, config.workload, limit)
            if decoded and role == "target":
                tokens = decoded_tokens(config)
                check_context(name, context=max(decoded), tokens=tokens, max_context=limit, section="validate")


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """Seconds for a pair."""

    loading_s: float
    """From the command to the first forward, its weights read."""
    timing_s: tuple[float, float]
    """The least, when every arm is known well enough after its least number of blocks, and the most, when none is."""
    acceptance_s: float
    validation_s: float
    basis: str


def time_estimate(config: Config, pair: PairConfig, sizes: PairSizes, prompts: int) -> TimeEstimate | None:
    """The seconds a pair should take with `prompts` prompts, but for cells that `limits.memory` leaves out.

    None where a model's size is unknown.
    """
    target, draft = sizes.target, sizes.draft
    if target is None or draft is None or any(None in (size.weight_bytes, size.layers) for size in (target, draft)):
        return None
    points = [p for p in measured_points(config, pair.name) if over_memory(config, sizes, p) is None]
    specs = (pair.target, pair.draft if isinstance(pair.draft, ModelConfig) else pair.target)
    machines = [assumed_machine(spec, config.threads_of(pair)) for spec in specs]
    target_s, draft_s = partial(machines[0].forward_s, target), partial(machines[1].forward_s, draft)
    timing = [
        _timing_s(config, rows, [p.context for p in own], target_s, draft_s, pair.drafts_with_model)
        for rows, own in groupby(points, key=lambda point: point.batch_size)
    ]
    weights = sizes.weight_bytes or 0
    return TimeEstimate(
        loading_s=START_S + weights / READ_BYTES_PER_S,
        timing_s=(sum(least for least, _ in timing), sum(most for _, most in timing)),
        acceptance_s=_acceptance_s(config, prompts, target_s, draft_s),
        validation_s=_validation_s(config, points, prompts, target_s, draft_s),
        basis="; ".join(dict.fromkeys(machine.basis for machine in machines)),
    )


def _timing_s(
    config: Config, rows: int, contexts: Sequence[int], target_s: Seconds, draft_s: Seconds, drafts_with_model: bool
) -> tuple[float, float]:
    """(least, most) seconds of the timing of one batch size; untimed forwards between samples are counted."""
    grid, precision = config.grid, config.precision
    gamma_max = max(grid.gamma)
    drafting = [target_s(rows) + (gamma_max + 1) * draft_s(rows), target_s(rows) + draft_s(2 * rows)]
    base = [2 * target_s(rows), *(drafting if drafts_with_model else [gamma_max * target_s(rows)])]
    verify = [target_s(rows * (gamma + 1)) + draft_s(rows) for gamma in grid.gamma]
    fewest = LEAST_SEARCHED if grid.is_searched else len(verify)
    samples = len(chains(config)) * len(contexts) * precision.block_samples
    prefill_s = len(chains(config)) * sum(target_s(rows * s) + draft_s(rows * s) for s in contexts)
    least, most = (
        blocks * samples * sum(base + verify[:gammas]) + min(blocks, PREFILL_BLOCKS) * prefill_s
        for blocks, gammas in ((precision.min_blocks, fewest), (precision.max_blocks, len(verify)))
    )
    own_s = precision.max_cell_seconds
    cells_s = None if own_s is None else own_s * len(chains(config)) * len(contexts)
    limits_s = [limit for limit in (precision.max_seconds, cells_s) if limit is not None]
    return least, max(least, min([most, *limits_s]))


def _acceptance_s(config: Config, prompts: int, target_s: Seconds, draft_s: Seconds) -> float:
    """Seconds to write the texts and to pass over them, for every sampling setting and length of prompts."""
    workload = config.workload
    rows = min(config.acceptance.batch_size, prompts)
    batches = -(-prompts // rows) * workload.repetitions
    total_s = 0.0
    for length in workload.prompt_tokens or (PROMPT_TOKENS,):
        tokens = rows * (length + workload.max_new_tokens)
        writing_s = target_s(rows * length) + workload.max_new_tokens * target_s(rows)
        total_s += batches * (writing_s + target_s(tokens) + draft_s(tokens))
    return len(config.sampling) * total_s


def _validation_s(
    config: Config, points: Sequence[GridPoint], prompts: int, target_s: Seconds, draft_s: Seconds
) -> float:
    """Seconds of decoding end to end: every block, as far as the limit goes, but the first one of every cell anyway.

    A round is taken to commit 1 + γ / 2 tokens, an adaptive policy to draft as the middle γ of the grid does;
    teacher-forcing its texts once is counted.
    """
    asked = config.validation
    if asked is None:
        return 0.0
    gammas = decoded_gammas(config, asked)
    gammas += (config.grid.gamma[len(config.grid.gamma) // 2],) * len(asked.policies or ())
    new, limit = decoded_tokens(config), prompts if asked.prompts is None else min(prompts, asked.prompts)
    first_s = all_s = 0.0
    for point in filter(config.is_decoded, points):
        rows, context, whole = point.batch_size, point.context, point.batch_size * (point.context + new)
        prefill_s = target_s(rows * context)
        blocks = -(-limit // rows) * asked.repetitions
        plain_s = block_s = prefill_s + new * target_s(rows)
        for gamma in gammas:
            round_s = gamma * draft_s(rows) + target_s(rows * (gamma + 1))
            block_s += prefill_s + draft_s(rows * context) + new / (1 + gamma / 2) * round_s
            block_s += target_s(whole) + draft_s(whole)
        with_all = blocks if asked.baseline_blocks is None else min(blocks, asked.baseline_blocks)
        first_s += len(config.sampling) * (block_s + len(OF_PLAIN) * plain_s)
        all_s += len(config.sampling) * (blocks * block_s + with_all * len(OF_PLAIN) * plain_s)
    return all_s if asked.max_seconds is None else max(first_s, min(all_s, asked.max_seconds))
