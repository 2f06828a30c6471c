"""The workload: which prompts, how long each is made, and how much text the target writes for it.

workload: {prompts: mine.jsonl, limit: 100, prompt_tokens: [256, 4096], max_new_tokens: 128}
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from specgauge.configs.axes import Axis
from specgauge.configs.cells import LARGEST_CONTEXT, LARGEST_REPETITIONS
from specgauge.configs.faults import value_fault
from specgauge.configs.names import EMBEDDED
from specgauge.configs.rules import FILLED, Choice, Text, Whole, fail
from specgauge.configs.section import Section


class WorkloadConfig(Section):
    """The prompts, and how much text the target writes for each when acceptance is measured."""

    prompts: Annotated[str, Text(pattern=FILLED, means=f"{EMBEDDED} or the path of a prompts file")] = EMBEDDED
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
    repetitions: Annotated[int, Whole(at_least=1, at_most=LARGEST_REPETITIONS)] = 1
    """Texts written for each prompt, each with its own random numbers."""

    @model_validator(mode="after")
    def _check_together(self) -> WorkloadConfig:
        if self.prompts == EMBEDDED and self.format not in ("auto", "jsonl"):
            fail([value_fault(("format",), self.format, f"auto or jsonl, since the prompts are {EMBEDDED}")])
        return self
