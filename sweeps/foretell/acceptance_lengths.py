"""Golden acceptance lengths: tokens a round by gamma as published for a model, the bonus token included.

deepseek-v3:
  thinking_on: {1: 1.93, 2: 2.73, 3: 3.31}
  thinking_off: {1: 1.86, 2: 2.55}

lengths = read_acceptance_lengths(Path("lengths.yaml"), "deepseek-v3/thinking_on")
lengths.tokens_per_round                     # {1: 1.93, 2: 2.73, 3: 3.31}: Omega itself, as the bonus is in it
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from specgauge.configs.errors import ConfigError, did_you_mean, shown
from specgauge.configs.yaml_reader import config_text
from specgauge.model.acceptance.profiles import AcceptanceProfile, profile_from_tokens_per_round
from specgauge.model.checks import LARGEST_GAMMA

_SLACK = 1e-6
_ROUNDED = 0.02
"""What two lengths told to two digits may be off by together."""
_DEEPEST, _MOST_TABLES = 8, 10_000


class _Loader(yaml.SafeLoader):
    """Gammas are keys that are numbers, which configurations do not have; none may stand there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for key_node, _ in node.value:
            if keys.count(key_node.value) > 1 and key_node.value != "<<":
                raise yaml.MarkedYAMLError(
                    problem=f"the key {shown(key_node.value)} is given twice", problem_mark=key_node.start_mark
                )
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, kw_only=True)
class AcceptanceLengths:
    """One table of a file."""

    path: str
    name: str
    """Model and mode, with a slash between them."""
    tokens_per_round: dict[int, float]
    """By gamma, rising."""

    def profile(self, gammas: Sequence[int] | None) -> tuple[AcceptanceProfile, list[int]]:
        """The profile, and the gammas asked for (None: all of the table).

        Raises:
            ValueError: a gamma that the table does not reach.
        """
        known = list(self.tokens_per_round)
        asked = known if gammas is None else list(gammas)
        beyond = [gamma for gamma in asked if gamma not in known]
        if beyond:
            given = ", ".join(map(str, known))
            raise ValueError(
                f"{self.path}: acceptance lengths of {self.name} are for gamma {given}: expected no other in --gamma, "
                f"got {beyond[0]}; add it to the table, or leave it out (--gamma {given.replace(', ', ',')})"
            )
        return profile_from_tokens_per_round(known, list(self.tokens_per_round.values())), asked


def read_acceptance_lengths(path: Path, name: str | None = None) -> AcceptanceLengths:
    """The table of that name, or the only one.

    Raises:
        ConfigError: as `every_acceptance_length`, or several tables and no name.
        OSError: it cannot be read.
    """
    tables = _innermost(path)
    if name is None and len(tables) > 1:
        known = ", ".join(tables)
        raise ConfigError(f"{path}: acceptance lengths: expected one of {known} (--acceptance-table), got none")
    chosen = name if name is not None else next(iter(tables))
    if chosen not in tables:
        hint = did_you_mean(chosen, tables)
        raise ConfigError(f"{path}: acceptance lengths: expected one of {', '.join(tables)}, got {chosen!r}{hint}")
    return _checked(path, chosen, tables[chosen])


def every_acceptance_length(path: Path) -> list[AcceptanceLengths]:
    """All tables of a file.

    Raises:
        ConfigError: no YAML, a table that is none, or lengths that no chain of drafts has, as those that fall.
        OSError: it cannot be read.
    """
    return [_checked(path, name, table) for name, table in _innermost(path).items()]


def _innermost(path: Path) -> dict[str, dict[object, object]]:
    tables: dict[str, dict[object, object]] = {}
    for name, table in _tables(_yaml(path), "", path):
        tables[name] = table
        if len(tables) > _MOST_TABLES:
            raise ConfigError(f"{path}: expected at most {_MOST_TABLES} tables of acceptance lengths, got more")
    if not tables:
        raise ConfigError(f"{path}: expected acceptance lengths by gamma, as in 'model: {{1: 1.9}}', got none")
    return tables


def _checked(path: Path, name: str, table: Mapping[object, object]) -> AcceptanceLengths:
    lengths, where = {}, f"{path}: {name or 'acceptance lengths'}"
    for gamma, value in table.items():
        if isinstance(gamma, bool) or not isinstance(gamma, int) or not 1 <= gamma <= LARGEST_GAMMA:
            raise ConfigError(f"{where}: expected a gamma from 1 to {LARGEST_GAMMA} as key, got {shown(gamma)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= gamma + 1 + _SLACK:
            raise ConfigError(
                f"{where}, gamma {gamma}: expected tokens a round, the bonus included, from 1 to {gamma + 1}, got "
                f"{shown(value)}"
            )
        lengths[gamma] = min(float(value), gamma + 1.0)
    ordered = dict(sorted(lengths.items()))
    for (fewer, before), (gamma, length) in pairwise(ordered.items()):
        most = before + gamma - fewer
        if not before - _SLACK <= length <= most + _ROUNDED:
            raise ConfigError(
                f"{path}: {name or 'acceptance lengths'}, gamma {gamma}: expected {before:g} to {most:g} tokens a "
                f"round, after {before:g} at gamma {fewer} (each further draft adds 0 to 1), got {length:g}"
            )
    return AcceptanceLengths(path=str(path), name=name or path.name, tokens_per_round=ordered)


def _yaml(path: Path) -> object:
    try:
        return yaml.load(config_text(path), Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise ConfigError(
            f"{path}{line}: not valid YAML: {getattr(error, 'problem', None) or 'nested too deep'}"
        ) from error


def _tables(value: object, under: str, path: Path, depth: int = 0) -> Iterator[tuple[str, dict[object, object]]]:
    """Every innermost mapping with the path to it; ConfigError for one that lies too deep, as one in itself does."""
    if not isinstance(value, dict) or not value:
        return
    if depth > _DEEPEST:
        raise ConfigError(f"{path}: expected tables under model and mode, got over {_DEEPEST} levels: {under[:40]}")
    inner = {key: one for key, one in value.items() if isinstance(one, dict)}
    if not inner:
        yield under, value
    for key, one in inner.items():
        yield from _tables(one, f"{under}/{key}" if under else str(key), path, depth + 1)
