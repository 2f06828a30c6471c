"""What each step of a running vLLM did, as the scheduler in `vllm_gamma/` logs it, and the rounds among them.

    rounds_of(live.steps(serial))                  # T_round(B, γ) and Ω at the batch sizes that the steps had
    rounds_in(live.steps(), block)                 # those of a block of load at which all its streams decoded

A step verifies the drafts of the step before and proposes the next: one that does both at the same γ, has no prompt in
it, and whose rows all had an output, is a round of each of its rows.  Its time is that from the output of the step
before to its own, which is right with asynchronous scheduling and without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specgauge.bench.serving.closed_loop import LoadBlock

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LiveStep:
    """One step of the engine; seconds are those of the monotonic clock."""

    step: int
    serial: int
    """Of the setting it followed."""
    gamma: int
    """Drafts that it proposed for the next step."""
    scheduled_s: float
    done_s: float
    """When its output was there."""
    rows: int
    """Requests in it."""
    tokens: int
    """Tokens that went through the target."""
    running: int
    waiting: int
    preempted: int
    prompts: int
    """Rows that were prompts, or parts of them."""
    rounds: tuple[tuple[int, int, int], ...]
    """[drafted, accepted, rows] of the others; rows of requests that had ended are in none."""
    cut: int
    """Tokens past the end of a request, which no stream has: those of drafts accepted beyond its length."""
    graph: tuple[str, int] | None
    """The mode of the CUDA graph that it ran in, and the tokens that it was padded to; None where not told."""

    @property
    def is_decode(self) -> bool:
        """Whether every row was a round, and no request was put off."""
        return self.preempted == 0 and self.prompts == 0 and sum(rows for *_, rows in self.rounds) == self.rows > 0


@dataclass(frozen=True, kw_only=True)
class LiveRounds:
    """Rounds of one γ at one batch size."""

    batch_size: int
    gamma: int
    t_round_s: tuple[float, ...]
    """A time for each step."""
    rounds: int
    """Steps times rows."""
    tokens: int
    """Accepted drafts and the bonus or replacement of each round, those too that were past a request's end."""
    cut: int
    """How many of these were: streams and vLLM's counters have the rest."""
    drafted: int
    first_accepted: tuple[int, ...]
    """Rounds that accepted at least 1, 2, … γ drafts."""
    graphs: tuple[tuple[str, int], ...]
    """Modes and padded tokens of the CUDA graphs they ran in; none where not told."""

    @property
    def tokens_per_round(self) -> float:
        """Ω."""
        return self.tokens / self.rounds

    @property
    def mean_s(self) -> float:
        """T_round: the mean over steps, each of which every row waited for."""
        return sum(self.t_round_s) / len(self.t_round_s)

    @property
    def padded(self) -> int:
        """The most tokens that a CUDA graph had beyond those of a round of each row; 0 where not told."""
        largest = max((tokens for _, tokens in self.graphs), default=0)
        return max(0, largest - self.batch_size * (self.gamma + 1))


def step_of(line: Mapping[str, Any]) -> LiveStep:
    """The step of a line of the log."""
    graph = line.get("graph")
    return LiveStep(
        **{name: line[name] for name in ("step", "serial", "gamma", "rows", "tokens", "running", "waiting")},
        preempted=line["preempted"],
        prompts=line["prompts"],
        cut=line["cut"],
        scheduled_s=line["t"],
        done_s=line["done"],
        rounds=tuple((drafted, accepted, rows) for drafted, accepted, rows in line["rounds"]),
        graph=None if graph is None else (str(graph[0]).rpartition(".")[2], int(graph[1])),
    )


def rounds_of(steps: Sequence[LiveStep], stalls: Sequence[Span] = ()) -> list[LiveRounds]:
    """Rounds by batch size and γ, in that order, from steps in theirs; the first step has no time.

    stalls: when the machine stood still, in seconds of the monotonic clock: steps in them have no time either.
    """
    found: dict[tuple[int, int], list[tuple[float, LiveStep]]] = {}
    for before, step in pairwise(steps):
        if step.step != before.step + 1 or not step.is_decode or step.gamma != before.gamma:
            continue
        if not any(start < step.done_s and before.done_s < until for start, until in stalls):
            found.setdefault((step.rows, step.gamma), []).append((step.done_s - before.done_s, step))
    return [_rounds(batch_size, gamma, timed) for (batch_size, gamma), timed in sorted(found.items())]


def rounds_in(steps: Sequence[LiveStep], block: LoadBlock) -> LiveRounds | None:
    """Rounds of a block's γ in which all its streams decoded; None where it had none, or its γ is not known.

    The client and the engine must have one clock, as on one machine.
    """
    own = [step for step in steps if block.started_s <= step.scheduled_s and step.done_s <= block.ended_s]
    found = rounds_of(own, block.stalls)
    return next((one for one in found if (one.batch_size, one.gamma) == (block.batch_size, block.gamma)), None)


def _rounds(batch_size: int, gamma: int, timed: Sequence[tuple[float, LiveStep]]) -> LiveRounds:
    counts = [one for _, step in timed for one in step.rounds]
    rounds = sum(rows for *_, rows in counts)
    return LiveRounds(
        batch_size=batch_size,
        gamma=gamma,
        t_round_s=tuple(seconds for seconds, _ in timed),
        rounds=rounds,
        tokens=rounds + sum(accepted * rows for _, accepted, rows in counts),
        cut=sum(step.cut for _, step in timed),
        drafted=sum(drafted * rows for drafted, _, rows in counts),
        first_accepted=tuple(
            sum(rows for _, accepted, rows in counts if accepted >= least) for least in range(1, gamma + 1)
        ),
        graphs=tuple(sorted({step.graph for _, step in timed if step.graph is not None})),
    )
