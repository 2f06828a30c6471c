"""environment.json: what a run was measured on, and what of it must not change within a run.

environment_on(run.environment, None)["cpu"]          # of a run on one kind of device
environment_on(run.environment, "H100")["device"]     # where pairs name theirs (`accelerator_type`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pydantic.dataclasses import dataclass

from specgauge.sweeps.store.schema import OPEN, Integer, Text

DEVICES, MODELS = "devices", "models"
PACKAGES = ("torch", "transformers", "specgauge")


@dataclass(frozen=True, kw_only=True, config=OPEN)
class Environment:
    """environment.json: what must not change within a run; times of two machines, or of two releases, never mix.

    The file says more of the machine, for whoever reads it.
    """

    device: Text | None = None
    cpu: Text | None = None
    cuda: Text | None = None
    threads: Integer | None = None
    packages: dict[str, Text | None] = field(default_factory=dict)
    devices: dict[Text, Environment] = field(default_factory=dict)
    """The whole of it by the `accelerator_type` of pairs, where they name any; nothing above is there then."""


def environment_on(environment: Mapping[str, Any], device: str | None) -> Mapping[str, Any]:
    """What environment.json says of where pairs of an `accelerator_type` are measured; {} where it is not known yet."""
    return environment if device is None else (environment.get(DEVICES) or {}).get(device, {})


def machine_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What must not change within a run, by its name in environment.json (`threads`, `packages.torch`)."""
    plain = {name: environment.get(name) for name in ("device", "cpu", "cuda", "threads")}
    packages = environment.get("packages") or {}
    return plain | {f"packages.{name}": packages.get(name) for name in PACKAGES}
