"""What of two runs can be compared: pairs and sampling settings that mean the same in both, the same prompts. No torch.

names, reasons = comparable_pairs(first.config, second.config)      # and why other pairs are left out
other_texts_of(first, second, "qwen")                               # why acceptance cannot be compared, or ""
list(differences(first, second))                                    # what differs and need not be the same
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specgauge.configs.canonical import canonical_json
from specgauge.sweeps.opening import MACHINE_KEYS
from specgauge.sweeps.plan import settings_of
from specgauge.sweeps.reading import environment_value
from specgauge.sweeps.rundir import PROMPTS

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config
    from specgauge.sweeps.rundir import Run


def comparable_pairs(first: Config, second: Config) -> tuple[list[str], list[str]]:
    """Names of the pairs that mean the same in both, and why others do not."""
    others = {pair.name: pair for pair in second.pairs}
    names, reasons = [], []
    for pair in first.pairs:
        other = others.get(pair.name)
        if other is None:
            reasons.append(f"pair {pair.name} is only in the first")
            continue
        differing = _model_difference(pair, other)
        if differing is None:
            names.append(pair.name)
        else:
            reasons.append(f"pair {pair.name} has another {differing}")
    reasons += [f"pair {name} is only in the second" for name in others if name not in {p.name for p in first.pairs}]
    return names, reasons


def _model_difference(pair: PairConfig, other: PairConfig) -> str | None:
    """The first thing that makes the models of a name different ones; where and how they run may differ."""
    runs = {"device", "device_map", "attention", "dtype", "quantization"}
    for role in ("target", "draft"):
        one, two = getattr(pair, role).model_dump(exclude=runs), getattr(other, role).model_dump(exclude=runs)
        if one != two:
            field = next((name for name in {**one, **two} if one.get(name) != two.get(name)), role)
            return f"{role} ({field}: {one.get(field)!r}, {two.get(field)!r})"
    return None


def comparable_settings(first: Config, second: Config) -> tuple[set[str], list[str]]:
    """Names of the sampling settings that mean the same in both, and why others do not."""
    others = {sampling.name: settings_of(sampling) for sampling in second.sampling}
    names, reasons = set(), []
    for sampling in first.sampling:
        if sampling.name not in others:
            reasons.append(f"sampling {sampling.name} is only in the first")
        elif others[sampling.name] != settings_of(sampling):
            reasons.append(f"sampling {sampling.name} means another chain in the second")
        else:
            names.add(sampling.name)
    mine = {sampling.name for sampling in first.sampling}
    reasons += [f"sampling {name} is only in the second" for name in others if name not in mine]
    return names, reasons


def other_texts_of(first: Run, second: Run, pair: str) -> str:
    """Why acceptance of a pair was read off other texts; empty where it was not."""
    for field in ("prompt_tokens", "max_new_tokens", "chat_template"):
        one, two = (getattr(run.config.workload, field) for run in (first, second))
        if one != two:
            return f"workload.{field} was {one}, is {two}"
    return "" if _prompts(first, pair) == _prompts(second, pair) else "the prompts differ"


def _prompts(run: Run, pair: str) -> list[str]:
    path, own = run.path / PROMPTS, f'"pair":{canonical_json(pair)}'
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    return sorted(line for line in lines if own in line)


def differences(first: Run, second: Run) -> Iterator[str]:
    """What differs in machine, versions, and how the models of one name are loaded, in words."""
    for name in MACHINE_KEYS:
        one, two = (environment_value(run.environment, name) for run in (first, second))
        if one != two:
            yield f"{name}: {one}, {two}"
    others = {pair.name: pair for pair in second.config.pairs}
    for pair in first.config.pairs:
        other = others.get(pair.name)
        if other is None:
            continue
        if pair.threads != other.threads:
            yield f"pair {pair.name}, threads: {first.config.threads_of(pair)}, {second.config.threads_of(other)}"
        for role in ("target", "draft"):
            one, two = getattr(pair, role).model_dump(), getattr(other, role).model_dump()
            for field in one:
                if field in two and one[field] != two[field]:
                    yield f"pair {pair.name}, {role} {field}: {one[field]}, {two[field]}"
