"""The configuration as a whole: its sections, and what has to hold between them.

    Config.model_validate({"name": "mine", "pairs": [{"name": "a", "target": "org/model", "draft": "ngram"}]})

Every section is a frozen pydantic model in a file of its own, with every field's meaning, bounds and default.
Shorthands are resolved on the way in (a model by its name alone, one value for a list, ``1:6`` for a range); what a
Config holds is always the full form.  ``specgauge schema`` prints the same rules as JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specgauge.configs import variants
from specgauge.configs.acceptance import AcceptanceConfig
from specgauge.configs.axes import Several
from specgauge.configs.cells import Place, is_measured, rule_faults
from specgauge.configs.faults import Fault, Keys, value_fault
from specgauge.configs.grid import GridConfig
from specgauge.configs.limits import LimitsConfig
from specgauge.configs.names import NAME
from specgauge.configs.pairs import PairConfig
from specgauge.configs.precision import PrecisionConfig
from specgauge.configs.rules import Choice, Whole, fail
from specgauge.configs.sampling import SamplingConfig
from specgauge.configs.section import Section
from specgauge.configs.verify import VerifyConfig
from specgauge.configs.workload import WorkloadConfig

LARGEST_SEED = (1 << 63) - 1


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
    mode: Annotated[variants.Mode, variants.MODE] = "eager"
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
        if found.faults:
            fail(found.faults)
        return found.value

    def mode_of(self, pair: PairConfig) -> variants.Mode:
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
        if found:
            fail(found)
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
