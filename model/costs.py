"""Cost tables: measured times by (batch, context, gamma), looked up with a tag that says how each is known.

Between measured batches and contexts values are interpolated linearly in each (bilinear: exact for weights plus cache,
a + b B + c s + d B s), so a table that rises stays rising and nodes keep their exact values.  Beyond the largest node
the last slope goes on, never downwards; below the smallest the edge is kept.  Gamma is different: T_verify has cliffs,
so a value between measured gammas is a guess, tagged and marked `across_gamma`.  Out come `CostsAt`: arrays of seconds
beside arrays of `Known`.

    cost_tables(cells)["embedded", "eager"].at(batch_size=8, context=[512, 700], gammas=[1, 2, 3])

What a round's drafts cost by the kind of drafter; tokens per round and S treat all kinds alike.

    autoregressive   C(gamma) = sum of gamma draft steps
    parallel         C(gamma) = one pass for every gamma (multi-token prediction, Medusa), as many drafts as heads
    lookup           C(gamma) = one fixed cost (prompt lookup, n-gram tables)

Draft trees are refused: a tree verifies more tokens than the gamma + 1 of a chain, so nothing here describes it.

    >>> AutoregressiveDraft(t_draft_s=0.002).total_s([1, 3]).tolist()
    [0.002, 0.006]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import BoolArray, FloatArray, IntArray, numbers, positive_times_s, times_s, whole_numbers
from specgauge.model.provenance import Known

KINDS = ("autoregressive", "parallel", "lookup")


@dataclass(frozen=True, kw_only=True)
class AutoregressiveDraft:
    """One forward of the draft model for every draft token."""

    t_draft_s: float | Sequence[float]
    """Seconds a step; a list gives T_draft(1), T_draft(2), … where later steps cost more."""

    def total_s(self, gammas: ArrayLike) -> FloatArray:
        """C(gamma) = sum_{k <= gamma} T_draft(k), any shape; ValueError for a gamma beyond the listed steps."""
        drafts = whole_numbers("gamma", gammas, minimum=0)
        steps = times_s("t_draft_s", self.t_draft_s)
        if steps.ndim == 0:
            return np.asarray(drafts * steps, dtype=np.float64)
        if np.any(drafts > steps.size):
            raise ValueError(
                f"t_draft_s: found {steps.size} steps for gamma {drafts.max()}, allowed: a step for each draft, or one "
                "value for all"
            )
        return np.asarray(np.concatenate([[0.0], np.cumsum(steps)])[drafts], dtype=np.float64)

    def passes(self, gammas: ArrayLike) -> IntArray:
        """Draft forwards in a round."""
        return whole_numbers("gamma", gammas, minimum=0)


@dataclass(frozen=True, kw_only=True)
class ParallelDraft:
    """Heads that draft every position in one pass; acceptance falls with position, so give it rates per position."""

    t_pass_s: float
    heads: int | None = None
    """Largest gamma the heads can draft; None where it is not known."""

    def total_s(self, gammas: ArrayLike) -> FloatArray:
        """C(gamma) = t_pass_s for gamma >= 1; ValueError for a gamma beyond the heads."""
        drafts = whole_numbers("gamma", gammas, minimum=0)
        if self.heads is not None and np.any(drafts > self.heads):
            raise ValueError(f"gamma: found {drafts.max()} with {self.heads} heads, allowed: at most {self.heads}")
        return np.asarray(np.where(drafts > 0, times_s("t_pass_s", self.t_pass_s), 0.0), dtype=np.float64)

    def passes(self, gammas: ArrayLike) -> IntArray:
        """One pass in every round that drafts."""
        return np.minimum(whole_numbers("gamma", gammas, minimum=0), 1)


@dataclass(frozen=True, kw_only=True)
class LookupDraft:
    """Drafts copied from the prompt or a table: a fixed cost whatever the gamma."""

    t_lookup_s: float = 0.0

    def total_s(self, gammas: ArrayLike) -> FloatArray:
        """C(gamma) = t_lookup_s for gamma >= 1."""
        drafts = whole_numbers("gamma", gammas, minimum=0)
        return np.asarray(np.where(drafts > 0, times_s("t_lookup_s", self.t_lookup_s), 0.0), dtype=np.float64)

    def passes(self, gammas: ArrayLike) -> IntArray:
        """One lookup in every round that drafts."""
        return np.minimum(whole_numbers("gamma", gammas, minimum=0), 1)


DraftKind = AutoregressiveDraft | ParallelDraft | LookupDraft


def draft_kind(name: str, t_draft_s: float | Sequence[float], *, heads: int | None = None) -> DraftKind:
    """The kind called `name` in `KINDS`, with its seconds per step, pass or lookup.

    Raises ValueError for an unknown name, for a draft tree, and for several times where the kind has one.
    """
    if "tree" in name.lower():
        raise ValueError(
            f"draft kind: found {name!r}, allowed: {', '.join(KINDS)}; draft trees are not covered, since a tree "
            "verifies more tokens than the gamma + 1 of a chain"
        )
    if name not in KINDS:
        near = get_close_matches(name, KINDS, n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise ValueError(f"draft kind: found {name!r}, allowed: {', '.join(KINDS)}{hint}")
    if name == "autoregressive":
        return AutoregressiveDraft(t_draft_s=t_draft_s)
    one = times_s("t_draft_s", t_draft_s)
    if one.size != 1:
        raise ValueError(
            f"t_draft_s: found {one.size} values for a {name} draft, allowed: one, its cost does not depend on gamma"
        )
    return (
        ParallelDraft(t_pass_s=float(one.item()), heads=heads)
        if name == "parallel"
        else LookupDraft(t_lookup_s=float(one.item()))
    )


_ALL_MEASURED: IntArray = np.zeros((1, 1), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class CostCell:
    """What was measured at one (pair, mode, batch, context), in seconds; a missing arm is None or an absent key."""

    pair: str
    mode: str
    batch_size: int
    context: int
    t_decode_s: float | None = None
    t_draft_chain_s: Sequence[float] = ()
    """C(1), C(2), … C(gamma_max)."""
    t_draft_catch_up_s: float | None = None
    t_verify_s: Mapping[int, float] = field(default_factory=dict)
    """T_verify by gamma."""
    t_overhead_s: Mapping[int, float] = field(default_factory=dict)
    """epsilon by gamma; empty when no decoder has measured it."""


@dataclass(frozen=True, kw_only=True)
class CostsAt:
    """Costs at broadcast (batch, context) of shape (…), by gamma (…, G); tags are int arrays of `Known`."""

    gammas: IntArray
    t_decode_s: FloatArray
    t_draft_total_s: FloatArray
    t_draft_catch_up_s: FloatArray
    """Shape (…); 0 where no cell measured it."""
    t_verify_s: FloatArray
    t_overhead_s: FloatArray | None
    """Shape (…, G); None when no cell measured it: what follows is then optimistic."""
    known: IntArray
    """The weakest of decode, draft and verify, shape (…, G)."""
    overhead_known: IntArray | None
    across_gamma: BoolArray
    """Where T_verify (or epsilon) was guessed from other gammas, shape (…, G)."""


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """The measured costs of one (pair, mode); missing cells are NaN.  B batch sizes, S contexts, K gammas."""

    pair: str
    mode: str
    batch_sizes: IntArray
    contexts: IntArray
    t_decode_s: FloatArray
    """(B, S)."""
    t_draft_chain_s: FloatArray
    """(B, S, K): C(1) … C(K)."""
    t_draft_catch_up_s: FloatArray
    """(B, S)."""
    verify_gammas: IntArray
    t_verify_s: FloatArray
    """(B, S, len(verify_gammas))."""
    overhead_gammas: IntArray
    t_overhead_s: FloatArray
    """(B, S, len(overhead_gammas))."""

    def at(
        self, batch_size: ArrayLike, context: ArrayLike, gammas: ArrayLike, *, draft: DraftKind | None = None
    ) -> CostsAt:
        """Costs at every broadcast (batch, context) of shape (…) and every gamma (G,).

        `draft` replaces the measured chain by a cost function of gamma, known as assumed.

        Raises ValueError for a batch or gamma below 1, a negative context, and for a quantity no cell measured.
        """
        rows = whole_numbers("batch_size", batch_size, minimum=1)
        context_array = whole_numbers("context", context, minimum=0)
        drafts = np.atleast_1d(whole_numbers("gammas", gammas, minimum=1))
        shape = np.broadcast_shapes(rows.shape, context_array.shape)
        where = _Places(
            table=self,
            batch=np.broadcast_to(rows, shape).ravel(),
            context=np.broadcast_to(context_array, shape).ravel(),
            shape=shape,
        )
        decode, decode_known = where.surface("t_decode_s", self.t_decode_s)
        if draft is None:
            draft_total, draft_known = where.chain(drafts)
        else:
            draft_total = np.broadcast_to(draft.total_s(drafts), (*shape, drafts.size))
            draft_known = np.full(draft_total.shape, int(Known.ASSUMED))
        verify, verify_known, across = where.by_gamma("t_verify_s", self.t_verify_s, self.verify_gammas, drafts)
        catch_up = np.zeros(shape)
        if np.any(np.isfinite(self.t_draft_catch_up_s)):
            catch_up, _ = where.surface("t_draft_catch_up_s", self.t_draft_catch_up_s)
        overhead = overhead_known = None
        if self.overhead_gammas.size:
            overhead, overhead_known, across_too = where.by_gamma(
                "t_overhead_s", self.t_overhead_s, self.overhead_gammas, drafts
            )
            across = across | across_too
        return CostsAt(
            gammas=drafts,
            t_decode_s=decode,
            t_draft_total_s=draft_total,
            t_draft_catch_up_s=catch_up,
            t_verify_s=verify,
            t_overhead_s=overhead,
            known=np.maximum(np.maximum(decode_known[..., np.newaxis], draft_known), verify_known),
            overhead_known=overhead_known,
            across_gamma=across,
        )


def cost_tables(cells: Iterable[CostCell]) -> dict[tuple[str, str], CostTable]:
    """Sort cells into one table for each (pair, mode).

    Raises ValueError for a cell given twice and for times that are not above 0 (drafts and overheads: not below).
    """
    groups: dict[tuple[str, str], list[CostCell]] = {}
    for cell in cells:
        groups.setdefault((cell.pair, cell.mode), []).append(cell)
    return {key: _table(*key, group) for key, group in groups.items()}


def _table(pair: str, mode: str, cells: Sequence[CostCell]) -> CostTable:
    batch_sizes = np.unique(whole_numbers("batch_size", [c.batch_size for c in cells], minimum=1))
    contexts = np.unique(whole_numbers("context", [c.context for c in cells], minimum=0))
    verify_gammas = np.unique(np.array([g for c in cells for g in c.t_verify_s], dtype=np.int64))
    overhead_gammas = np.unique(np.array([g for c in cells for g in c.t_overhead_s], dtype=np.int64))
    shape = (batch_sizes.size, contexts.size)
    decode, catch_up = np.full(shape, np.nan), np.full(shape, np.nan)
    chain = np.full((*shape, max(len(c.t_draft_chain_s) for c in cells)), np.nan)
    verify = np.full((*shape, verify_gammas.size), np.nan)
    overhead = np.full((*shape, overhead_gammas.size), np.nan)
    seen: set[tuple[int, int]] = set()
    for cell in cells:
        place = (int(np.searchsorted(batch_sizes, cell.batch_size)), int(np.searchsorted(contexts, cell.context)))
        name = f"cell {pair}, {mode}, batch {cell.batch_size}, context {cell.context}"
        if place in seen:
            raise ValueError(f"{name}: found twice, allowed: once; give medians over blocks, not the blocks")
        seen.add(place)
        if cell.t_decode_s is not None:
            decode[place] = positive_times_s(f"{name}: t_decode_s", cell.t_decode_s)
        if cell.t_draft_catch_up_s is not None:
            catch_up[place] = times_s(f"{name}: t_draft_catch_up_s", cell.t_draft_catch_up_s)
        chain[place][: len(cell.t_draft_chain_s)] = times_s(f"{name}: t_draft_chain_s", list(cell.t_draft_chain_s))
        for gamma, seconds in cell.t_verify_s.items():
            at = int(np.searchsorted(verify_gammas, gamma))
            verify[place][at] = positive_times_s(f"{name}: t_verify_s at gamma {gamma}", seconds)
        for gamma, seconds in cell.t_overhead_s.items():
            overhead[place][int(np.searchsorted(overhead_gammas, gamma))] = numbers(
                f"{name}: t_overhead_s at gamma {gamma}", seconds
            )
    return CostTable(
        pair=pair,
        mode=mode,
        batch_sizes=batch_sizes,
        contexts=contexts,
        t_decode_s=decode,
        t_draft_chain_s=chain,
        t_draft_catch_up_s=catch_up,
        verify_gammas=verify_gammas,
        t_verify_s=verify,
        overhead_gammas=overhead_gammas,
        t_overhead_s=overhead,
    )


@dataclass(frozen=True, kw_only=True)
class _Places:
    """The flattened (batch, context) points of one lookup; N of them, `shape` before flattening."""

    table: CostTable
    batch: IntArray
    context: IntArray
    shape: tuple[int, ...]

    def unmeasured(self, name: str) -> ValueError:
        """The error for a quantity that no cell of the table has."""
        return ValueError(
            f"{name}: found no measured cell of pair {self.table.pair}, mode {self.table.mode}, allowed: at least one"
        )

    def surface(self, name: str, values: FloatArray) -> tuple[FloatArray, IntArray]:
        """Interpolate values (B, S) with holes at every place: seconds and `Known`, each of `shape`."""
        if not np.any(np.isfinite(values)):
            raise self.unmeasured(name)
        lines = np.full((values.shape[0], self.batch.size), np.nan)
        trust = np.full(lines.shape, int(Known.EXTRAPOLATED) + 1)
        for b, line in enumerate(values):
            measured = np.isfinite(line)
            if np.any(measured):
                nodes = line[measured][:, np.newaxis]
                lines[b], trust[b] = _along(self.table.contexts[measured], nodes, _ALL_MEASURED, self.context)
        seconds, known = np.empty(self.batch.size), np.empty(self.batch.size, dtype=np.int64)
        trusted = trust <= Known.INTERPOLATED
        patterns, members = np.unique(trusted, axis=1, return_inverse=True)
        for p in range(patterns.shape[1]):
            here = np.flatnonzero(members.ravel() == p)
            good = self.table.batch_sizes[patterns[:, p]]
            inside = np.zeros(here.size, dtype=np.bool_)
            if good.size:
                inside = (self.batch[here] >= good[0]) & (self.batch[here] <= good[-1])
            for places, rows in ((here[inside], patterns[:, p]), (here[~inside], np.isfinite(lines[:, here[0]]))):
                if places.size:
                    seconds[places], known[places] = _along(
                        self.table.batch_sizes[rows], lines[rows][:, places], trust[rows][:, places], self.batch[places]
                    )
        return seconds.reshape(self.shape), known.reshape(self.shape)

    def chain(self, drafts: IntArray) -> tuple[FloatArray, IntArray]:
        """C(gamma) of every gamma, (…, G); past the measured chain its last step goes on, extrapolated."""
        chain = self.table.t_draft_chain_s
        depth = chain.shape[-1]
        if depth == 0:
            raise self.unmeasured("t_draft_chain_s")
        wanted = {int(k) for k in np.minimum(drafts, depth)}
        found = {k: self.surface("t_draft_chain_s", chain[..., k - 1]) for k in wanted}
        if np.any(drafts > depth):
            last, known = found[depth]
            before = self.surface("t_draft_chain_s", chain[..., depth - 2])[0] if depth > 1 else np.zeros(self.shape)
            step = np.maximum(last - before, 0.0)
            for k in {int(g) for g in drafts if g > depth}:
                found[k] = (last + (k - depth) * step, np.maximum(known, Known.EXTRAPOLATED))
        return (
            np.stack([found[int(g)][0] for g in drafts], axis=-1),
            np.stack([found[int(g)][1] for g in drafts], axis=-1),
        )

    def by_gamma(
        self, name: str, values: FloatArray, measured: IntArray, drafts: IntArray
    ) -> tuple[FloatArray, IntArray, BoolArray]:
        """Values (B, S, M) at every gamma: measured gammas as they are, others linear between them and marked."""
        if measured.size == 0:
            raise self.unmeasured(name)
        surfaces = [self.surface(name, values[..., m]) for m in range(measured.size)]
        nodes = np.stack([s.ravel() for s, _ in surfaces])
        trust = np.stack([k.ravel() for _, k in surfaces])
        seconds, known = [], []
        for gamma in drafts:
            value, tag = _along(measured, nodes, trust, np.full(nodes.shape[1], gamma))
            seconds.append(value.reshape(self.shape))
            known.append(tag.reshape(self.shape))
        across = np.broadcast_to(~np.isin(drafts, measured), (*self.shape, drafts.size))
        return np.stack(seconds, axis=-1), np.stack(known, axis=-1), across


def _along(nodes: IntArray, values: FloatArray, trust: IntArray, at: IntArray) -> tuple[FloatArray, IntArray]:
    """Linear interpolation along one axis: nodes (M,) rising, values and trust (M, N) or (M, 1), at (N,).

    A result is known as its weakest node, and at best interpolated off the nodes, extrapolated outside them.
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
    off = np.where(on_low | on_high, int(Known.MEASURED), int(Known.INTERPOLATED))
    out = np.where((at < nodes[0]) | (at > nodes[-1]), int(Known.EXTRAPOLATED), off)
    return np.asarray(seconds, dtype=np.float64), np.asarray(np.maximum(tag, out), dtype=np.int64)
