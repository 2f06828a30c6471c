"""What a configuration would do, as text: cells, arms, memory and time. Measures nothing; no torch.

print(describe(config))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from specgauge.configs.pairs import LayersDraft, ModelConfig, NgramDraft
from specgauge.model.arms import BASELINES, OF_PLAIN, PLAIN, arm_names
from specgauge.model.search.candidates import CONFIDENCE, INDIFFERENCE
from specgauge.sweeps.estimate import (
    PairSizes,
    TimeEstimate,
    check_contexts,
    is_over_memory,
    kv_bytes,
    memory_bytes,
    time_estimate,
    turns_bytes,
    weight_bytes,
)
from specgauge.sweeps.model_sizes import NO_MODEL, ModelSize, Role, model_folder, read_model_size
from specgauge.sweeps.plan import Cell, chains, plan_cells, planned_pairs
from specgauge.sweeps.run.progress import duration_text, size_text

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config

SHOWN_CELLS = 60
UNKNOWN = "unknown until downloaded"
UNREAD = "unknown until loaded"


def describe(config: Config) -> str:
    """The cells, the arms of each, and estimates of memory and time, in lines.

    Raises:
        ValueError: a model directory is missing or damaged, the prompt file is missing, empty or of another form, or a
            context leaves no room for a round.
    """
    from specgauge.bench.prompts import read_prompts

    sizes = read_sizes(config)
    check_contexts(config, sizes)
    remarks: list[str] = []
    prompts = len(read_prompts(config.workload, remarks.append))
    return "\n".join(
        (
            *_cell_lines(config, sizes),
            "",
            *_arm_lines(config),
            *_acceptance_lines(config, prompts),
            *_verify_lines(config, prompts),
            *_limit_lines(config),
            *(f"  {remark}" for remark in remarks),
            "",
            *(line for pair in config.pairs for line in _pair_lines(config, pair, sizes[pair.name], prompts)),
        )
    )


def read_sizes(config: Config) -> dict[str, PairSizes]:
    """What the local files say of every pair's models, by the pair's name.

    Raises:
        ValueError: a model directory is missing or damaged; the pair is named.
    """
    return {pair.name: read_pair_sizes(pair) for pair in config.pairs}


def read_pair_sizes(pair: PairConfig) -> PairSizes:
    """What the local files say of a pair's models.

    Raises:
        ValueError: a model directory is missing or damaged; the pair is named.
    """
    try:
        return PairSizes(
            target=read_model_size(pair.target, role="target"),
            draft=_draft_size(pair),
            shares_weights=isinstance(pair.draft, LayersDraft),
        )
    except ValueError as error:
        raise ValueError(f"pair {pair.name!r}: {error}") from error


def _draft_size(pair: PairConfig) -> ModelSize | None:
    if isinstance(pair.draft, NgramDraft):
        return NO_MODEL
    if isinstance(pair.draft, LayersDraft):
        return read_model_size(pair.target, role="target", layers=pair.draft.layers)
    return read_model_size(pair.draft, role="draft")


def _cell_lines(config: Config, sizes: Mapping[str, PairSizes]) -> list[str]:
    cells = plan_cells(config)
    rows = [("pair", "mode", "chain", "batch size", "context", "keys and values", "")]
    rows += [
        (cell.pair, cell.mode, cell.chain, str(cell.batch_size), str(cell.context), size_text(kv), skipped)
        for cell in cells[:SHOWN_CELLS]
        for kv in [kv_bytes(config, sizes[cell.pair], cell)]
        for skipped in ["over limits.memory, skipped" if is_over_memory(config, sizes[cell.pair], cell) else ""]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  " + "  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)) for row in rows]
    more = [f"  … and {len(cells) - SHOWN_CELLS} more"] if len(cells) > SHOWN_CELLS else []
    return [
        f"{config.name}: {_count(len(cells), 'cell')}{_left_out(config, cells)}",
        *(line.rstrip() for line in table),
        *more,
    ]


def _left_out(config: Config, cells: Sequence[Cell]) -> str:
    """How many cells the rules of the grid leave out."""
    whole = sum(1 for _ in config.places()) * len(chains(config))
    return f", {whole - len(cells)} of {whole} left out by rules of the grid" if len(cells) < whole else ""


def _arm_lines(config: Config) -> list[str]:
    precision = config.precision
    limits = {"a pair and batch size": precision.max_seconds, "a cell": precision.max_cell_seconds}
    seconds = "".join(f", {limit:g} s for {what}" for what, limit in limits.items() if limit is not None)
    kinds: dict[bool, list[str]] = {}
    for pair in planned_pairs(config):
        kinds.setdefault(isinstance(pair.draft, NgramDraft), []).append(pair.name)
    return [
        *(
            f"arms of each cell{f' of {_listed(names)}' if len(kinds) > 1 else ''}: {_arms_text(config, lookups)}"
            for lookups, names in kinds.items()
        ),
        f"  {precision.min_blocks} to {precision.max_blocks} blocks of {_count(precision.block_samples, 'sample')}, "
        f"until ±{precision.relative_ci:.3g} of the {'best S' if config.grid.is_searched else 'median'} at "
        f"{precision.confidence:g}{seconds}",
        *_search_lines(config),
    ]


def _search_lines(config: Config) -> list[str]:
    """What a search for γ would do, where there is one."""
    if not config.grid.is_searched:
        return []
    lines = [
        f"  search, after acceptance: γ = {min(config.grid.gamma)}; γ that could be best if they took no longer to "
        "verify than the largest timed",
        "    below them; the neighbours of the best; the best beside its strongest challenger, until none can be over "
        f"{INDIFFERENCE:.0%} better at {CONFIDENCE:g}",
    ]
    if len(config.grid.context) > 2 or len(config.grid.batch_size) > 2:
        lines.append("    cells between the smallest and largest are only checked where they keep to those around them")
    return lines


def _arms_text(config: Config, lookups: bool) -> str:
    """The arms of a cell, where lookups draft or where a model does."""
    gammas = config.grid.gamma
    count = _count(len(arm_names(gammas, catches_up=not lookups)), "arm")
    verify = f"verify γ = {_listed(gammas)}"
    if config.grid.is_searched:
        count, verify = f"up to {count}", f"verify some γ of {_listed(gammas)}"
    if lookups:
        return f"{count}: decode; draft, {_count(max(gammas), 'lookup')}; {verify}; prefill and index of the context"
    return f"{count}: decode; draft, {_count(max(gammas), 'step')}; draft_catch_up; {verify}; prefill of both models"


def _acceptance_lines(config: Config, prompts: int) -> list[str]:
    workload = config.workload
    settings = _listed(sampling.name for sampling in config.sampling)
    lengths = workload.prompt_tokens
    brought = "" if lengths is None else f" at {_listed(lengths)} tokens"
    return [
        f"acceptance: {_count(prompts, 'prompt')}{brought} × {_count(workload.repetitions, 'text')} of up to "
        f"{workload.max_new_tokens} tokens under {settings} ({_count(len(chains(config)), 'chain')}); "
        f"draft sampling {_listed(config.draft_sampling)}; rule {_listed(config.acceptance_rule)}",
    ]


def _verify_lines(config: Config, prompts: int) -> list[str]:
    """What is decoded end to end, where anything is."""
    verify = config.validation
    if verify is None:
        return ["end to end: nothing is decoded; validate: {} checks the prediction"]
    sizes, contexts = verify.batch_size or config.grid.batch_size, verify.context or config.grid.context
    of_pairs = Counter(place.pair for place in config.places() if config.is_verified(place))
    each = {len(config.sampling) * of_pairs[pair.name] for pair in planned_pairs(config)}
    total = len(config.sampling) * of_pairs.total()
    share = f"{_count(total, 'cell')} of all pairs" if len(each) > 1 else f"{_count(each.pop(), 'cell')} of each pair"
    limit = prompts if verify.prompts is None else min(prompts, verify.prompts)
    gammas = "the recommended γ and its neighbours" if verify.gamma == "recommended" else f"γ = {_listed(verify.gamma)}"
    adaptive = "" if verify.policies is None else f" and policies ({_listed(verify.policies)})"
    beside = _listed(BASELINES)
    if verify.baseline_blocks is not None:
        first = "the first block" if verify.baseline_blocks == 1 else f"the first {verify.baseline_blocks} blocks"
        beside = f"{PLAIN}, in {first} of a cell also {_listed(OF_PLAIN)}"
    seconds = "" if verify.max_seconds is None else f", {verify.max_seconds:g} s for a pair"
    forced = "" if verify.acceptance is None else "; acceptance forced by coin: the texts are not the target's"
    return [
        f"end to end: {share} (batch size {_listed(sizes)}, context {_listed(contexts)}), "
        f"{gammas}{adaptive} beside {beside}",
        f"  {_count(limit, 'prompt')} × {_count(verify.repetitions, 'text')} of up to "
        f"{verify.max_new_tokens or config.workload.max_new_tokens} tokens{seconds}{forced}",
    ]


def _limit_lines(config: Config) -> list[str]:
    """What the run may spend, where that is limited."""
    limits = config.limits
    said = [
        *([f"{duration_text(limits.run_seconds)} of this run"] if limits.run_seconds is not None else []),
        *([f"{size_text(limits.memory)} of memory by estimate"] if limits.memory is not None else []),
    ]
    return [f"limits: {', '.join(said)}"] if said else []


def _pair_lines(config: Config, pair: PairConfig, sizes: PairSizes, prompts: int) -> list[str]:
    absent = [spec for role, spec in _models(pair) if not model_folder(spec, role)]
    unknown = UNKNOWN if absent else UNREAD
    cells = [cell for cell in plan_cells(config) if cell.pair == pair.name]
    if not cells:
        return [f"pair {pair.name}: not measured, the rules of the grid leave no cell of it"]
    lines = [
        f"pair {pair.name}{_how(pair)}",
        f"  target {pair.target.label}: {_model_text(sizes.target, unknown)}",
    ]
    if isinstance(pair.draft, NgramDraft):
        lines.append(f"  draft {pair.draft.label}: no model, no memory")
    else:
        shared = ", weights shared" if sizes.shares_weights else ""
        lines.append(f"  draft {pair.draft.label}: {_model_text(sizes.draft, unknown)}{shared}")
    cells = [cell for cell in cells if not is_over_memory(config, sizes, cell)]
    if not cells:
        return [*lines, "  not measured: every cell is over limits.memory"]
    parts = memory_bytes(config, sizes, cells)
    known = [part for part in parts.values() if part is not None]
    total = size_text(sum(known)) if len(known) == len(parts) else unknown
    shares = ", ".join(f"{name} {size_text(part)}" for name, part in parts.items() if part is not None)
    lines.append(
        f"  memory at the largest cell (estimate): {total}{f' ({shares}), besides the program' if shares else ''}"
    )
    lines += _turns_lines(config, pair, sizes)
    estimate = time_estimate(config, pair, sizes, prompts)
    if estimate is None:
        lines += [f"  time: {unknown}", *_fetch_lines(pair, absent)]
    else:
        lines.append(
            f"  time (estimate): {duration_text(estimate.least_s)} to {duration_text(estimate.most_s)}: timing "
            f"{duration_text(estimate.timing_least_s)} to {duration_text(estimate.timing_most_s)}, acceptance "
            f"{duration_text(estimate.acceptance_s)}{_verify_time(estimate)}, besides loading; assumed: "
            f"{estimate.basis}"
        )
    return lines


def _fetch_lines(pair: PairConfig, absent: Sequence[ModelConfig]) -> list[str]:
    """How to fetch the models of a pair that are not here; none where that would tell no size, as of GGUF files."""
    if not absent or any(spec.gguf_file for _, spec in _models(pair)):
        return []
    names = [f"{spec.model} --revision {spec.revision}" if spec.revision else spec.model for spec in absent]
    fetch = "; ".join(f"hf download {name}" for name in dict.fromkeys(names))
    return [f"  to know it before the run: {fetch}; then check again"]


def _turns_lines(config: Config, pair: PairConfig, sizes: PairSizes) -> list[str]:
    """What the arms that are decoded in turn need for caches, where they are."""
    caches, weights, limit = turns_bytes(config, pair, sizes), weight_bytes(sizes), config.limits.memory
    if caches is None or weights is None:
        return []
    if limit is not None and weights + caches > limit:
        how = f"would be {size_text(caches)}: over limits.memory, so its arms are decoded one after another"
    else:
        how = size_text(caches)
    return [f"  caches of all arms that are decoded in turn, at the largest cell (estimate): {how}"]


def _how(pair: PairConfig) -> str:
    """How a pair runs, where that is its own."""
    said = [
        *([f"mode {pair.mode}"] if pair.mode is not None else []),
        *([_count(pair.threads, "thread")] if pair.threads is not None else []),
    ]
    return f" ({', '.join(said)})" if said else ""


def _verify_time(estimate: TimeEstimate) -> str:
    return f", end to end {duration_text(estimate.verify_s)}" if estimate.verify_s else ""


def _models(pair: PairConfig) -> Iterator[tuple[Role, ModelConfig]]:
    """The models of a pair that have files of their own."""
    yield "target", pair.target
    if isinstance(pair.draft, ModelConfig):
        yield "draft", pair.draft


def _model_text(size: ModelSize | None, unknown: str) -> str:
    if size is None:
        return f"size {unknown}"
    parameters = f"parameters {unknown}" if size.parameters is None else f"{size.parameters / 1e6:.4g} M parameters"
    limit = "context limit not stated" if size.max_context is None else f"contexts up to {size.max_context}"
    return f"{parameters}, {size.dtype or 'dtype not stated'}, {_layers_text(size.layers)}, {limit}"


def _layers_text(layers: int | None) -> str:
    return "layers not stated" if layers is None else _count(layers, "layer")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(values: Iterable[object] | Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)
