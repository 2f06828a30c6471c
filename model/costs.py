"""What a round costs: `RoundCosts`, where it comes from (`CostSource`), and the table measured costs are looked up in.

    T_decode, C(gamma), T_transfer(gamma), T_verify(gamma), Delta_2, epsilon       seconds, each with its provenance

Between measured batch sizes and contexts a table interpolates linearly in each (bilinear: exact for weights plus cache,
a + b B + c s + d B s), so a table that rises stays rising and nodes keep their exact values.  Beyond the largest node
the last slope goes on, never downwards; below the smallest the edge is kept.  Gamma is different: T_verify has cliffs,
so a value between measured gammas is a guess, whose provenance is `ASSUMED`.

    cost_table("small, eager", {Point(batch_size=1, context=512): costs, …}).costs(8, [512, 700], [1, 2, 3])

`DraftKind` gives C(gamma) by the kind of drafter, chains only:

    autoregressive   sum of gamma draft steps
    parallel         one pass for every gamma (multi-token prediction, Medusa), as many drafts as heads
    lookup           one fixed cost (prompt lookup, n-gram tables)

    >>> DraftKind("autoregressive", 0.002).total_s([1, 3]).tolist()
    [0.002, 0.006]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, IntArray, positive_times_s, times_s, whole_numbers
from specgauge.model.settings import Point, Provenance

KINDS = ("autoregressive", "parallel", "lookup")


@dataclass(frozen=True)
class DraftKind:
    """C(gamma) of one kind of drafter."""

    name: str
    """One of `KINDS`."""
    t_draft_s: float | Sequence[float]
    """Seconds a step, pass or lookup; a list gives T_draft(1), T_draft(2), … where later steps cost more."""

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown name, a draft tree, or several times where the kind has one."""
        expected = f"draft kind: expected {', '.join(KINDS)}, got {self.name!r}"
        if "tree" in self.name.lower():
            why = "since a tree verifies more tokens than the gamma + 1 of a chain"
            raise ValueError(f"{expected}; draft trees are not covered, {why}")
        if self.name not in KINDS:
            near = get_close_matches(self.name, KINDS, n=1)
            raise ValueError(f"{expected} (nearest: {near[0]})" if near else expected)
        count = times_s("t_draft_s", self.t_draft_s).size
        if self.name != "autoregressive" and count != 1:
            raise ValueError(f"t_draft_s: expected one value, whatever gamma, for a {self.name} draft, got {count}")

    def passes(self, gammas: ArrayLike) -> IntArray:
        """Draft forwards, passes or lookups in a round."""
        drafts = whole_numbers("gamma", gammas, minimum=0)
        return drafts if self.name == "autoregressive" else np.minimum(drafts, 1)

    def total_s(self, gammas: ArrayLike) -> FloatArray:
        """C(gamma) = sum_{k <= passes} T_draft(k), any shape; ValueError for a gamma beyond the listed steps."""
        passes, steps = self.passes(gammas), times_s("t_draft_s", self.t_draft_s)
        if steps.ndim == 0:
            return np.asarray(passes * steps, dtype=np.float64)
        if np.any(passes > steps.size):
            raise ValueError(
                f"t_draft_s: expected a step for each of {passes.max()} drafts, or one value for all, got {steps.size}"
            )
        return np.asarray(np.concatenate([[0.0], np.cumsum(steps)])[passes], dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """Seconds that a round spends, by gamma; the only type of costs, whatever they were taken from.

    (…) are any leading axes: none, cells (batch x context), or 1 + R rows with the estimate first and R bootstrap
    replicates after it.  What was not measured is NaN.
    """

    gammas: IntArray
    """(G,) drafts of a round, rising, above 0."""
    t_decode_s: FloatArray
    """(…) T_decode: one target forward of one token per sequence."""
    t_draft_total_s: FloatArray
    """(…, G) C(gamma): the whole chain of drafts."""
    t_verify_s: FloatArray
    """(…, G) T_verify(gamma): one target forward of gamma + 1 tokens per sequence."""
    t_draft_catch_up_s: FloatArray | None = None
    """(…) Delta_2, the excess of a first draft step that feeds two tokens; None where there is nothing to catch up."""
    t_transfer_s: FloatArray | None = None
    """(…, G) T_transfer(gamma): drafts, and their distributions where the rule needs them, to the target's device;
    None where both models are on one."""
    t_overhead_s: FloatArray | None = None
    """(…, G), or what broadcasts to it: epsilon, below 0 where the rest was timed slowly; None where no decoder has
    measured it: it then counts as 0, and a speed-up is optimistic."""
    t_round_s: FloatArray | None = None
    """(…, G) rounds timed whole, as a serving engine shows them, epsilon in them: then they are T_round, and parts may
    be NaN; NaN where a round has its parts alone, None where every round has."""
    provenance: IntArray
    """(…, G), or what broadcasts to it: `Provenance` of the round and of decode, the weakest of them."""

    @property
    def is_optimistic(self) -> bool:
        """Whether epsilon is unknown of some round."""
        return self.t_overhead_s is None and (self.t_round_s is None or not bool(np.isfinite(self.t_round_s).all()))

    def only(self, gammas: ArrayLike) -> RoundCosts:
        """The same for some of its gammas, in their order; ValueError for another gamma."""
        columns = [self.gammas.tolist().index(gamma) for gamma in np.atleast_1d(gammas).tolist()]

        def chosen(values: FloatArray) -> FloatArray:
            return np.broadcast_to(values, self.t_verify_s.shape)[..., columns]

        return replace(
            self,
            gammas=self.gammas[columns],
            t_draft_total_s=chosen(self.t_draft_total_s),
            t_verify_s=chosen(self.t_verify_s),
            t_transfer_s=None if self.t_transfer_s is None else chosen(self.t_transfer_s),
            t_overhead_s=None if self.t_overhead_s is None else chosen(self.t_overhead_s),
            t_round_s=None if self.t_round_s is None else chosen(self.t_round_s),
            provenance=np.broadcast_to(self.provenance, self.t_verify_s.shape)[..., columns],
        )

    def row(self, at: int) -> RoundCosts:
        """One entry of the first axis: a batch size, or the estimate (0) of costs with replicates."""

        def chosen(values: FloatArray) -> FloatArray:
            return np.asarray(np.broadcast_to(values, self.t_verify_s.shape)[at])

        return replace(
            self,
            t_decode_s=self.t_decode_s[at],
            t_draft_total_s=chosen(self.t_draft_total_s),
            t_verify_s=self.t_verify_s[at],
            t_draft_catch_up_s=None if self.t_draft_catch_up_s is None else self.t_draft_catch_up_s[at],
            t_transfer_s=None if self.t_transfer_s is None else chosen(self.t_transfer_s),
            t_overhead_s=None if self.t_overhead_s is None else chosen(self.t_overhead_s),
            t_round_s=None if self.t_round_s is None else chosen(self.t_round_s),
            provenance=np.broadcast_to(self.provenance, self.t_verify_s.shape)[at],
        )


def measured_costs(
    gammas: ArrayLike,
    *,
    t_decode_s: FloatArray,
    t_draft_marks_s: FloatArray,
    t_verify_s: FloatArray,
    t_draft_two_tokens_s: FloatArray | None = None,
    t_transfer_marks_s: FloatArray | None = None,
    t_round_s: FloatArray | None = None,
) -> RoundCosts:
    """Costs from the medians of what was timed, (…) leading; the one place where noise in them is put right.

    A chain never falls: C(gamma) is at least every C before it, and so with transfers. Delta_2 is a first draft step
    that feeds two tokens less C(1), and 0 where noise makes that negative: two tokens save nothing.

    Args:
        gammas: (G,) drafts of a round, each with a mark.
        t_decode_s: (…).
        t_draft_marks_s: (…, M) C(1) … C(M).
        t_verify_s: (…, G).
        t_draft_two_tokens_s: (…); None where no draft catches up.
        t_transfer_marks_s: (…, M) of 1 … M drafts; None where nothing crosses devices.
        t_round_s: (…, G); None where no round was timed whole.
    """
    drafts = np.atleast_1d(whole_numbers("gammas", gammas, minimum=1))
    chain_s = np.maximum.accumulate(t_draft_marks_s, axis=-1)
    catch_up_s = None if t_draft_two_tokens_s is None else np.maximum(t_draft_two_tokens_s - chain_s[..., 0], 0.0)
    transfer_s = None if t_transfer_marks_s is None else np.maximum.accumulate(t_transfer_marks_s, axis=-1)
    return RoundCosts(
        gammas=drafts,
        t_decode_s=t_decode_s,
        t_draft_total_s=chain_s[..., drafts - 1],
        t_verify_s=t_verify_s,
        t_draft_catch_up_s=catch_up_s,
        t_transfer_s=None if transfer_s is None else transfer_s[..., drafts - 1],
        t_round_s=t_round_s,
        provenance=np.full(drafts.size, int(Provenance.MEASURED)),
    )


class CostSource(Protocol):
    """Whatever tells what rounds cost: a table of measured cells, the roofline, an engine's files, a live server."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def costs(self, batch_size: ArrayLike, context: ArrayLike, gammas: ArrayLike) -> RoundCosts:
        """Costs at every broadcast (batch size, context) of shape (…) and every gamma (G,).

        Raises:
            ValueError: a batch size or gamma below 1, a negative context, or a part the source knows nothing of.
        """


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """Measured cells over batch size and context; B batch sizes, S contexts, gammas 1 … K."""

    name: str
    batch_sizes: IntArray
    contexts: IntArray
    cells: RoundCosts
    """(B, S), NaN where a part was not measured."""

    def costs(self, batch_size: ArrayLike, context: ArrayLike, gammas: ArrayLike) -> RoundCosts:
        """As `CostSource.costs`; Delta_2 is 0 if no cell has it, and parts are NaN where rounds were timed whole."""
        rows = whole_numbers("batch_size", batch_size, minimum=1)
        context_array = whole_numbers("context", context, minimum=0)
        drafts = np.atleast_1d(whole_numbers("gammas", gammas, minimum=1))
        shape = np.broadcast_shapes(rows.shape, context_array.shape)
        points = _Points(
            table=self,
            batch=np.broadcast_to(rows, shape).ravel(),
            context=np.broadcast_to(context_array, shape).ravel(),
            shape=shape,
        )
        decode, decode_from = points.surface("t_decode_s", self.cells.t_decode_s)
        whole = None
        if self.cells.t_round_s is not None:
            whole, whole_from = points.by_gamma("t_round_s", self.cells.t_round_s, drafts)
            draft_total = verify = np.full(whole.shape, np.nan)
            rounds_from = whole_from
        else:
            draft_total, draft_from = points.chain(drafts)
            verify, verify_from = points.by_gamma("t_verify_s", self.cells.t_verify_s, drafts)
            rounds_from = np.maximum(draft_from, verify_from)
        transfer = None
        if self.cells.t_transfer_s is not None:
            transfer, transfer_from = points.by_gamma("t_transfer_s", self.cells.t_transfer_s, drafts)
            rounds_from = np.maximum(rounds_from, transfer_from)
        catch_up = np.zeros(shape)
        measured = self.cells.t_draft_catch_up_s
        if measured is not None and np.any(np.isfinite(measured)):
            catch_up, _ = points.surface("t_draft_catch_up_s", measured)
        return RoundCosts(
            gammas=drafts,
            t_decode_s=decode,
            t_draft_total_s=draft_total,
            t_verify_s=verify,
            t_draft_catch_up_s=catch_up,
            t_transfer_s=transfer,
            t_round_s=whole,
            provenance=np.maximum(decode_from[..., np.newaxis], rounds_from),
        )


def cost_table(name: str, cells: Mapping[Point, RoundCosts]) -> CostTable:
    """Cells without leading axes, at least one, as a table; a cell may lack costs (NaN) and gammas.

    Raises:
        ValueError: no cell, or times that are not above 0 (drafts: below 0).
    """
    if not cells:
        raise ValueError(f"{name}: expected at least one cell, got none")
    batch_sizes = np.unique(whole_numbers("batch_size", [point.batch_size for point in cells], minimum=1))
    contexts = np.unique(whole_numbers("context", [point.context for point in cells], minimum=0))
    deepest = max(int(costs.gammas.max()) for costs in cells.values())
    shape = (batch_sizes.size, contexts.size)
    decode, catch_up = np.full(shape, np.nan), np.full(shape, np.nan)
    chain, verify, whole, transfer = (np.full((*shape, deepest), np.nan) for _ in range(4))
    for point, costs in cells.items():
        at = int(np.searchsorted(batch_sizes, point.batch_size)), int(np.searchsorted(contexts, point.context))
        where, columns = f"{name}, batch {point.batch_size}, context {point.context}", costs.gammas - 1
        decode[at] = _known_times_s(f"{where}: t_decode_s", costs.t_decode_s, above_0=True)
        chain[at][columns] = _known_times_s(f"{where}: t_draft_total_s", costs.t_draft_total_s)
        verify[at][columns] = _known_times_s(f"{where}: t_verify_s", costs.t_verify_s, above_0=True)
        if costs.t_round_s is not None:
            whole[at][columns] = _known_times_s(f"{where}: t_round_s", costs.t_round_s, above_0=True)
        if costs.t_transfer_s is not None:
            transfer[at][columns] = _known_times_s(f"{where}: t_transfer_s", costs.t_transfer_s)
        if costs.t_draft_catch_up_s is not None:
            catch_up[at] = _known_times_s(f"{where}: t_draft_catch_up_s", costs.t_draft_catch_up_s)
    return CostTable(
        name=name,
        batch_sizes=batch_sizes,
        contexts=contexts,
        cells=RoundCosts(
            gammas=np.arange(1, deepest + 1),
            t_decode_s=decode,
            t_draft_total_s=chain,
            t_verify_s=verify,
            t_draft_catch_up_s=catch_up,
            t_transfer_s=transfer if np.any(np.isfinite(transfer)) else None,
            t_round_s=whole if np.any(np.isfinite(whole)) else None,
            provenance=_ALL_MEASURED[0],
        ),
    )


_ALL_MEASURED: IntArray = np.full((1, 1), int(Provenance.MEASURED), dtype=np.int64)


def _known_times_s(name: str, values: FloatArray, *, above_0: bool = False) -> FloatArray:
    """`values` as they are, those that are not NaN checked."""
    (positive_times_s if above_0 else times_s)(name, np.where(np.isnan(values), 1.0, values))
    return values


@dataclass(frozen=True, kw_only=True)
class _Points:
    """The flattened (batch, context) points of one lookup; N of them, `shape` before flattening."""

    table: CostTable
    batch: IntArray
    context: IntArray
    shape: tuple[int, ...]

    def surface(self, name: str, values: FloatArray) -> tuple[FloatArray, IntArray]:
        """Interpolate values (B, S) with holes at every point: seconds and `Provenance`, each of `shape`."""
        if not np.any(np.isfinite(values)):
            raise ValueError(f"{name}: expected at least one measured cell of {self.table.name}, got none")
        lines = np.full((values.shape[0], self.batch.size), np.nan)
        trust = np.full(lines.shape, int(Provenance.EXTRAPOLATED) + 1)
        for b, line in enumerate(values):
            measured = np.isfinite(line)
            if np.any(measured):
                nodes = line[measured][:, np.newaxis]
                lines[b], trust[b] = _along(self.table.contexts[measured], nodes, _ALL_MEASURED, self.context)
        seconds, origin = np.empty(self.batch.size), np.empty(self.batch.size, dtype=np.int64)
        trusted = trust <= Provenance.INTERPOLATED
        patterns, members = np.unique(trusted, axis=1, return_inverse=True)
        for p in range(patterns.shape[1]):
            here = np.flatnonzero(members.ravel() == p)
            good = self.table.batch_sizes[patterns[:, p]]
            inside = np.zeros(here.size, dtype=np.bool_)
            if good.size:
                inside = (self.batch[here] >= good[0]) & (self.batch[here] <= good[-1])
            for points, rows in ((here[inside], patterns[:, p]), (here[~inside], np.isfinite(lines[:, here[0]]))):
                if points.size:
                    seconds[points], origin[points] = _along(
                        self.table.batch_sizes[rows], lines[rows][:, points], trust[rows][:, points], self.batch[points]
                    )
        return seconds.reshape(self.shape), origin.reshape(self.shape)

    def chain(self, drafts: IntArray) -> tuple[FloatArray, IntArray]:
        """C(gamma) of every gamma, (…, G): measured ones as they are, others on lines between them and from C(0) = 0.

        Past the measured chain its last step goes on, extrapolated.
        """
        measured, seconds, trust = self._surfaces("t_draft_total_s", self.table.cells.t_draft_total_s)
        nodes, none = np.concatenate([[0], measured]), np.zeros((1, self.batch.size))
        origin = np.full(none.shape, int(Provenance.MEASURED))
        return self._on_lines(nodes, np.concatenate([none, seconds]), np.concatenate([origin, trust]), drafts)

    def by_gamma(self, name: str, values: FloatArray, drafts: IntArray) -> tuple[FloatArray, IntArray]:
        """T_verify, T_transfer or T_round, (…, G): measured gammas as they are, others on lines between, assumed."""
        measured, seconds, trust = self._surfaces(name, values)
        found, origin = self._on_lines(measured, seconds, trust, drafts)
        return found, np.where(np.isin(drafts, measured), origin, int(Provenance.ASSUMED))

    def _surfaces(self, name: str, values: FloatArray) -> tuple[IntArray, FloatArray, IntArray]:
        """(M,) measured gammas of (B, S, K) values, and seconds and `Provenance` of each at every point, (M, N)."""
        columns = np.flatnonzero(np.isfinite(values).any(axis=(0, 1)))
        surfaces = [self.surface(name, values[..., m]) for m in (columns if columns.size else [0])]
        nodes = np.stack([seconds.ravel() for seconds, _ in surfaces])
        return np.asarray(columns + 1, dtype=np.int64), nodes, np.stack([origin.ravel() for _, origin in surfaces])

    def _on_lines(
        self, nodes: IntArray, values: FloatArray, trust: IntArray, drafts: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Seconds and `Provenance` of every gamma, (…, G), from (M, N) at (M,) gammas."""
        found = [_along(nodes, values, trust, np.full(self.batch.size, gamma)) for gamma in drafts]
        seconds = np.stack([value.reshape(self.shape) for value, _ in found], axis=-1)
        return seconds, np.stack([origin.reshape(self.shape) for _, origin in found], axis=-1)


def _along(nodes: IntArray, values: FloatArray, trust: IntArray, at: IntArray) -> tuple[FloatArray, IntArray]:
    """Linear interpolation along one axis: nodes (M,) rising, values and trust (M, N) or (M, 1), at (N,).

    A result is as good as its weakest node, and at best interpolated off the nodes, extrapolated outside them.
    """
    values = np.broadcast_to(values, (nodes.size, at.size))
    trust = np.broadcast_to(trust, values.shape)
    column = np.arange(at.size)
    low = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, max(nodes.size - 2, 0))
    high = np.minimum(low + 1, nodes.size - 1)
    width = np.where(high > low, nodes[high] - nodes[low], 1)
    share = (at - nodes[low]) / width
    first, second = values[low, column], values[high, column]
    inside = np.where(at == nodes[high], second, first + share * (second - first))
    above = second + np.maximum(second - first, 0.0) * (share - 1.0)
    seconds = np.where(at > nodes[-1], above, np.where(at < nodes[0], values[0], inside))
    on_low, on_high = at == nodes[low], at == nodes[high]
    tag = np.maximum(np.where(on_high & ~on_low, 0, trust[low, column]), np.where(on_low, 0, trust[high, column]))
    off = np.where(on_low | on_high, int(Provenance.MEASURED), int(Provenance.INTERPOLATED))
    out = np.where((at < nodes[0]) | (at > nodes[-1]), int(Provenance.EXTRAPOLATED), off)
    return np.asarray(seconds, dtype=np.float64), np.asarray(np.maximum(tag, out), dtype=np.int64)
