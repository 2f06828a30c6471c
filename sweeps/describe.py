"""What a configuration would do, as text: cells, arms, memory and time. Measures nothing; no torch."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from specgauge.configs.pairs import ModelConfig
from specgauge.model.arms import BASELINES, OF_PLAIN, PLAIN, arm_names
from specgauge.model.search.candidates import CONFIDENCE, EQUIVALENCE_MARGIN
from specgauge.sweeps.estimate import check_contexts, time_estimate
from specgauge.sweeps.memory import (
    ALONE,
    fit_alone,
    interleaved_bytes,
    kv_bytes,
    memory_bytes,
    over_memory,
    over_what,
)
from specgauge.sweeps.model_sizes import ModelSize, PairSizes, has_gpu, model_folder, read_sizes, total
from specgauge.sweeps.plan import Cell, chains, decoded_tokens, plan_cells, planned_pairs
from specgauge.sweeps.run.progress import duration_text, size_text
from specgauge.sweeps.run.rank_processes import check_ranks
from specgauge.sweeps.served.describe import describe_served
from specgauge.sweeps.text_table import count, span_text, text_table

if TYPE_CHECKING:
    from specgauge.bench.notes import Note
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

    if config.is_served:
        return describe_served(config)
    sizes = read_sizes(config)
    check_contexts(config, sizes)
    check_ranks(config)
    notes: list[Note] = []
    read = read_prompts(config.workload, notes.append, seed=config.seed)
    prompts = len(read)
    return "\n".join(
        (
            *_cell_lines(config, sizes),
            "",
            *_arm_lines(config),
            _acceptance_line(config, prompts),
            *_validation_lines(config, prompts),
            *_limit_lines(config),
            *(f"  {note.message}" for note in notes),
            "",
            *(
                line
                for pair in config.pairs
                for line in (
                    *_pair_lines(config, pair, sizes[pair.name], prompts),
                    *_too_long_lines(config, pair, sizes[pair.name], [prompt.text for prompt in read]),
                )
            ),
        )
    )


def _cell_lines(config: Config, sizes: Mapping[str, PairSizes]) -> list[str]:
    cells, headings = plan_cells(config), ("pair", "mode", "chain", "batch size", "context", "keys and values", "")
    rows = []
    for cell in cells[:SHOWN_CELLS]:
        size = sizes[cell.pair]
        over = over_what(config, size, cell)
        skipped = "" if over is None else f"over {over}, skipped"
        kv = size_text(kv_bytes(config, size, cell))
        rows.append((cell.pair, cell.mode, cell.chain, str(cell.batch_size), str(cell.context), kv, skipped))
    more = [f"… and {len(cells) - SHOWN_CELLS} more"] if len(cells) > SHOWN_CELLS else []
    return [
        f"{config.name}: {count(len(cells), 'cell')}{_left_out(config, cells)}",
        *(f"  {line}" for line in (*text_table(headings, rows).splitlines(), *more)),
    ]


def _left_out(config: Config, cells: Sequence[Cell]) -> str:
    whole = sum(1 for _ in config.points()) * len(chains(config))
    return f", {whole - len(cells)} of {whole} left out by rules of the grid" if len(cells) < whole else ""


def _arm_lines(config: Config) -> list[str]:
    precision = config.precision
    limits = {"a pair and batch size": precision.max_seconds, "a cell": precision.max_cell_seconds}
    seconds = "".join(f", {limit:g} s for {what}" for what, limit in limits.items() if limit is not None)
    kinds: dict[bool, list[str]] = {}
    for pair in planned_pairs(config):
        kinds.setdefault(pair.drafts_with_model, []).append(pair.name)
    blocks = span_text([precision.min_blocks, precision.max_blocks], "{:g}")
    return [
        *(
            f"arms of each cell{f' of {_listed(names)}' if len(kinds) > 1 else ''}: {_arms_text(config, with_model)}"
            for with_model, names in kinds.items()
        ),
        f"  {blocks} blocks of {count(precision.block_samples, 'sample')}, "
        f"until ±{precision.relative_ci:.3g} of the {'best S' if config.grid.is_searched else 'median'} at "
        f"{precision.confidence:g}{seconds}",
        *_search_lines(config),
    ]


def _search_lines(config: Config) -> list[str]:
    if not config.grid.is_searched:
        return []
    lines = [
        f"  search, after acceptance: γ = {min(config.grid.gamma)}; γ that could be best if they took no longer to "
        "verify than the largest timed",
        "    below them; the neighbours of the best; the best beside its strongest challenger, until none can be over "
        f"{EQUIVALENCE_MARGIN:.0%} better at {CONFIDENCE:g}",
    ]
    if len(config.grid.context) > 2 or len(config.grid.batch_size) > 2:
        lines.append("    cells between the smallest and largest are only checked where they keep to those around them")
    return lines


def _arms_text(config: Config, drafts_with_model: bool) -> str:
    """The arms of a cell, where lookups draft or where a model does."""
    gammas = config.grid.gamma
    arms = count(len(arm_names(gammas, catches_up=drafts_with_model)), "arm")
    verify = f"verify γ = {_listed(gammas)}"
    if config.grid.is_searched:
        arms, verify = f"up to {arms}", f"verify some γ of {_listed(gammas)}"
    if not drafts_with_model:
        return f"{arms}: decode; draft, {count(max(gammas), 'lookup')}; {verify}; prefill and index of the context"
    return f"{arms}: decode; draft, {count(max(gammas), 'step')}; draft_catch_up; {verify}; prefill of both models"


def _acceptance_line(config: Config, prompts: int) -> str:
    workload = config.workload
    settings = _listed(sampling.name for sampling in config.sampling)
    brought = "" if workload.prompt_tokens is None else f" at {_listed(workload.prompt_tokens)} tokens"
    return (
        f"acceptance: {count(prompts, 'prompt')}{brought} × {count(workload.repetitions, 'text')} of up to "
        f"{workload.max_new_tokens} tokens under {settings} ({count(len(chains(config)), 'chain')}); "
        f"draft sampling {_listed(config.draft_sampling)}; rule {_listed(config.acceptance_rule)}"
    )


def _validation_lines(config: Config, prompts: int) -> list[str]:
    asked = config.validation
    if asked is None:
        return ["end to end: nothing is decoded; validate: {} checks the prediction"]
    sizes, contexts = asked.batch_size or config.grid.batch_size, asked.context or config.grid.context
    of_pairs = Counter(point.pair for point in config.points() if config.is_decoded(point))
    each = {len(config.sampling) * of_pairs[pair.name] for pair in planned_pairs(config)}
    total = len(config.sampling) * of_pairs.total()
    share = f"{count(total, 'cell')} of all pairs" if len(each) > 1 else f"{count(each.pop(), 'cell')} of each pair"
    limit = prompts if asked.prompts is None else min(prompts, asked.prompts)
    gammas = "the recommended γ and its neighbours" if asked.gamma == "recommended" else f"γ = {_listed(asked.gamma)}"
    adaptive = "" if asked.policies is None else f" and policies ({_listed(asked.policies)})"
    beside = _listed(BASELINES)
    if asked.baseline_blocks is not None:
        first = "the first block" if asked.baseline_blocks == 1 else f"the first {asked.baseline_blocks} blocks"
        beside = f"{PLAIN}, in {first} of a cell also {_listed(OF_PLAIN)}"
    seconds = "" if asked.max_seconds is None else f", {asked.max_seconds:g} s for a pair"
    forced = "" if asked.acceptance is None else "; acceptance forced by coin: the texts are not the target's"
    return [
        f"end to end: {share} (batch size {_listed(sizes)}, context {_listed(contexts)}), "
        f"{gammas}{adaptive} beside {beside}",
        f"  {count(limit, 'prompt')} × {count(asked.repetitions, 'text')} of up to "
        f"{decoded_tokens(config)} tokens{seconds}{forced}",
    ]


def _limit_lines(config: Config) -> list[str]:
    limits = config.limits
    said = [
        *([f"{duration_text(limits.run_seconds)} of this run"] if limits.run_seconds is not None else []),
        *([f"{size_text(limits.memory)} of memory by estimate"] if limits.memory is not None else []),
    ]
    return [f"limits: {', '.join(said)}"] if said else []


def _pair_lines(config: Config, pair: PairConfig, sizes: PairSizes, prompts: int) -> list[str]:
    models = [pair.target, *([pair.draft] if isinstance(pair.draft, ModelConfig) else [])]
    absent = [model for model in models if not model_folder(model, "target" if model is pair.target else "draft")]
    unknown = UNKNOWN if absent else UNREAD
    cells = list(plan_cells(config, pair.name))
    if not cells:
        return [f"pair {pair.name}: not measured, the rules of the grid leave no cell of it"]
    own = [f"mode {pair.mode}"] if pair.mode is not None else []
    own += [count(pair.threads, "thread")] if pair.threads is not None else []
    own += [f"on {pair.accelerator_type}"] if pair.accelerator_type is not None else []
    shared = ", weights shared" if sizes.shares_weights else ""
    draft = f"{_model_text(sizes.draft, unknown)}{shared}" if pair.drafts_with_model else "no model, no memory"
    lines = [
        f"pair {pair.name}{f' ({_listed(own)})' if own else ''}",
        f"  target {pair.target.label}: {_model_text(sizes.target, unknown)}",
        f"  draft {pair.draft.label}: {draft}",
    ]
    lines += _device_lines(config, pair)
    cells = [cell for cell in cells if over_memory(config, sizes, cell) is None]
    if not cells:
        return [*lines, f"  {ALONE if fit_alone(config, pair, sizes) else 'not measured: no cell fits by estimate'}"]
    parts = memory_bytes(config, sizes, cells)
    needed = total(list(parts.values()))
    shares = _listed(f"{name} {size_text(part)}" for name, part in parts.items() if part is not None)
    return [
        *lines,
        f"  memory at the stage that needs most (estimate): {unknown if needed is None else size_text(needed)}"
        f"{f' ({shares}), besides the program' if shares else ''}",
        *_interleaved_lines(config, pair, sizes),
        *_time_lines(config, pair, sizes, prompts, unknown, [] if any(one.gguf_file for one in models) else absent),
    ]


def _device_lines(config: Config, pair: PairConfig) -> list[str]:
    """Whether a run here would end for want of a CUDA device, where the system's files tell."""
    if sys.platform != "linux" or has_gpu():
        return []
    roles = (("target", pair.target), ("draft", pair.draft))
    models = [(role, one) for role, one in roles if isinstance(one, ModelConfig)]
    asked = [f"{role}: device {one.device}" for role, one in models if one.device.startswith("cuda")]
    asked += ["mode cuda_graph"] if config.mode_of(pair) == "cuda_graph" else []
    if not asked:
        return []
    return [f"  {_listed(asked)}, but no CUDA device is seen here: a run here would refuse this pair"]


def _too_long_lines(config: Config, pair: PairConfig, sizes: PairSizes, texts: Sequence[str]) -> list[str]:
    """How many prompts will be left out as too long, by the target's tokenizer where it is here.

    Raises:
        ValueError: all of them.
    """
    from specgauge.bench.models.files import token_counts

    known = [size.max_context for size in (sizes.target, sizes.draft) if size is not None and size.max_context]
    folder = model_folder(pair.target, "target")
    if not known or folder is None or config.workload.prompt_tokens is not None:
        return []
    limit, new = min(known), config.workload.max_new_tokens
    long_texts = [text for text in texts if len(text.encode()) + new > limit]  # a token has at least a byte
    too_long = [length for length in token_counts(folder, long_texts) if length + new > limit]
    if not too_long:
        return []
    found = f"{len(too_long)} of {len(texts)} prompts leave no room for {new} tokens in the {limit} that are taken"
    if len(too_long) == len(texts):
        raise ValueError(
            f"pair {pair.name!r}: workload.prompts: {found}, the shortest has {min(too_long)}; give shorter prompts, "
            "or lower workload.max_new_tokens"
        )
    return [f"  {found}, and are left out; the longest has {max(too_long)}, without a chat template"]


def _time_lines(
    config: Config, pair: PairConfig, sizes: PairSizes, prompts: int, unknown: str, absent: Sequence[ModelConfig]
) -> list[str]:
    """How long a pair should take; where that is unknown, how to fetch the models whose files would tell."""
    estimate = time_estimate(config, pair, sizes, prompts)
    if estimate is not None:
        validation = f", end to end {duration_text(estimate.validation_s)}" if estimate.validation_s else ""
        rest_s = estimate.loading_s + estimate.acceptance_s + estimate.validation_s
        limit_s = config.limits.run_seconds or math.inf
        whole, timing = (
            " to ".join(dict.fromkeys(duration_text(min(one + more, most)) for one in estimate.timing_s))
            for more, most in ((rest_s, limit_s), (0.0, math.inf))
        )
        rest = (
            f"acceptance {duration_text(estimate.acceptance_s)}{validation}, "
            f"loading {duration_text(estimate.loading_s)}"
        )
        return [f"  time (estimate): {whole}: timing {timing}, {rest}; assumed: {estimate.basis}"]
    names = [f"{spec.model} --revision {spec.revision}" if spec.revision else spec.model for spec in absent]
    fetch = "; ".join(f"hf download {name}" for name in dict.fromkeys(names))
    return [f"  time: {unknown}", *([f"  to know it before the run: {fetch}; then check again"] if fetch else [])]


def _interleaved_lines(config: Config, pair: PairConfig, sizes: PairSizes) -> list[str]:
    """What the caches of interleaved arms need, where arms are interleaved."""
    caches, weights, limit = interleaved_bytes(config, pair, sizes), sizes.weight_bytes, config.limits.memory
    if caches is None or weights is None:
        return []
    how = size_text(caches)
    if limit is not None and weights + caches > limit:
        how = f"would be {how}: over limits.memory, so its arms are decoded one after another"
    return [f"  caches of all arms that are interleaved, at the largest cell (estimate): {how}"]


def _model_text(size: ModelSize | None, unknown: str) -> str:
    if size is None:
        return f"size {unknown}"
    parameters = f"parameters {unknown}" if size.parameters is None else f"{size.parameters / 1e6:.4g} M parameters"
    layers = "layers not stated" if size.layers is None else count(size.layers, "layer")
    limit = "context limit not stated" if size.max_context is None else f"contexts up to {size.max_context}"
    return f"{parameters}, {size.dtype or 'dtype not stated'}, {layers}, {limit}"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
