"""What is decoded end to end: γ and adaptive policies, where, and how much of it.

verify: {gamma: recommended, batch_size: 1, policies: [svip, renewal], prompts: 16, max_seconds: 300}
"""

from __future__ import annotations

from typing import Annotated, Literal

from specgauge.configs.axes import Axis, Numbers
from specgauge.configs.cells import LARGEST_BATCH_SIZE, LARGEST_CONTEXT, LARGEST_REPETITIONS
from specgauge.configs.grid import LARGEST_GAMMA
from specgauge.configs.policies import POLICIES, Policy
from specgauge.configs.rules import Real, Whole
from specgauge.configs.section import Section


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
    repetitions: Annotated[int, Whole(at_least=1, at_most=LARGEST_REPETITIONS)] = 1
    """Texts written for each prompt and arm, each with its own random numbers."""
    baseline_blocks: Annotated[int | None, Whole(at_least=1, or_null=True, null_means="all of them")] = None
    """Blocks (batches of prompts) of each cell, from the first, in which plain decoding is held against transformers'
    generate and the speculative loop without drafts; null is all of them. Fewer leave time for more texts."""
    acceptance: Annotated[
        float | tuple[float, ...] | None,
        Numbers(Real(at_least=0.0, at_most=1.0), null_means="the models decide"),
    ] = None
    """Accept by coin at this rate, or at these rates by place in a round, to check the cost model alone; the texts are
    then not the target's."""
    max_seconds: Annotated[float | None, Real(above=0.0, unit="seconds", or_null=True, null_means="no limit")] = 300.0
    """Seconds for the decoding of one pair; every cell gets its first block all the same. Null is no limit."""
