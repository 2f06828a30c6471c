"""The text that engines expose at /metrics, and what two scrapes of it say of the time between them.

    between = Between.of(Scrape.parse(before, "before"), Scrape.parse(after, "after"), needs="vllm:generation_tokens")
    between.counter("vllm:generation_tokens")        # how much it grew; ValueError where it fell

Only lines are read, so exporters of every release are taken; what is not a sample is refused by its number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_STARTS = ("process_start_time_seconds", "generation_tokens_created")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Scrape:
    """One scrape: samples by name (without a counter's `_total`) and labels."""

    where: str
    """The file or server it is of."""
    samples: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def parse(cls, text: str, where: str) -> Scrape:
        """Read a text.

        Raises:
            ValueError: truncated or foreign; the line is named.
        """
        samples: dict[str, dict[Labels, float]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            match = _SAMPLE.fullmatch(text)
            try:
                name, labels, value = match.groups() if match else ("", "", "")
                samples.setdefault(name.removesuffix("_total"), {})[_labels(labels or "")] = float(value)
            except ValueError as error:
                raise ValueError(
                    f"{where}, line {number}: expected `name{{labels}} value` as at /metrics, got {text[:60]!r}"
                ) from error
        return cls(where=where, samples=samples)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that it tells of."""
        found = (dict(labels).get("model_name") for own in self.samples.values() for labels in own)
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def total(self, name: str) -> float:
        """The sum of a sample over all its labels; 0 where there is none."""
        return math.fsum(self.samples.get(name, {}).values())

    @cached_property
    def started(self) -> float | None:
        """When what counts began, in seconds; None where nothing tells."""
        own = [name for name in self.samples if name.endswith(_STARTS)]
        return max((value for name in own for value in self.samples[name].values()), default=None)


def _labels(text: str) -> Labels:
    return tuple(sorted(_LABEL.findall(text)))


@dataclass(frozen=True, kw_only=True)
class Between:
    """Two scrapes of one server."""

    before: Scrape
    after: Scrape

    @classmethod
    def of(cls, before: Scrape, after: Scrape, *, needs: str) -> Between:
        """Two scrapes that have a counter.

        Raises:
            ValueError: without the counter, of several models, of other models, or in which it fell or stood still.
        """
        pair = cls(before=before, after=after)
        if needs not in pair.after.samples:
            raise ValueError(
                f"{after.where}: expected the counter {needs!r}, it is missing: a scrape of another program?"
            )
        if len(pair.after.models) > 1 or set(pair.before.models) - set(pair.after.models):
            models = ", ".join(sorted({*pair.before.models, *pair.after.models}))
            raise ValueError(f"{after.where}: expected scrapes of one model, got {models}")
        if not pair.counter(needs):
            raise ValueError(
                f"{after.where}: expected {needs} to grow after {before.where}, got the same: nothing was generated"
            )
        return pair

    @property
    def where(self) -> str:
        """Both scrapes."""
        return f"{self.before.where} to {self.after.where}"

    def has(self, name: str) -> bool:
        """Whether the later scrape has a sample."""
        return name in self.after.samples

    def counter(self, name: str) -> float:
        """How much a counter grew, over all engines; 0 where there is none.

        Raises:
            ValueError: it fell (the server restarted, or the scrapes are in the wrong order), or is no number.
        """
        first, second = self.before.total(name), self.after.total(name)
        if not (math.isfinite(first) and math.isfinite(second)):
            raise ValueError(f"{self.where}, {name}: expected finite numbers, got {first:g} and {second:g}")
        if second < first:
            why = "the server restarted in between, or the scrapes are in the wrong order"
            started, again = self.before.started, self.after.started
            if started is not None and again is not None:
                why = "the server restarted in between" if again > started else "the scrapes are in the wrong order"
            raise ValueError(
                f"{self.where}, {name}: expected a counter that grows, got {first:g} and then {second:g}: {why}; give "
                "BEFORE AFTER of one server"
            )
        return second - first

    def whole(self, name: str) -> int:
        """As `counter`, of one that counts in whole numbers."""
        grown = self.counter(name)
        if grown != int(grown):
            raise ValueError(f"{self.where}, {name}: expected whole numbers, got {grown:g}")
        return int(grown)

    def by_label(self, name: str, label: str) -> dict[str, int]:
        """How much a counter grew, by one of its labels."""
        grown: dict[str, float] = {}
        self.counter(name)  # tells a restart
        for labels, value in self.after.samples.get(name, {}).items():
            key = dict(labels).get(label, "")
            grown[key] = grown.get(key, 0.0) + value - self.before.samples.get(name, {}).get(labels, 0.0)
        return {key: int(value) for key, value in grown.items()}

    def by_position(self, name: str) -> dict[int, int]:
        """How much a counter grew at each position in a round, from 0; those alone where it did."""
        grown = self.by_label(name, "position")
        return {int(position): passed for position, passed in grown.items() if passed and position.isdecimal()}

    def first_accepted(self, by_position: Mapping[int, int], gamma: int, accepted: int) -> tuple[int, ...] | None:
        """Rounds that accepted at least 1, 2, … γ drafts; None where drafts were accepted, but no position is told.

        Raises:
            ValueError: a position beyond γ.
        """
        furthest = max(by_position, default=-1)
        if furthest >= gamma:
            raise ValueError(
                f"{self.where}: expected positions 0 to {gamma - 1} at gamma {gamma}, got drafts accepted at {furthest}"
            )
        if accepted and not by_position:
            return None
        return tuple(by_position.get(position, 0) for position in range(gamma))
