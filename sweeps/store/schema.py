"""What every file of a run directory holds: a row type each, whose fields are its columns or keys.

A row is checked when it is made; unknown is None, times are in seconds. A field with a default may be missing.

    PredictionRow        predictions.csv         RequestRow, RoundRow   requests.parquet, rounds.parquet
    ValidationRow        validation.csv          RolloutRow             rollouts.parquet
    RecommendationRow    recommendation.yaml     AcceptanceRow          acceptance/<pair>--<sampling>.parquet
    JournalLine          cells.jsonl             PromptRow              prompts.jsonl
    TunedCell            policies.json
    Environment          environment.json        (`specgauge.sweeps.store.environment`)
    PairOutcome          outcomes.json           (`specgauge.sweeps.store.outcomes`)
    CountsRow            counts.jsonl            (`specgauge.sweeps.store.counts`)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from specgauge.configs.canonical import short_hash
from specgauge.configs.fields import LARGEST_BATCH_SIZE, LARGEST_CONTEXT, LARGEST_GAMMA
from specgauge.model.arms import SEVERAL_MARKS, TIMED, Arm, arm_forms
from specgauge.model.checks import LARGEST_WHOLE, LONGEST_S, SHORTEST_S
from specgauge.model.policies.policy import GammaPolicy
from specgauge.model.policies.tuning import policy_of, policy_record
from specgauge.model.settings import Point, Setting

SCHEMA = 1
"""The release of the file formats; a file of another one is refused."""

LARGEST_NUMBER = 1e30
"""Nothing measured is beyond it, and what is reckoned or drawn from larger numbers overflows."""
LIMITS = frozenset({LARGEST_WHOLE, -LARGEST_WHOLE, LARGEST_NUMBER, -LARGEST_NUMBER})
"""Bounds that every number has, which is told of one that is beyond them alone."""

Text = Annotated[str, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Integer = Annotated[int, Field(strict=True, ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)]
Whole = Annotated[int, Field(strict=True, ge=0, le=LARGEST_WHOLE)]
Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST_WHOLE)]
Gamma = Annotated[int, Field(strict=True, ge=1, le=LARGEST_GAMMA)]
BatchSize = Annotated[int, Field(strict=True, ge=1, le=LARGEST_BATCH_SIZE)]
Context = Annotated[int, Field(strict=True, ge=1, le=LARGEST_CONTEXT)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
NotNegative = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=LARGEST_NUMBER)]
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=LARGEST_NUMBER)]
Share = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Probability = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1)]

EXACT = ConfigDict(extra="forbid")
OPEN = ConfigDict(extra="ignore")


def expected(what: str) -> PydanticCustomError:
    """The error of a field that should have been `what`."""
    return PydanticCustomError("expected", "{what}", {"what": what})


AXES = ("pair", "mode", "chain", "batch_size", "context")
_TEXT_AXES = ("pair", "mode", "chain")
Status = Literal["ok", "oom", "skipped", "failed", "killed"]
SETTLED: frozenset[str] = frozenset({"ok", "oom", "skipped"})
"""Statuses that are results; a block that failed or was killed is measured again by the next run."""
Key = tuple[str, str, int]


def _axes(axes: dict[str, Any]) -> dict[str, Any]:
    if sorted(axes) != sorted(AXES):
        raise expected(f"exactly the keys {', '.join(AXES)}")
    for name, value in axes.items():
        if name in _TEXT_AXES and not isinstance(value, str):
            raise expected(f"text under {name}")
        if name not in _TEXT_AXES and (type(value) is not int or not 0 <= value <= LARGEST_CONTEXT):
            raise expected(f"a whole number from 0 to {LARGEST_CONTEXT} under {name}")
    return axes


def check_arm(arm: str, kinds: Mapping[str, str] = TIMED) -> str:
    """The text of an arm of one of the kinds; an error for any other."""
    with suppress(ValueError):
        if Arm.parse(arm).kind in kinds:
            return arm
    raise expected(arm_forms(kinds))


Mark = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=SHORTEST_S, le=LONGEST_S)]
Samples = tuple[Annotated[tuple[Mark, ...], Field(min_length=1)], ...]


@dataclass(frozen=True, kw_only=True, config=EXACT)
class DisturbanceRow:
    """What other programs did beside a block: a `Disturbance` of `specgauge.model.stats.disturbance`."""

    threads: Count | None = None
    wall_s: NotNegative | None = None
    processor_s: NotNegative | None = None
    involuntary_switches: Whole | None = None
    steal_s: NotNegative | None = None
    pressure_s: NotNegative | None = None
    sm_clock_hz: NotNegative | None = None
    throttled_by: Text | None = None
    other_processes: Whole | None = None
    disturbed: Whole | None = None
    retaken: Whole | None = None
    retaken_s: NotNegative | None = None


@dataclass(frozen=True, kw_only=True, config=EXACT)
class JournalLine:
    """What one arm of one cell gave in one block: a line of cells.jsonl, which has a `checksum` of these fields too.

    A sample is a list of marks in seconds: one for most arms, those of 1, … γ_max drafts for `draft` and `transfer`.
    """

    schema: Integer = SCHEMA
    config: Text
    cell: Text
    axes: Annotated[dict[str, Any], AfterValidator(_axes)]
    arm: Annotated[str, Field(strict=True), AfterValidator(check_arm)]
    block: Whole
    status: Status
    reason: Text | None = None
    samples_s: Samples = ()
    first_call_s: NotNegative | None = None
    warmup_s: Samples = ()
    device_s: NotNegative | None = None
    """The wall time that the line cost."""
    at: Text | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    disturbance: DisturbanceRow | None = None

    def __post_init__(self) -> None:
        """Refuse a cell that is not the hash of its axes, and several marks of an arm that has one."""
        if self.cell != short_hash(self.axes):
            raise expected(f"the cell {short_hash(self.axes)!r}, the hash of its axes")
        if self.arm not in SEVERAL_MARKS and any(len(sample) > 1 for sample in self.samples_s):
            raise expected(f"one mark in every sample of {self.arm!r}")

    @property
    def key(self) -> Key:
        """What the line is about: (cell, arm, block)."""
        return self.cell, self.arm, self.block


@dataclass(frozen=True, kw_only=True, config=EXACT)
class PromptRow:
    """A prompt of a pair, as text and as token ids: a line of prompts.jsonl."""

    schema: Integer = SCHEMA
    pair: Text
    prompt: Whole
    category: Text | None
    text: Text
    tokens: tuple[Whole, ...]


@dataclass(frozen=True, kw_only=True, config=OPEN)
class AcceptanceRow:
    """A position of a target's text under a teacher-forced pass: a row of an acceptance file."""

    prompt: Whole
    repetition: Whole
    position: Whole
    context: Whole
    token: Whole
    target_prob: Number | None
    draft_prob: Number | None
    overlap_ratio: Number | None
    overlap_match: Number | None
    draft_argmax: Integer | None
    draft_argmax_target_prob: Number | None
    draft_top_prob: Share | None
    draft_entropy_nats: NotNegative | None
    proposed_length: Whole | None = None
    """This and the next three are of lookups alone."""
    match_length: Whole | None = None
    lookup_match: Whole | None = None
    rejected_target_prob: Number | None = None
    end_reason: Text


@dataclass(frozen=True, kw_only=True, config=OPEN)
class RolloutRow:
    """A step of a draft chain that starts with a rejected draft: a row of rollouts.parquet."""

    pair: Text
    sampling: Text
    draft_sampling: Text
    acceptance_rule: Text
    prompt: Whole
    repetition: Whole
    start: Whole
    depth: Count
    token: Whole
    top_prob: Probability
    entropy_nats: NotNegative


@dataclass(frozen=True, kw_only=True, config=EXACT)
class SettingRow:
    """What is decoded, under which sampling setting and acceptance rule."""

    pair: Text
    mode: Text
    sampling: Text
    draft_sampling: Text
    acceptance_rule: Text
    batch_size: BatchSize


@dataclass(frozen=True, kw_only=True, config=EXACT)
class DecodedKey(SettingRow):
    """Where blocks are decoded end to end."""

    start_context: Context
    """The length of every prompt of a block."""


@dataclass(frozen=True, kw_only=True, config=EXACT)
class RequestRow(DecodedKey, DisturbanceRow):
    """A row of a batch decoded under an arm: a row of requests.parquet; the disturbance is its whole block's."""

    block: Whole
    arm: Text
    gamma: Whole | None
    row: Whole
    prompt: Whole
    repetition: Whole
    prompt_tokens: Whole
    tokens: tuple[Whole, ...]
    finish_reason: Text
    prefill_s: Number | None
    seconds: Number | None
    decode_s: Number | None
    rounds: Whole | None
    expected_rounds: Number | None
    expected_starts: tuple[Number, ...] | None
    expected_committed: tuple[Number, ...] | None
    lossless: Flag
    why_not_lossless: Text | None
    against_plain: Text | None
    leaves_plain_at: Whole | None
    leaves_plain_margin: Number | None


@dataclass(frozen=True, kw_only=True, config=EXACT)
class RoundRow(DecodedKey):
    """A row's part in a round, with the batch's phase times: a row of rounds.parquet; plain steps are rounds."""

    block: Whole
    arm: Text
    round: Whole
    active_rows: Whole
    row: Whole
    prompt: Whole
    repetition: Whole
    position: Whole
    context: Whole
    gamma_asked: Whole
    gamma: Whole
    gamma_limit: Text
    drafted: Whole
    accepted: Whole
    emitted: Whole
    t_round_s: Number
    t_draft_s: Number | None
    t_transfer_s: Number | None = None
    t_verify_s: Number | None
    t_accept_s: Number | None
    t_rest_s: Number | None
    top_probs: tuple[Number, ...] | None
    entropies_nats: tuple[Number, ...] | None
    match_length: Whole | None


def _policy(value: Any) -> GammaPolicy:
    if not isinstance(value, GammaPolicy | Mapping):
        raise expected("a mapping of a policy's kind and fields")
    return policy_of(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, kw_only=True, config=EXACT)
class TunedHalf:
    """The policies that one half of the prompts is decoded under."""

    tuned_on: tuple[Whole, ...]
    """Numbers of the prompts that taught them; none of this half."""
    policies: dict[str, Annotated[GammaPolicy, PlainValidator(_policy), PlainSerializer(policy_record)]]


@dataclass(frozen=True, kw_only=True, config=EXACT)
class TunedCell:
    """The adaptive policies of one cell, as they were tuned: an entry of policies.json."""

    key: DecodedKey
    prompts: Count
    """Prompts of the workload; each may have been recorded at several lengths."""
    gamma_max: Gamma
    """The most drafts that any of them may ask for."""
    t_overhead_s: Number
    """ε that they were tuned with: of the decoder's phases, before anything was decoded under them."""
    t_early_stop_check_s: Number
    """What reading a draft's signals costs."""
    halves: tuple[TunedHalf, TunedHalf]
    """For even prompts, for odd ones."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why a policy that was asked for is not decoded, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The policies that are decoded."""
        return tuple(self.halves[0].policies)


@dataclass(frozen=True, kw_only=True, config=OPEN)
class CellRow(SettingRow):
    """Of which cell a prediction, recommendation or validation is."""

    context: Context

    @property
    def setting(self) -> Setting:
        """What was decoded."""
        return Setting(**{name: getattr(self, name) for name in Setting.__dataclass_fields__})

    @property
    def point(self) -> Point:
        """Where."""
        return Point(batch_size=self.batch_size, context=self.context)


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PredictionRow(CellRow):
    """A cell at one γ: a row of predictions.csv."""

    gamma: Gamma
    t_decode_s: Number | None
    t_draft_total_s: Number | None
    t_draft_catch_up_s: Number | None
    t_transfer_s: Number | None = None
    t_verify_s: Number | None
    """T_verify(γ), of γ drafts."""
    t_verify_mean_s: Number | None
    """Mean verification of the rounds at this γ, which find fewer drafts where they are looked up."""
    t_overhead_s: Number | None
    t_round_s: Number | None
    tokens_per_round: Number | None
    tokens_per_round_low: Number | None
    tokens_per_round_high: Number | None
    accepted_draft_tokens: Number | None
    drafts_per_round: Number | None
    speedup: Number | None
    speedup_low: Number | None
    speedup_high: Number | None
    p_best: Number | None
    is_best: Flag
    is_recommended: Flag
    full_acceptance: Number | None
    cost_provenance: Text
    acceptance_provenance: Text
    label: Text
    status: Text = ""
    """`ok`, or what kept the number from being known: `refused`, `oom`, `skipped`, `failed`, `killed`, `unmeasured`."""
    reason: Text = ""

    @property
    def round_verify_s(self) -> float | None:
        """What a round spends on verification: the mean over its drafts where that is known, else T_verify(γ)."""
        return self.t_verify_s if self.t_verify_mean_s is None else self.t_verify_mean_s


@dataclass(frozen=True, kw_only=True, config=OPEN)
class ValidationRow(CellRow):
    """What was decoded end to end in a cell, at one γ or under one adaptive policy: a row of validation.csv."""

    gamma: Gamma | None
    """None under a policy, which chooses it."""
    blocks: Whole | None
    rounds: Whole | None
    tokens: Whole
    lossless: Flag
    why_not_lossless: Text | None
    t_overhead_s: Number | None
    overhead_from: Text | None
    t_accept_rest_s: Number | None
    t_round_s: Number | None
    tokens_per_round_predicted: Positive | None
    tokens_per_round_counted: Positive | None
    acceptance_error: Number | None
    acceptance_error_low: Number | None
    acceptance_error_high: Number | None
    speedup_predicted: Positive | None
    speedup_from_counts: Positive | None
    speedup_measured: Positive | None
    speedup_measured_low: Positive | None
    speedup_measured_high: Positive | None
    cost_error: Number | None
    error: Number | None
    speedup_whole: Positive | None
    plain_over_generate: Positive | None
    plain_over_loop: Positive | None
    rounds_counted: Whole
    rounds_expected: Number | None
    rounds_standard_errors: Number | None
    rounds_agree: Flag | None
    texts_same: Whole | None
    texts_tied: Whole | None
    texts_differ: Whole | None
    policy: Text | None
    """This and what follows is of adaptive policies alone."""
    mean_gamma: Number | None
    gamma_switches: Whole | None
    early_stop_checks: Whole | None
    t_early_stop_check_s: Number | None
    best_fixed_gamma: Gamma | None
    over_best_fixed: Number | None
    over_best_fixed_low: Number | None
    over_best_fixed_high: Number | None
    off_path: Text | None
    error_low: Number | None
    error_high: Number | None
    measured_in: Text | None = None
    """Which blocks of a server S was measured in, `timing` or `validation`; None where it was decoded here."""

    def __post_init__(self) -> None:
        """Refuse a row of neither a γ nor a policy."""
        if (self.gamma is None) == (self.policy is None):
            raise expected("either a gamma or a policy")


@dataclass(frozen=True, kw_only=True, config=EXACT)
class Interval:
    """A speed-up with its interval."""

    value: Number | None
    low: Number | None
    high: Number | None


@dataclass(frozen=True, kw_only=True, config=OPEN)
class RecommendationRow(CellRow):
    """The decision for a cell: an entry under `recommendations:` of recommendation.yaml."""

    decision: Literal["speculate", "do not speculate", "undecided"]
    gamma: Gamma | None = None
    best_gamma: Gamma | None
    recommended_gamma: Gamma | None
    speedup: Interval
    """From all evidence: prediction and what was decoded end to end."""
    speedup_predicted: Interval
    p_gamma_best: Number | None = None
    expected_loss: Number | None
    whole_rounds: Flag | None = None
    """Whether rounds were timed whole: ε is in them, unknown or not; None of an earlier release, as of False."""
    p_speculation_pays: Number | None = None
    tokens_per_round: Number | None = None
    """Ω of the γ shown."""
    t_overhead_s: Number | None = None
    t_decode_s: Number | None
    t_round_s: Number | None
    """Of the γ shown, as predicted."""
    reason: Text


@dataclass(frozen=True, kw_only=True, config=OPEN)
class WarningRow:
    """What a reader must know before believing the numbers: an entry under `warnings:` of recommendation.yaml."""

    code: Text = ""
    message: Text
    remedy: Text
