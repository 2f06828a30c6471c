"""The answers of a run as data: its entries, what was decoded beside them, how far to trust them, what to do next.

    answers = Recommendations(entries=…, confidence=0.9, warnings=…, validation=…)
    answers.trust                        # high, middling or low, with the figures that say so
    answers.next_step

Entries are those of recommendation.yaml, rows those of validation.csv, as mappings. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from specgauge.model.decision import DISAGREE
from specgauge.model.settings import SettingPoint
from specgauge.model.speedup import nearest_gamma
from specgauge.sweeps.analysis.left_out import OUT_OF_TIME
from specgauge.sweeps.analysis.validation import ValidationSummary, cell_of, summarise
from specgauge.sweeps.text_table import count, span_text

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig

Entry = Mapping[str, Any]
CLOSE_ERROR, WIDE_ERROR = 0.08, 0.15
"""Mean relative error of predicted S under which trust can be high, and over which it is low."""
DOUBTFUL = {
    *("busy_machine", "drift", "not_converged", "few_prompts", "cost_error", "slow_baseline", "texts_differ"),
    *("rounds_unexpected", "chain_inconsistent", "prediction_contradicted", "degenerate_text"),
    *("acceptance_extrapolated", "not_lossless", "altered", "impossible_figure"),
}
"""Warnings that leave no high trust."""
IMPORT_DOUBTS = {"one_run", "counts_unknown", "batch_size_unknown", "context_unknown", "altered", "impossible_figure"}
"""Those that leave little trust in what was imported."""
SERVED_DOUBTS = {"drift", "omega_disagrees", "client_bound", "counters_of_others", "altered", "impossible_figure"}
"""Those that leave little trust in what servers gave."""
IMPORT_LACKS = {"plain_missing", "rounds_missing", "counts_unknown", "batch_size_unknown", "context_unknown"}
"""Those of what the imported files do not tell."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How far answers can be relied on."""

    level: Literal["high", "middling", "low"]
    reasons: tuple[str, ...]
    """The figures that say so."""

    def as_mapping(self) -> dict[str, Any]:
        """Plain data for JSON and YAML."""
        return {"level": self.level, "reasons": list(self.reasons)}


@dataclass(frozen=True, kw_only=True)
class Recommendations:
    """The recommendations asked for, as the mappings of recommendation.yaml."""

    entries: tuple[Mapping[str, Any], ...]
    max_itl_s: float | None = None
    confidence: float
    """Of the intervals."""
    warnings: tuple[Mapping[str, Any], ...]
    validation: tuple[Mapping[str, Any], ...] = ()
    """The rows of validation.csv that match, whatever their γ."""
    policies: tuple[Mapping[str, Any], ...] = ()
    """Its rows of policies: adaptive ones, an engine's own, and what was exported for it."""
    pairs: Mapping[str, PairConfig] = field(default_factory=dict)
    """Those of the run by name, where they are to be held against each other."""
    are_some: bool = False
    """Whether only some of the run's answers were asked for; warnings are always those of the whole run."""
    is_served: bool = False
    """Whether servers decoded, measured by `specgauge run`."""
    break_even: tuple[Mapping[str, Any], ...] = ()
    """Of servers, by setting and context: at which concurrencies speculation pays."""

    @property
    def summary(self) -> ValidationSummary | None:
        """What decoding these points end to end found; None where none was."""
        return summarise(self.validation)

    def nearest_measured(self, entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The row that decoded an entry's point at its γ or the one nearest to it; None where there is none."""
        here = self._decoded.get(cell_of(entry))
        gamma = entry["recommended_gamma"] or entry["best_gamma"] or 1  # a limit may leave none
        return here[nearest_gamma(gamma, here)] if here else None

    def measured(self, entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The row that decoded an entry's point at the very γ it recommends; None where there is none."""
        row = self.nearest_measured(entry)
        return row if row is not None and row["gamma"] == entry["recommended_gamma"] else None

    @cached_property
    def _decoded(self) -> Mapping[SettingPoint, Mapping[int, Mapping[str, Any]]]:
        """The rows that decoded a cell as the models decide and know its speed-up, by cell and γ."""
        found: dict[SettingPoint, dict[int, Mapping[str, Any]]] = {}
        for row in self.validation:
            if row["lossless"] and row["speedup_measured"] is not None:
                found.setdefault(cell_of(row), {})[row["gamma"]] = row
        return found

    def is_measured(self, entry: Entry) -> bool:
        """Whether the γ that an entry's figures belong to was decoded."""
        row = self.nearest_measured(entry)
        return row is not None and row["gamma"] == (entry["recommended_gamma"] or row["gamma"])

    @property
    def whole_requests(self) -> str:
        """What whole requests gained at the γ of the answers, which S leaves out; empty where none was decoded."""
        gains = self._whole_gains
        if not gains:
            return ""
        span = span_text([gain for _, gain in gains], "{:.2f}")
        if self.is_served:
            return f"Whole requests, with prefills: {span} ×."
        words = f"Whole requests, with prefills and in a batch the wait for its longest text: {span} ×."
        return " ".join([words, *self._where_they_lose])

    @property
    def whole_requests_lose(self) -> str:
        """The same where whole requests took longer than plain ones in some cell; else empty."""
        return self.whole_requests if any(self._where_they_lose) else ""

    @cached_property
    def _whole_gains(self) -> list[tuple[int, float]]:
        """The batch size and the gain of each cell whose γ was decoded."""
        rows = [self.nearest_measured(entry) for entry in self.entries if self.is_measured(entry)]
        return [
            (row["batch_size"], row["speedup_whole"])
            for row in rows
            if row is not None and row["speedup_whole"] is not None
        ]

    @property
    def _where_they_lose(self) -> Iterator[str]:
        """A sentence for those that wait for the batch, and one for those alone, which wait for nobody.

        None of servers, which fill a place at once.
        """
        if self.is_served:
            return
        losing = sorted({size for size, gain in self._whole_gains if gain < 1})
        in_batch = ", ".join(str(size) for size in losing if size > 1)
        if in_batch:
            yield (
                f"Under 1 (batch {in_batch}) it pays only where a finished text's place in the batch is filled at once."
            )
        if 1 in losing:
            yield "Under 1 at batch 1 the draft's prefill takes what speculation gains: only longer texts pay for it."

    @property
    def breaks_even(self) -> str:
        """From which concurrency on speculation no longer pays on the servers; empty where nothing tells."""
        known = [one for one in self.break_even if len(one["measured"]) > 1]
        words = list(dict.fromkeys(map(_break_even_words, known)))
        if len(words) == 1:
            return words[0]
        named = [
            f"{one['pair']}, {one['sampling']}, context {one['context']}: {_break_even_words(one)}" for one in known
        ]
        return " ".join(dict.fromkeys(named))

    @property
    def known(self) -> list[Entry]:
        """The entries with a speed-up."""
        return [entry for entry in self.entries if is_known(entry)]

    @property
    def trust(self) -> Trust:
        """How far the answers can be relied on, and the figures that say so."""
        known = self.known
        if not known:
            return Trust(level="low", reasons=("no cell has both timings and acceptance",))
        if any(one["code"] == "generate_differs" for one in self.warnings):
            return Trust(level="low", reasons=("a model's texts are not those of transformers' generate",))
        conflicts = sum(map(is_conflict, known))
        if conflicts:
            of = f"{conflicts} of {count(len(known), 'cell')}"
            return Trust(level="low", reasons=(f"prediction and measurement disagree in {of}",))
        measured = sum(map(self.is_measured, known))
        errors = None if self.summary is None else self.summary.speedup
        optimistic = sum(map(is_optimistic, known))
        unknown = [f"the overhead of a round is not measured in {optimistic} of {len(known)}"] if optimistic else []
        if any(entry.get("whole_rounds") for entry in known):
            return self._trust_in_engine(len(known))
        if not measured or errors is None:
            return Trust(level="low", reasons=("no speed-up was decoded end to end", *unknown))
        over = "" if errors.count == measured else f" over {errors.count} γ"
        found = [f"predicted S {errors.text()}{over} in {measured} of {count(len(known), 'cell')}", *unknown]
        cost = self.summary.cost if self.summary is not None else None
        if cost is not None and cost.mean < errors.mean > CLOSE_ERROR:
            found[0] += f" ({cost.mean:.1%} from the rounds counted in these texts)".replace("%", " %")
        if errors.mean > WIDE_ERROR:
            return Trust(level="low", reasons=tuple(found))
        doubts = sorted({str(one["code"]) for one in self.warnings} & DOUBTFUL)
        if errors.mean > CLOSE_ERROR or measured < len(known) or optimistic or doubts:
            found += ["warned of " + ", ".join(doubts).replace("_", " ")] if doubts else []
            return Trust(level="middling", reasons=tuple(found))
        return Trust(level="high", reasons=tuple(found))

    def _trust_in_engine(self, cells: int) -> Trust:
        """Where a serving engine timed whole rounds: they are what is asked for, as far as the runs repeat."""
        found = [f"a serving engine's own rounds in {count(cells, 'cell')}"]
        errors = None if self.summary is None else self.summary.speedup
        if errors is not None:
            found.append(f"predicted S {errors.text()}")
        doubts = sorted(
            {str(one["code"]) for one in self.warnings} & (SERVED_DOUBTS if self.is_served else IMPORT_DOUBTS)
        )
        if doubts:
            found.append("warned of " + ", ".join(doubts).replace("_", " "))
        return Trust(
            level="low" if doubts or (errors is not None and errors.mean > WIDE_ERROR) else "middling",
            reasons=tuple(found),
        )

    @property
    def more_time(self) -> str:
        """How what there was no time for is measured; empty where there was time for all."""
        return next((str(one["remedy"]) for one in self.warnings if one["code"] == OUT_OF_TIME), "")

    @property
    def next_step(self) -> str:
        """What to do with these answers."""
        known, codes = self.known, {str(one["code"]) for one in self.warnings}
        has_rounds = any(entry.get("whole_rounds") for entry in self.entries) or bool(codes & IMPORT_LACKS)
        is_imported = has_rounds and not self.is_served
        if not known:
            return self._without_numbers(codes, is_imported=is_imported)
        open_ones = [entry for entry in known if entry["decision"] == "undecided"]
        is_decoded = any(self.nearest_measured(entry) is not None for entry in known)
        if self.more_time and (open_ones or not is_decoded):
            return self.more_time
        if any(map(is_conflict, known)):
            return "measure again with --fresh, nothing beside it and more validate.prompts"
        if self.max_itl_s is not None and all(entry["recommended_gamma"] is None for entry in known):
            return "decode plainly, or allow longer rounds (--max-itl)"
        if "not_lossless" in codes:
            return "set validate.acceptance: null to have the real speed-up decoded"
        if is_imported and open_ones:
            return "import several runs of the engine at each batch size and γ, γ = 0 too: they decide what is open"
        if not is_imported and not is_decoded:
            if "not_decoded" in codes:
                return "run the same command again; it goes on with decoding end to end"
            return "have the speed-ups decoded end to end: a new run (--fresh) with `validate: {gamma: recommended}`"
        if open_ones:
            return "a new run with more prompts, larger precision.max_blocks and max_seconds decides what is open"
        late = f"; for what no time was left: {self.more_time}" if self.more_time else ""
        return f"{self._decided(known, is_imported=is_imported)}{late}"

    def _without_numbers(self, codes: set[str], *, is_imported: bool) -> str:
        """The next step where nothing is known."""
        if "pair_refused" in codes:
            return "put right what the warnings name; what is refused would be so again"
        if is_imported:
            return (
                "import files of what the warnings name beside these, or give times to `specgauge predict --from-run`"
            )
        again = "see to what the warnings name, then run the same command again; it goes on where it stopped"
        return self.more_time or again

    def _decided(self, known: Sequence[Entry], *, is_imported: bool) -> str:
        """The next step where every decision is taken."""
        gammas = sorted({entry["gamma"] for entry in known if entry["gamma"]})
        if not gammas:
            return "decode plainly here; the report says how far from paying it is"
        is_everywhere = len(gammas) == 1 and all(entry["gamma"] for entry in known)
        where = "" if is_everywhere else " where the table says so"
        is_doubted = self.trust.level == "low" and not is_imported and not self.more_time
        doubt = "; how much it gains takes more prompts and a longer run to tell" if is_doubted else ""
        return f"speculate with γ = {', '.join(map(str, gammas))}{where}{doubt}"


def _break_even_words(found: Mapping[str, Any]) -> str:
    """Where speculation pays, of one setting and context."""
    first, last = found["measured"][0], found["measured"][-1]
    ranges, end = found["pays"], found["break_even_batch_size"]
    if not ranges:
        return f"Speculation pays at no concurrency from {first} to {last}."
    if ranges == [[first, last]]:
        return f"Speculation pays at every concurrency from {first} to {last}; break-even lies beyond."
    shown = ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in ranges)
    beyond = f"; break-even at {end}" if end is not None else ""
    is_between = end is not None and end not in found["measured"]
    return f"Speculation pays at concurrency {shown}{beyond}{' (interpolated)' if is_between else ''}."


def is_known(entry: Mapping[str, Any]) -> bool:
    """Whether a speed-up is known."""
    return entry["speedup"]["value"] is not None


def is_optimistic(entry: Mapping[str, Any]) -> bool:
    """Whether an entry's speed-up leaves ε out, since it is unknown."""
    return is_known(entry) and entry.get("t_overhead_s") is None and not entry.get("whole_rounds")


def is_conflict(entry: Entry) -> bool:
    """Whether a decision is open because prediction and measurement disagree."""
    return entry["decision"] == "undecided" and str(entry["reason"]).startswith(DISAGREE)
