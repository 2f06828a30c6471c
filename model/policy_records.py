"""Policies as plain mappings, to be written down and taken up again exactly as they were tuned.

    record = policy_record(SvipPolicy(threshold=0.6, cap=8))     # {"kind": "svip", "threshold": 0.6, "cap": 8}
    policy_of(record)                                            # the same policy

Numbers come back exactly, since JSON keeps every digit of a float.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any

from specgauge.model.acceptance_forecast import AcceptanceForecast
from specgauge.model.policies import FixedPolicy, HeuristicPolicy, RoundPolicy
from specgauge.model.policies_bandit import Exp3Policy, UcbPolicy
from specgauge.model.policies_entropy import AdaEdlPolicy, SvipPolicy
from specgauge.model.policies_renewal import RenewalStoppingPolicy
from specgauge.model.policies_running import GammaTunePolicy, GoodputPolicy

KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "fixed": FixedPolicy,
        "heuristic": HeuristicPolicy,
        "gammatune": GammaTunePolicy,
        "svip": SvipPolicy,
        "adaedl": AdaEdlPolicy,
        "ucb": UcbPolicy,
        "exp3": Exp3Policy,
        "goodput": GoodputPolicy,
        "renewal": RenewalStoppingPolicy,
    }
)
"""Every kind of policy by its name."""


def policy_record(policy: RoundPolicy) -> dict[str, Any]:
    """The kind and fields of a policy, as JSON takes them."""
    kind = next(name for name, made in KINDS.items() if made is type(policy))
    return {"kind": kind} | {name: _plain(value) for name, value in asdict(policy).items()}  # type: ignore[call-overload]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value


def policy_of(record: Mapping[str, Any]) -> RoundPolicy:
    """The policy of a record.

    Raises ValueError for an unknown kind, a field that is missing, unknown or out of bounds.
    """
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"policy: found kind {kind!r}; allowed are {', '.join(KINDS)}")
    found: RoundPolicy = _made(KINDS[kind], {name: value for name, value in record.items() if name != "kind"})
    return found


def _made(made: type[Any], values: Mapping[str, Any]) -> Any:
    wanted = {field.name for field in fields(made)}
    odd = sorted(wanted ^ values.keys())
    if odd:
        trouble = "missing" if odd[0] in wanted else "unknown"
        raise ValueError(f"policy: field {odd[0]!r} of {made.__name__} is {trouble}; allowed are exactly its fields")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if made is RenewalStoppingPolicy:
        if not isinstance(given["forecast"], Mapping):
            raise ValueError(f"policy: found forecast {given['forecast']!r}; allowed is a mapping")
        given["forecast"] = _made(AcceptanceForecast, given["forecast"])
    try:
        return made(**given)
    except TypeError as error:
        raise ValueError(f"policy: a field of {made.__name__} holds another type: {error}") from error
