"""The configuration: its sections, with every field's meaning, bounds and default, and what holds between them.

    Config.model_validate({"name": "mine", "pairs": [{"name": "a", "target": "org/model", "draft": "ngram"}]})

Shorthands are resolved on the way in (a model by its name alone, one value for a list, ``1:6`` for a range); what a
Config holds is always the full form.  ``specgauge schema`` prints the same as JSON Schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from specgauge.configs.engines import engine_defaults, engine_errors, forced_errors
from specgauge.configs.errors import Errors, fail, refused
from specgauge.configs.executor import ExecutorConfig, device_errors
from specgauge.configs.fields import (
    EMBEDDED,
    LARGEST_BATCH_SIZE,
    LARGEST_CONTEXT,
    ZERO,
    BatchSizes,
    ByteCount,
    Context,
    Contexts,
    Gammas,
    Mode,
    Name,
    Positive,
    Repetitions,
    SearchedBatchSizes,
    SearchedGammas,
    Seconds,
    Section,
    Share,
    Text,
    Threads,
    expects,
    in_order,
    listed,
    null_means,
    one_of,
    with_searches,
)
from specgauge.configs.pairs import ModelConfig, PairConfig, rank_errors
from specgauge.configs.variants import CellRule, GridPoint, rule_errors, spread

SPREAD = "spread"
"""Validation context that says that pairs are spread already."""
LARGEST_SEED = (1 << 63) - 1
MOST_SETTINGS = 100
"""Of sampling: each is recorded, predicted and shown for every pair."""
MOST_POINTS = 100_000
"""Of a grid; measuring them at a second each takes longer than a day."""
LEAST_TEMPERATURE = 1e-4
DraftSampling = Literal["same", "greedy"]
AcceptanceRule = Literal["ratio", "match"]
Policy = Literal["heuristic", "gammatune", "svip", "adaedl", "ucb", "exp3", "goodput", "renewal"]
NO_LIMIT = null_means("no limit")
OFF = null_means("off")


class WorkloadConfig(Section):
    """The prompts, and how much text the target writes for each when acceptance is measured."""

    prompts: Annotated[Text, expects(f"{EMBEDDED} or the path of a prompts file")] = EMBEDDED
    """`embedded` (prompts that ship with the embedded pair) or a file of your own traffic."""
    format: Literal["auto", "jsonl", "spec-bench", "sharegpt"] = "auto"
    """Form of the prompts file; auto tells it by its content."""
    chat_template: Literal["auto", "always", "never"] = "auto"
    """Whether prompts pass through the model's chat template; auto applies it where the model has one."""
    limit: Annotated[Positive | None, null_means("every prompt")] = None
    """Use only this many prompts: the first, or drawn evenly by `category` with the seed where rows have one; null uses
    all."""
    prompt_tokens: Annotated[Contexts | None, null_means("each as long as it is")] = None
    """Brings every prompt to exactly this length, or to each of several: its end, after the ends of the prompts before
    it. Acceptance at a context of grid.context is then read off the texts that start there."""
    max_new_tokens: Context = 64
    """Tokens the target writes for each prompt, unless it ends earlier."""
    repetitions: Repetitions = 1
    """Texts written for each prompt, each with its own random numbers."""

    @model_validator(mode="after")
    def _check_together(self) -> WorkloadConfig:
        if self.prompts == EMBEDDED and self.format not in ("auto", "jsonl"):
            fail([(("format",), refused(self.format, f"auto or jsonl, since the prompts are {EMBEDDED}"))])
        return self


def _divides(temperature: float) -> float:
    """A temperature by which logits can be divided: under a tiny one they are infinite."""
    if 0 < temperature < LEAST_TEMPERATURE:
        raise refused(temperature, f"0 (the likeliest token) or at least {LEAST_TEMPERATURE:g}")
    return temperature


class SamplingConfig(Section):
    """One named way to turn logits into a token; both models' distributions pass through it."""

    name: Name
    """Names the setting in files, tables and options."""
    temperature: Annotated[float, Field(ge=0, le=100), ZERO, AfterValidator(_divides)] = 1.0
    """Divides the logits; 0 takes the likeliest token, anything else is at least 0.0001."""
    top_k: Annotated[Annotated[int, Field(ge=0)] | None, OFF] = None
    """Keeps the k likeliest tokens; null or 0 keeps all."""
    top_p: Annotated[Annotated[float, Field(gt=0, le=1)] | None, OFF] = None
    """Keeps the likeliest tokens that together reach this probability; null or 1 keeps all."""
    min_p: Annotated[Share | None, OFF] = None
    """Keeps tokens at least this likely relative to the likeliest; null or 0 keeps all."""
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Makes tokens of the prompt and the text so far less likely where above 1; 1 is off."""
    min_tokens_to_keep: Positive = 1
    """What top_p and min_p leave at least."""


def _with_own_names(settings: tuple[SamplingConfig, ...]) -> tuple[SamplingConfig, ...]:
    """Settings of which no two share a name; upper and lower case count as the same, for files."""
    errors: Errors = []
    if len(settings) > MOST_SETTINGS:
        fail([((), refused(None, f"at most {MOST_SETTINGS}", got=str(len(settings))))])
    first: dict[str, int] = {}
    for index, setting in enumerate(settings):
        if (earlier := first.setdefault(setting.name.casefold(), index)) != index:
            expected = f"a name that sampling[{earlier}] does not have already"
            errors.append(((index, "name"), refused(setting.name, expected)))
    fail(errors)
    return settings


class GridConfig(Section):
    """The cells that are measured: every batch size with every context but for what the rules leave out, and gammas in
    each."""

    batch_size: SearchedBatchSizes = (1,)
    """Sequences decoded together; {max: 16, search: adaptive} is 1 to 16 with batch_size_search: adaptive."""
    batch_size_search: Literal["all", "adaptive"] = "all"
    """Whether every batch size is measured, or of servers the first, the last, those about twice the one before, and
    others only where they can still change which gamma is best."""
    context: Contexts = (256,)
    """Tokens in the KV cache when a round starts."""
    gamma: SearchedGammas = (1, 2, 3, 4, 5, 6)
    """Draft tokens proposed per round; {max: 16, search: adaptive} is 1 to 16 with gamma_search: adaptive."""
    gamma_search: Literal["all", "adaptive"] = "all"
    """Whether T_verify is timed at every gamma, or only where it can still change which one is best."""
    include: Annotated[tuple[CellRule, ...], Field(strict=False)] = ()
    """Rules, of which a cell matches at least one to be measured; without any, every cell is."""
    exclude: Annotated[tuple[CellRule, ...], Field(strict=False)] = ()
    """Rules, of which a cell that is measured matches none."""

    @property
    def is_searched(self) -> bool:
        """Whether the best gamma is searched for, instead of all being timed."""
        return self.gamma_search == "adaptive"

    @property
    def are_sizes_searched(self) -> bool:
        """Whether batch sizes are measured only where they can change which gamma is best."""
        return self.batch_size_search == "adaptive"

    @model_validator(mode="before")
    @classmethod
    def _take_search(cls, written: Any) -> Any:
        """A search, ``gamma: {max: 16, search: adaptive}``, is also told by `gamma_search`; a batch size's as well."""
        return with_searches(written, ("gamma", "batch_size")) if isinstance(written, Mapping) else written


REPLICATES_BEYOND = 10
"""Replicates beyond each end of an interval, at least: fewer leave the end to chance."""
_ROUNDING = 1e-6


class PrecisionConfig(Section):
    """When the timing of an arm is good enough, and when it stops regardless."""

    relative_ci: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Sample until the half-width of the median's interval is at most this fraction of the median; in a search for
    gamma, until that of S at the best one is, as far as timings go."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Probability that an interval covers the true value."""
    block_samples: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Samples of each arm in a block of its cell, interleaved with those of the others."""
    min_blocks: Annotated[int, Field(ge=2, le=100_000)] = 3
    """Blocks of every arm, however quickly they agree; two are the fewest that can disagree."""
    max_blocks: Annotated[int, Field(ge=2, le=100_000)] = 20
    """Blocks of an arm at most, converged or not."""
    max_seconds: Annotated[Seconds | None, NO_LIMIT] = 120.0
    """Seconds for the whole timing of one pair and batch size; null is no limit."""
    max_cell_seconds: Annotated[Seconds | None, NO_LIMIT] = None
    """Seconds for the timing of one cell; like those above, they end nothing before the least blocks are there."""
    bootstrap_replicates: Annotated[int, Field(ge=10, le=1_000_000)] = 1000
    """Resamples of blocks and prompts behind every interval; never fewer than put ten beyond each of its ends, which
    are 200 at a confidence of 0.9, and 2000 at 0.99."""

    @model_validator(mode="after")
    def _check_together(self) -> PrecisionConfig:
        if self.max_blocks < self.min_blocks:
            expected = f"at least min_blocks, which is {self.min_blocks}"
            fail([(("max_blocks",), refused(self.max_blocks, expected))])
        return self

    @property
    def replicates(self) -> int:
        """Resamples that are drawn."""
        needed = math.ceil(2 * REPLICATES_BEYOND / (1.0 - self.confidence) - _ROUNDING)
        return max(self.bootstrap_replicates, needed)


class AcceptanceConfig(Section):
    """How acceptance is measured over the texts; it changes memory and speed, not results."""

    batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH_SIZE)] = 8
    """Texts in one forward pass."""
    chunk: Annotated[int, Field(ge=1, le=LARGEST_CONTEXT)] = 128
    """Positions whose logits exist at once."""
    sequential: bool = False
    """Load one model after the other for it, even where both fit; where they do not fit together by estimate, that is
    done anyway, and nothing is timed."""
    rollouts: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Positions of each text from which a draft chain that starts with a rejected draft is followed, for policies that
    read the draft's own signals; 0 follows none. Needs both models in memory, so none where they are loaded one after
    the other."""


class ValidateConfig(Section):
    """What is decoded end to end, to hold the prediction against the real thing."""

    gamma: Annotated[
        Annotated[Literal["recommended"], Tag("word")] | Annotated[Gammas, Tag("axis")],
        Discriminator(lambda written: "word" if isinstance(written, str) and ":" not in written else "axis"),
    ] = "recommended"
    """Gammas that are decoded, each one of grid.gamma; `recommended` is the recommended one and its neighbours,
    which are left out where time does not hold three batches of each cell with them."""
    batch_size: Annotated[BatchSizes | None, null_means("those of grid.batch_size")] = None
    """Batch sizes that are decoded, each one of grid.batch_size; null is all of them."""
    context: Annotated[Contexts | None, null_means("those of grid.context")] = None
    """Contexts the texts start from, each one of grid.context; null is all of them."""
    policies: Annotated[
        Annotated[tuple[Policy, ...], MinLen(1), listed(Policy), in_order(Policy)] | None,
        null_means("γ is fixed"),
    ] = None
    """Adaptive policies that are decoded beside the gammas; null is none. They are tuned on the recorded acceptance of
    every other prompt, so that no prompt is decoded by a policy that has seen it."""
    prompts: Annotated[Positive | None, null_means("every prompt")] = 16
    """Prompts decoded in each cell, evenly by category, and in an order in which the recorded texts of any first few
    accept about as many drafts as those of all; each is brought to exactly the context's length."""
    max_new_tokens: Annotated[
        Annotated[int, Field(ge=2, le=LARGEST_CONTEXT)] | None, null_means("workload.max_new_tokens")
    ] = None
    """Tokens written for each prompt; null is as many as workload.max_new_tokens."""
    repetitions: Repetitions = 1
    """Texts written for each prompt and arm, each with its own random numbers."""
    baseline_blocks: Annotated[Positive | None, null_means("all of them")] = None
    """Blocks (batches of prompts) of each cell, from the first, in which plain decoding is held against transformers'
    generate and the speculative loop without drafts; null is all of them. Fewer leave time for more texts."""
    acceptance: Annotated[
        Annotated[
            Annotated[Share, Tag("one")]
            | Annotated[tuple[Share, ...], Field(strict=False, min_length=1), Tag("several")],
            Discriminator(lambda written: "several" if isinstance(written, (list, tuple)) else "one"),
        ]
        | None,
        null_means("the models decide"),
    ] = None
    """Accept by coin at this rate, or at these rates by position in a round, to check the cost model alone; the texts
    are then not the target's. Of servers, those of vLLM and llama.cpp that are started here."""
    max_seconds: Annotated[Seconds | None, NO_LIMIT] = 300.0
    """Seconds to decode one pair, starts of servers aside: no block is begun that, by those before it, would not fit.
    Where they are few, fewer cells are decoded rather than too few texts of each. Null is no limit."""


class LimitsConfig(Section):
    """Where a run stops, whatever is left to measure; running the same command again resumes it."""

    run_seconds: Annotated[Seconds | None, NO_LIMIT] = None
    """Seconds of one call of `run`, all pairs together; null is no limit. Pairs share them alike, and what one leaves
    is for those that follow. Texts and acceptance take at most 3 tenths of a pair's share, timing 4 tenths of what they
    leave, decoding end to end the rest: each begins nothing that should not fit. It may differ from call to call of
    one run directory."""
    memory: Annotated[ByteCount | None, NO_LIMIT] = None
    """Bytes, such as 8GiB, that the weights of both models and the keys and values of a cell may take by estimate; a
    larger cell is skipped before anything is tried, unless a model's files do not tell its size, and so is one that
    needs over 1.1 times what its device has. Where it does not hold
    the caches of all arms whose decoding is interleaved, they are decoded one after another. Null is no limit."""


class Config(Section):
    """Everything a run depends on: pairs, prompts, sampling settings, the grid and the precision wanted."""

    name: Name
    """Names the run; its directory is runs/<name> unless told otherwise."""
    pairs: Annotated[tuple[PairConfig, ...], Field(strict=False, min_length=1)]
    """The pairs measured, at least one; each under its own name."""
    workload: WorkloadConfig = WorkloadConfig()
    """The prompts, and how much is written for each."""
    sampling: Annotated[
        tuple[SamplingConfig, ...], Field(strict=False, min_length=1), AfterValidator(_with_own_names)
    ] = (SamplingConfig(name="greedy", temperature=0.0),)
    """The sampling settings, at least one; each under its own name."""
    draft_sampling: Annotated[tuple[DraftSampling, ...], MinLen(1), listed(DraftSampling), in_order(DraftSampling)] = (
        "same",
    )
    """How the draft draws: as the sampling setting says, or always its likeliest token."""
    acceptance_rule: Annotated[
        tuple[AcceptanceRule, ...], MinLen(1), listed(AcceptanceRule), in_order(AcceptanceRule)
    ] = ("ratio",)
    """How a draft is accepted: by the ratio of probabilities, or by equality with the target's own draw."""
    grid: GridConfig = GridConfig()
    """The cells that are measured."""
    precision: PrecisionConfig = PrecisionConfig()
    """When timing is good enough."""
    mode: Annotated[Mode, one_of("mode")] = "eager"
    """How the forwards of a round run: as torch runs them, through torch.compile, or as captured CUDA graphs. Several
    make a variant of every pair each."""
    threads: Annotated[Annotated[Threads, one_of("threads")] | None, null_means("what is faster here")] = None
    """Torch's threads within one operation on the CPU; null takes the fewest that a small forward is about as fast
    with as with any, and records them. Several make a variant of every pair each."""
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    """Every random number of a run follows from it."""
    acceptance: AcceptanceConfig = AcceptanceConfig()
    """How acceptance is measured."""
    validation: Annotated[ValidateConfig | None, Field(alias="validate")] = None
    """What is decoded end to end to check the prediction; null decodes nothing, {} takes the defaults."""
    limits: LimitsConfig = LimitsConfig()
    """What a run may spend."""
    executor: ExecutorConfig = ExecutorConfig()
    """Where it measures."""

    @model_validator(mode="before")
    @classmethod
    def _with_variants(cls, written: Any, info: ValidationInfo) -> Any:
        """A pair for every variant, where lists make any; not where the context says that they are spread already."""
        if not isinstance(written, Mapping):
            return written
        if info.context == SPREAD:
            return engine_defaults(written)
        found = spread(written)
        fail(found.errors)
        return engine_defaults(found.value)

    def mode_of(self, pair: PairConfig) -> Mode:
        """How a pair's forwards run: its own mode, or the configuration's."""
        return pair.mode or self.mode

    def threads_of(self, pair: PairConfig) -> int | None:
        """Torch's threads for a pair: its own, or the configuration's; None is what is faster here."""
        return pair.threads or self.threads

    @property
    def is_served(self) -> bool:
        """Whether servers decode, for every pair, in the place of models that are loaded."""
        return any(pair.engines for pair in self.pairs)

    def points(self, only: str | None = None) -> Iterator[GridPoint]:
        """Every point of the full grid, by pair, then batch size and context; of one pair alone where it is named."""
        for pair in self.pairs if only is None else (pair for pair in self.pairs if pair.name == only):
            for batch_size in self.grid.batch_size:
                for context in self.grid.context:
                    yield GridPoint(pair=pair.name, mode=self.mode_of(pair), batch_size=batch_size, context=context)

    def is_measured(self, point: GridPoint) -> bool:
        """Whether the rules of the grid leave a point."""
        include, exclude = self.grid.include, self.grid.exclude
        is_included = not include or any(rule.matches(point) for rule in include)
        return is_included and not any(rule.matches(point) for rule in exclude)

    def is_decoded(self, point: GridPoint) -> bool:
        """Whether a point is measured, and decoded end to end where anything is."""
        wanted = self.validation or ValidateConfig()
        sizes, contexts = wanted.batch_size or self.grid.batch_size, wanted.context or self.grid.context
        return point.batch_size in sizes and point.context in contexts and self.is_measured(point)

    @model_validator(mode="after")
    def _check_together(self) -> Config:
        grid = self.grid
        count = len(self.pairs) * len(grid.batch_size) * len(grid.context)
        if count > MOST_POINTS:
            expected = f"at most {MOST_POINTS} points: pairs × batch sizes × contexts"
            fail([(("grid",), refused(None, expected, got=str(count)))])
        points = tuple(self.points())
        errors = rule_errors(points, grid.include, grid.exclude)
        if not errors and not any(map(self.is_measured, points)):
            error = refused(None, "rules that leave at least one cell", got="rules that leave none")
            errors.append((("grid", "exclude" if grid.exclude else "include"), error))
        errors += self._validation_errors()
        errors += engine_errors([(pair.engine, pair.engines) for pair in self.pairs], grid.gamma)
        errors += [
            (("pairs", index, role, "device"), refused("cpu", "auto or cuda, since mode is cuda_graph"))
            for index, pair in enumerate(self.pairs)
            for role, spec in (("target", pair.target), ("draft", pair.draft))
            if isinstance(spec, ModelConfig) and spec.device == "cpu" and self.mode_of(pair) == "cuda_graph"
        ]
        errors += rank_errors(self.pairs, self.mode, self.executor.kind)
        own = self.acceptance
        if own.sequential and own.rollouts and any(isinstance(pair.draft, ModelConfig) for pair in self.pairs):
            expected = "0, since acceptance.sequential is true and draft chains need both models in memory"
            errors.append((("acceptance", "rollouts"), refused(own.rollouts, expected)))
        if grid.are_sizes_searched and not self.is_served:
            expected = "all, since only of servers batch sizes are searched for"
            errors.append((("grid", "batch_size_search"), refused(grid.batch_size_search, expected)))
        if self.is_served and self.executor.kind != "local":
            expected = "local, since servers are measured from where their client runs"
            errors.append((("executor", "kind"), refused(self.executor.kind, expected)))
        errors += device_errors(self.executor, [pair.accelerator_type for pair in self.pairs])
        largest = max(grid.gamma)
        if self.workload.max_new_tokens <= largest:
            expected = f"more than the largest gamma, which is {largest}, or no round can be verified"
            errors.append((("workload", "max_new_tokens"), refused(self.workload.max_new_tokens, expected)))
        fail(errors)
        return self

    def _validation_errors(self) -> Errors:
        """What is to be decoded must be predicted, and forced rates must reach as far as a round."""
        wanted = self.validation
        if wanted is None:
            return []
        errors: Errors = []
        for axis in ("gamma", "batch_size", "context"):
            values, grid = getattr(wanted, axis), getattr(self.grid, axis)
            outside = [one for one in values if one not in grid] if isinstance(values, tuple) else []
            if outside:
                expected = f"values of grid.{axis}, which are {', '.join(map(str, grid))}"
                errors.append((("validate", axis), refused(outside[0], expected)))
        if not errors and not any(self.is_decoded(point) for point in self.points()):
            expected = "batch sizes and contexts of which grid.include and grid.exclude leave a cell"
            errors.append((("validate",), refused(None, expected, got="no cell to decode")))
        if wanted.policies is not None and wanted.acceptance is not None:
            expected = "null where validate.acceptance is given: policies are tuned on what the models accept"
            errors.append((("validate", "policies"), refused(None, expected, got=", ".join(wanted.policies))))
        deepest = max(self.grid.gamma) if wanted.gamma == "recommended" else max(wanted.gamma)
        if self.is_served and wanted.policies is not None:
            expected = "null, since servers choose γ by policies of their own"
            errors.append((("validate", "policies"), refused(None, expected, got=", ".join(wanted.policies))))
        if wanted.acceptance is not None:
            errors += forced_errors(one for pair in self.pairs for one in pair.engines)
        if isinstance(wanted.acceptance, tuple) and len(wanted.acceptance) < deepest:
            expected = f"one rate, or one for each draft of the largest gamma, which is {deepest}"
            errors.append((("validate", "acceptance"), refused(None, expected, got=f"{len(wanted.acceptance)} rates")))
        return errors


def check_prompt_tokens(where: str, workload: WorkloadConfig, max_context: int | None) -> None:
    """Refuse prompts that are brought to lengths after which a model of ``max_context`` positions has no room.

    Raises:
        ValueError: the longest length that fits and why.
    """
    longest, new = max(workload.prompt_tokens or (0,)), workload.max_new_tokens
    if workload.prompt_tokens is not None and max_context is not None and longest + new > max_context:
        raise ValueError(
            f"workload.prompt_tokens: expected at most {max_context - new}, since {new} tokens are written and {where} "
            f"takes {max_context}, got {longest}; lower it or workload.max_new_tokens"
        )


def check_context(
    where: str, *, context: int, tokens: int, max_context: int | None, section: Literal["grid", "validate"] = "grid"
) -> None:
    """Refuse a context after which ``tokens`` do not fit in a model of ``max_context`` positions (None is unknown).

    A round of the grid is γ + 1 tokens, a text of the validation ``max_new_tokens``.

    Raises:
        ValueError: the largest context that fits and why.
    """
    if max_context is not None and context + tokens > max_context:
        other = {"grid": "grid.gamma", "validate": "validate.max_new_tokens"}[section]
        raise ValueError(
            f"{section}.context: expected at most {max_context - tokens}, since {tokens} tokens follow and {where} "
            f"takes {max_context}, got {context}; lower it or {other}"
        )
