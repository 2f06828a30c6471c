"""The configuration: frozen pydantic models, one for each section, with every field's meaning, bounds and default.

Shorthands are resolved on the way in (a model by its name alone, one value for a list, ``1:6`` for a range); what a
Config holds is always the full form.  ``specgauge schema`` prints the same rules as JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, WrapValidator, model_validator

from specgauge.configs import variants
from specgauge.configs.axes import Axis, Numbers, Several
from specgauge.configs.cells import LARGEST_BATCH_SIZE, LARGEST_CONTEXT, CellRule, Place, is_measured, rule_faults
from specgauge.configs.drafts import NGRAM, LayersDraft, NgramDraft, draft_without_model
from specgauge.configs.faults import Fault, Keys, value_fault
from specgauge.configs.limits import LimitsConfig
from specgauge.configs.names import NAME
from specgauge.configs.policies import POLICIES, Policy
from specgauge.configs.rules import Choice, Flag, Free, Real, Text, Whole, fail
from specgauge.configs.searched import ADAPTIVE, GAMMA_SEARCH, GammaSearch, SearchedAxis, with_gamma_search
from specgauge.configs.section import Section

Mode = variants.Mode
EMBEDDED = "embedded"
LARGEST_GAMMA = 64
LARGEST_SEED = (1 << 63) - 1

_FILLED = r"\S"
_MODEL_NAME = Text(pattern=_FILLED, means=f"{EMBEDDED}, a hub id or a local directory")
MODEL_FORMS = f"{EMBEDDED}, a hub id, a local directory, or a mapping with the key model"
DRAFT_FORMS = f"{EMBEDDED}, a hub id, a local directory, {NGRAM}, or a mapping with the key model, {NGRAM} or layers"


class ModelConfig(Section):
    """One model: where its weights are and how they are loaded."""

    model: Annotated[str, _MODEL_NAME]
    """`embedded` (the pair that ships with specgauge), a hub id, or a local directory."""
    revision: Annotated[str | None, Text(pattern=_FILLED, means="a branch, tag or commit", or_null=True)] = None
    """Branch, tag or commit on the hub; null is the default branch."""
    gguf_file: Annotated[str | None, Text(pattern=_FILLED, means="a file name in the model's folder", or_null=True)] = (
        None
    )
    """A GGUF file in the model's repository or directory; its weights are dequantised when loaded."""
    dtype: Annotated[variants.Dtype, variants.DTYPE] = "auto"
    """Type of the weights; auto is the type they are stored in. Several make a variant of the pair each."""
    device: Annotated[str, Text(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$", means="auto | cpu | cuda | cuda:0")] = (
        "auto"
    )
    """Where the model runs; auto is cuda where there is one, else cpu."""
    device_map: Annotated[
        str | dict[str, int | str] | None,
        Free(text="auto or another of transformers' names", means="a mapping of modules to devices", or_null=True),
    ] = None
    """Spreads one model over several devices, as transformers takes it; null keeps it on `device`."""
    quantization: Annotated[
        dict[str, JsonValue] | None,
        Free(means="a mapping as transformers' quantization_config takes it", or_null=True),
    ] = None
    """Quantization settings, as transformers takes them; null loads the weights as they are stored."""
    attention: Annotated[str | None, variants.ATTENTION] = None
    """Attention implementation: eager, sdpa, flash_attention_2, …; null is the model's default. Several make a variant
    of the pair each."""
    trust_remote_code: Annotated[bool, Flag()] = False
    """Whether code from the model's repository may run on this machine."""

    @property
    def label(self) -> str:
        """What the model is called."""
        return self.model

    @model_validator(mode="after")
    def _check_together(self) -> ModelConfig:
        found: list[Fault] = []
        if self.model == EMBEDDED:
            for field in ("revision", "gguf_file", "quantization"):
                if getattr(self, field) is not None:
                    found.append(value_fault((field,), getattr(self, field), f"null, since the model is {EMBEDDED}"))
        if self.device_map is not None and self.device != "auto":
            found.append(value_fault(("device",), self.device, "auto, since device_map places the model"))
        _fail_if(found)
        return self


def _model_by_name(value: object) -> object:
    return {"model": value} if isinstance(value, str) else value


_Model = Annotated[
    ModelConfig,
    BeforeValidator(_model_by_name, json_schema_input_type=Annotated[str, _MODEL_NAME] | ModelConfig),
]


def _draft_in_full(value: object, _handler: object) -> ModelConfig | NgramDraft | LayersDraft:
    other = draft_without_model(value, ModelConfig.model_fields)
    return other if other is not None else ModelConfig.model_validate(_model_by_name(value))


_Draft = Annotated[
    ModelConfig | NgramDraft | LayersDraft,
    WrapValidator(
        _draft_in_full,
        json_schema_input_type=Annotated[str, _MODEL_NAME] | ModelConfig | NgramDraft | LayersDraft,
    ),
]


class PairConfig(Section):
    """A target and the draft that speculates for it."""

    name: Annotated[str, NAME]
    """Names the pair in files, tables and options."""
    target: _Model
    """The model whose text is wanted: `embedded`, a hub id, a local directory, or a mapping."""
    draft: _Draft
    """What proposes tokens: a small model (`embedded`, a hub id, a local directory, or a mapping), `ngram` (lookups in
    the text itself), or {layers: N} (the target's own first layers)."""
    mode: Annotated[Mode | None, variants.PAIR_MODE] = None
    """How this pair's forwards run; null is as the configuration says. Several make a variant of the pair each."""
    threads: Annotated[int | None, variants.PAIR_THREADS] = None
    """Torch's threads for this pair; null is as the configuration says. Several make a variant of the pair each."""


class WorkloadConfig(Section):
    """The prompts, and how much text the target writes for each when acceptance is measured."""

    prompts: Annotated[str, Text(pattern=_FILLED, means=f"{EMBEDDED} or the path of a prompts file")] = EMBEDDED
    """`embedded` (prompts that ship with the embedded pair) or a file of your own traffic."""
    format: Annotated[
        Literal["auto", "jsonl", "spec-bench", "sharegpt"],
        Choice(words=("auto", "jsonl", "spec-bench", "sharegpt")),
    ] = "auto"
    """Form of the prompts file; auto tells it by its content."""
    chat_template: Annotated[Literal["auto", "always", "never"], Choice(words=("auto", "always", "never"))] = "auto"
    """Whether prompts pass through the model's chat template; auto applies it where the model has one."""
    limit: Annotated[int | None, Whole(at_least=1, or_null=True, null_means="every prompt")] = None
    """Use only this many prompts, from the first; null uses all."""
    prompt_tokens: Annotated[
        tuple[int, ...] | None,
        Axis(Whole(at_least=1, at_most=LARGEST_CONTEXT), null_means="each as long as it is"),
    ] = None
    """Brings every prompt to exactly this length, or to each of several: its end, after the ends of the prompts before
    it. Acceptance at a context of grid.context is then read off the texts that start there."""
    max_new_tokens: Annotated[int, Whole(at_least=1, at_most=LARGEST_CONTEXT)] = 64
    """Tokens the target writes for each prompt, unless it ends earlier."""
    repetitions: Annotated[int, Whole(at_least=1, at_most=100_000)] = 1
    """Texts written for each prompt, each with its own random numbers."""

    @model_validator(mode="after")
    def _check_together(self) -> WorkloadConfig:
        if self.prompts == EMBEDDED and self.format not in ("auto", "jsonl"):
            _fail_if([value_fault(("format",), self.format, f"auto or jsonl, since the prompts are {EMBEDDED}")])
        return self


class SamplingConfig(Section):
    """One named way to turn logits into a token; both models' distributions pass through it."""

    name: Annotated[str, NAME]
    """Names the setting in files, tables and options."""
    temperature: Annotated[float, Real(at_least=0.0, at_most=100.0)] = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_k: Annotated[int | None, Whole(at_least=0, or_null=True, null_means="off")] = None
    """Keeps the k likeliest tokens; null or 0 keeps all."""
    top_p: Annotated[float | None, Real(above=0.0, at_most=1.0, or_null=True, null_means="off")] = None
    """Keeps the likeliest tokens that together reach this probability; null or 1 keeps all."""
    min_p: Annotated[float | None, Real(at_least=0.0, at_most=1.0, or_null=True, null_means="off")] = None
    """Keeps tokens at least this likely relative to the likeliest; null or 0 keeps all."""
    repetition_penalty: Annotated[float, Real(above=0.0, at_most=100.0)] = 1.0
    """Makes tokens of the prompt and the text so far less likely where above 1; 1 is off."""
    min_tokens_to_keep: Annotated[int, Whole(at_least=1)] = 1
    """What top_p and min_p leave at least."""


class GridConfig(Section):
    """The cells that are measured: every batch size with every context but for what the rules leave out, and gammas in
    each."""

    batch_size: Annotated[tuple[int, ...], Axis(Whole(at_least=1, at_most=LARGEST_BATCH_SIZE))] = (1,)
    """Sequences decoded together."""
    context: Annotated[tuple[int, ...], Axis(Whole(at_least=1, at_most=LARGEST_CONTEXT))] = (256,)
    """Tokens in the KV cache when a round starts."""
    gamma: Annotated[tuple[int, ...], SearchedAxis(Whole(at_least=1, at_most=LARGEST_GAMMA))] = (1, 2, 3, 4, 5, 6)
    """Draft tokens proposed per round; {max: 16, search: adaptive} is 1 to 16 with gamma_search: adaptive."""
    gamma_search: Annotated[GammaSearch, GAMMA_SEARCH] = "all"
    """Whether T_verify is timed at every gamma, or only where it can still change which one is best."""
    include: tuple[CellRule, ...] = ()
    """Rules, of which a cell matches at least one to be measured; without any, every cell is."""
    exclude: tuple[CellRule, ...] = ()
    """Rules, of which a cell that is measured matches none."""

    @property
    def is_searched(self) -> bool:
        """Whether the best gamma is searched for, instead of all being timed."""
        return self.gamma_search == ADAPTIVE

    @model_validator(mode="before")
    @classmethod
    def _take_search(cls, written: object) -> object:
        return with_gamma_search(written)


class PrecisionConfig(Section):
    """When the timing of an arm is good enough, and when it stops regardless."""

    relative_ci: Annotated[float, Real(above=0.0, below=1.0)] = 0.02
    """Sample until the half-width of the median's interval is at most this fraction of the median; in a search for
    gamma, until that of S at the best one is, as far as timings go."""
    confidence: Annotated[float, Real(above=0.0, below=1.0)] = 0.9
    """Probability that an interval covers the true value."""
    block_samples: Annotated[int, Whole(at_least=1, at_most=100_000)] = 5
    """Samples of one arm before the next arm's turn."""
    min_blocks: Annotated[int, Whole(at_least=2, at_most=100_000)] = 3
    """Blocks of every arm, however quickly they agree; two are the fewest that can disagree."""
    max_blocks: Annotated[int, Whole(at_least=2, at_most=100_000)] = 20
    """Blocks of an arm at most, converged or not."""
    max_seconds: Annotated[float | None, Real(above=0.0, unit="seconds", or_null=True, null_means="no limit")] = 120.0
    """Seconds for the whole timing of one pair and batch size; null is no limit."""
    max_cell_seconds: Annotated[float | None, Real(above=0.0, unit="seconds", or_null=True, null_means="no limit")] = (
        None
    )
    """Seconds for the timing of one cell; like those above, they end nothing before the least blocks are there."""
    bootstrap_replicates: Annotated[int, Whole(at_least=10, at_most=1_000_000)] = 1000
    """Resamples of blocks and prompts behind every interval."""

    @model_validator(mode="after")
    def _check_together(self) -> PrecisionConfig:
        if self.max_blocks < self.min_blocks:
            _fail_if(
                [value_fault(("max_blocks",), self.max_blocks, f"at least min_blocks, which is {self.min_blocks}")]
            )
        return self


class AcceptanceConfig(Section):
    """How acceptance is measured over the texts; it changes memory and speed, not results."""

    batch_size: Annotated[int, Whole(at_least=1, at_most=LARGEST_BATCH_SIZE)] = 8
    """Texts in one forward pass."""
    chunk: Annotated[int, Whole(at_least=1, at_most=LARGEST_CONTEXT)] = 128
    """Positions whose logits exist at once."""
    sequential: Annotated[bool, Flag()] = False
    """Load one model after the other, where the two do not fit in memory together."""
    rollouts: Annotated[int, Whole(at_least=0, at_most=100_000)] = 0
    """Places of each text from which a draft chain that starts with a rejected draft is followed, for policies that
    read the draft's own signals; 0 follows none. Needs both models in memory."""


class VerifyConfig(Section):
    """What is decoded end to end, to hold the prediction against the real thing."""

    gamma: Annotated[
        Literal["recommended"] | tuple[int, ...],
        Axis(Whole(at_least=1, at_most=LARGEST_GAMMA), word="recommended"),
    ] = "recommended"
    """Gammas that are decoded, each one of grid.gamma; `recommended` is the recommended one and its neighbours."""
    batch_size: Annotated[
        tuple[int, ...] | None,
        Axis(Whole(at_least=1, at_most=LARGEST_BATCH_SIZE), null_means="those of grid.batch_size"),
    ] = None
    """Batch sizes that are decoded, each one of grid.batch_size; null is all of them."""
    context: Annotated[
        tuple[int, ...] | None,
        Axis(Whole(at_least=1, at_most=LARGEST_CONTEXT), null_means="those of grid.context"),
    ] = None
    """Contexts the texts start from, each one of grid.context; null is all of them."""
    policies: Annotated[tuple[Policy, ...] | None, POLICIES] = None
    """Adaptive policies that are decoded beside the gammas; null is none. They are tuned on the recorded acceptance of
    every other prompt, so that no prompt is decoded by a policy that has seen it."""
    prompts: Annotated[int | None, Whole(at_least=1, or_null=True, null_means="every prompt")] = 16
    """Prompts decoded in each cell, from the first; each is brought to exactly the context's length."""
    max_new_tokens: Annotated[
        int | None,
        Whole(at_least=2, at_most=LARGEST_CONTEXT, or_null=True, null_means="workload.max_new_tokens"),
    ] = None
    """Tokens written for each prompt; null is as many as workload.max_new_tokens."""
    repetitions: Annotated[int, Whole(at_least=1, at_most=100_000)] = 1
    """Texts written for each prompt and arm, each with its own random numbers."""
    acceptance: Annotated[
        float | tuple[float, ...] | None,
        Numbers(Real(at_least=0.0, at_most=1.0), null_means="the models decide"),
    ] = None
    """Accept by coin at this rate, or at these rates by place in a round, to check the cost model alone; the texts are
    then not the target's."""
    max_seconds: Annotated[float | None, Real(above=0.0, unit="seconds", or_null=True, null_means="no limit")] = 300.0
    """Seconds for the decoding of one pair; every cell gets its first block all the same. Null is no limit."""


class Config(Section):
    """Everything a run depends on: pairs, prompts, sampling settings, the grid and the precision wanted."""

    name: Annotated[str, NAME]
    """Names the run; its directory is runs/<name> unless told otherwise."""
    pairs: Annotated[tuple[PairConfig, ...], Field(min_length=1)]
    """The pairs measured, at least one; each under its own name."""
    workload: WorkloadConfig = WorkloadConfig()
    """The prompts, and how much is written for each."""
    sampling: Annotated[tuple[SamplingConfig, ...], Field(min_length=1)] = (
        SamplingConfig(name="greedy", temperature=0.0),
    )
    """The sampling settings, at least one; each under its own name."""
    draft_sampling: Annotated[
        tuple[Literal["same", "greedy"], ...],
        Several(Choice(words=("same", "greedy"))),
    ] = ("same",)
    """How the draft draws: as the sampling setting says, or always its likeliest token."""
    acceptance_rule: Annotated[
        tuple[Literal["ratio", "match"], ...],
        Several(Choice(words=("ratio", "match"))),
    ] = ("ratio",)
    """How a draft is judged: by the ratio of probabilities, or by equality with the target's own draw."""
    grid: GridConfig = GridConfig()
    """The cells that are measured."""
    precision: PrecisionConfig = PrecisionConfig()
    """When timing is good enough."""
    mode: Annotated[Mode, variants.MODE] = "eager"
    """How the forwards of a round run: as torch runs them, through torch.compile, or as captured CUDA graphs. Several
    make a variant of every pair each."""
    threads: Annotated[int | None, variants.THREADS] = None
    """Torch's threads within one operation on the CPU; null leaves torch's own choice. Several make a variant of every
    pair each."""
    seed: Annotated[int, Whole(at_least=0, at_most=LARGEST_SEED)] = 0
    """Every random number of a run follows from it."""
    acceptance: AcceptanceConfig = AcceptanceConfig()
    """How acceptance is measured."""
    verify: VerifyConfig | None = None
    """What is decoded end to end to check the prediction; null decodes nothing, {} takes the defaults."""
    limits: LimitsConfig = LimitsConfig()
    """What a run may spend."""

    @model_validator(mode="before")
    @classmethod
    def _with_variants(cls, written: Any) -> Any:
        """A pair for every variant, where lists make any."""
        if not isinstance(written, Mapping):
            return written
        found = variants.spread(written)
        _fail_if(found.faults)
        return found.value

    def mode_of(self, pair: PairConfig) -> Mode:
        """How a pair's forwards run: its own mode, or the configuration's."""
        return pair.mode or self.mode

    def threads_of(self, pair: PairConfig) -> int | None:
        """Torch's threads for a pair: its own, or the configuration's; None is torch's own choice."""
        return pair.threads or self.threads

    @model_validator(mode="after")
    def _check_together(self) -> Config:
        found = repeated_names(self.model_dump(include={"pairs", "sampling"}))
        found += self._rule_faults()
        found += self._verify_faults()
        largest = max(self.grid.gamma)
        if self.workload.max_new_tokens <= largest:
            words = f"more than the largest gamma, which is {largest}, or no round can be judged"
            found.append(value_fault(("workload", "max_new_tokens"), self.workload.max_new_tokens, words))
        _fail_if(found)
        return self

    def places(self) -> Iterator[Place]:
        """Every place of the full grid, by pair, then batch size and context."""
        for pair in self.pairs:
            for batch_size in self.grid.batch_size:
                for context in self.grid.context:
                    yield Place(pair=pair.name, mode=self.mode_of(pair), batch_size=batch_size, context=context)

    def is_measured(self, place: Place) -> bool:
        """Whether the rules of the grid leave the cells of a place."""
        return is_measured(place, self.grid.include, self.grid.exclude)

    def is_verified(self, place: Place) -> bool:
        """Whether the cells of a place are measured, and decoded end to end where anything is."""
        verify = self.verify or VerifyConfig()
        sizes, contexts = verify.batch_size or self.grid.batch_size, verify.context or self.grid.context
        return place.batch_size in sizes and place.context in contexts and self.is_measured(place)

    def _rule_faults(self) -> list[Fault]:
        """What the rules of the grid name must be there."""
        rules = {"include": self.grid.include, "exclude": self.grid.exclude}
        return rule_faults(tuple(self.places()), rules) if any(rules.values()) else []

    def _verify_faults(self) -> list[Fault]:
        """What is to be verified must be predicted, and forced rates must reach as far as a round."""
        verify = self.verify
        if verify is None:
            return []
        found: list[Fault] = []
        for axis in ("gamma", "batch_size", "context"):
            wanted, grid = getattr(verify, axis), getattr(self.grid, axis)
            outside = [] if wanted is None or wanted == "recommended" else [one for one in wanted if one not in grid]
            if outside:
                words = f"values of grid.{axis}, which are {', '.join(map(str, grid))}"
                found.append(value_fault(("verify", axis), outside[0], words))
        if not found and not any(self.is_verified(place) for place in self.places()):
            words = "batch sizes and contexts of which grid.include and grid.exclude leave a cell"
            found.append(value_fault(("verify",), "no cell to decode", words))
        if verify.policies is not None and verify.acceptance is not None:
            words = "null where verify.acceptance is given: policies are tuned on what the models accept"
            found.append(value_fault(("verify", "policies"), ", ".join(verify.policies), words))
        rates = verify.acceptance
        deepest = max(self.grid.gamma) if verify.gamma == "recommended" else max(verify.gamma)
        if isinstance(rates, tuple) and len(rates) < deepest:
            words = f"one rate, or one for each draft of the largest gamma, which is {deepest}"
            found.append(value_fault(("verify", "acceptance"), f"{len(rates)} rates", words))
        return found


def repeated_names(config: Mapping[str, Any]) -> list[Fault]:
    """Faults of pairs or sampling settings under the same name; upper and lower case count as the same, for files.

    ``config`` is the written form or the dumped one; parts of the wrong kind are passed over.
    """
    found: list[Fault] = []
    for section in ("pairs", "sampling"):
        items = config.get(section)
        first: dict[str, int] = {}
        for index, item in enumerate(items if isinstance(items, Sequence) else ()):
            name = item.get("name") if isinstance(item, Mapping) else None
            if not isinstance(name, str):
                continue
            earlier = first.setdefault(name.casefold(), index)
            if earlier != index:
                keys: Keys = (section, index, "name")
                found.append(value_fault(keys, name, f"a name that {section}[{earlier}] does not have already"))
    return found


def _fail_if(found: Iterable[Fault]) -> None:
    faults = list(found)
    if faults:
        fail(faults)
