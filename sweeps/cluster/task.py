"""What runs on a node of the cluster: a part of a pair, measured as at home, in a folder that is gone afterwards.

The measuring process is the local worker (`specgauge.sweeps.run.worker`), spawned by the task: no thread of Ray runs
beside what is timed, and a death costs what it costs at home. Whatever it finishes travels to the keeper within
`WATCH_S`; the task tells nobody that it is done before all of it is kept.
"""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from specgauge.bench.processor import cpu_name
from specgauge.sweeps.cluster.exchange import Changes, settle, unpack
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.worker import measure_apart, of_the_machine
from specgauge.sweeps.store.environment import PACKAGES

if TYPE_CHECKING:
    from specgauge.sweeps.cluster.keeper import Job, Order


ASK_S = 1.0
"""Between two questions whether the run goes on."""


class _StoppedError(Exception):
    """The run does not go on."""


def versions() -> dict[str, str | None]:
    """What must be alike on every node: Python, the packages behind a measurement, and the processor."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cpu": cpu_name()}
    for package in PACKAGES:
        found[package] = None
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine_name(names: Mapping[str, str]) -> str:
    """The name of this node, by the names of all that were there when the run began."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    return names.get(node, f"{socket.gethostname()}-{node[:6]}")


def measure(
    keeper: Any, number: int, job: Job, prompts: tuple[Any, ...], names: Mapping[str, str], _after: object
) -> Exception | None:
    """Measure one job for the keeper; returns what ends the whole run.

    prompts: those of the workload, whose file a node need not have.
    names: of the nodes, by id.
    _after: what another job returned that comes first.
    """
    import ray

    machine = machine_name(names)
    ask = {name: partial(_ask, getattr(keeper, name)) for name in ("begin", "take", "end", "say", "goes_on")}
    try:
        order: Order | None = ask["begin"](number, machine)
        if order is None:
            return None
        with TemporaryDirectory(prefix="specgauge-") as name:
            folder = Path(name)
            unpack(order.files, folder)
            config = settle(folder)
            changes, asked_s = Changes(folder), [time.monotonic()]

            def send() -> None:
                found = changes.new()
                if found:
                    ask["take"](number, machine, found)

            def watch() -> None:
                send()
                if time.monotonic() - asked_s[0] > ASK_S:
                    asked_s[0] = time.monotonic()
                    if not ask["goes_on"]():
                        raise _StoppedError

            try:
                outcome = measure_apart(
                    folder,
                    config,
                    job.pair,
                    say=lambda line: ask["say"](f"{machine}: {line}"),
                    deadline=Deadline(order.seconds),
                    part=job.part_with(prompts),
                    watch=watch,
                )
            except _StoppedError:
                return None
            except ValueError as error:
                return ValueError(f"{machine}: {str(error).replace(name, 'this run')}")
            finally:
                send()
            ask["end"](number, outcome, machine)
    except ray.exceptions.RayTaskError as error:  # the keeper's
        return error.cause if isinstance(error.cause, (ValueError, OSError)) else RuntimeError(str(error))
    except ray.exceptions.RayActorError as error:
        return RuntimeError(f"the process that keeps the run is gone: {str(error).splitlines()[0]}")
    except (OSError, MemoryError, ModuleNotFoundError) as error:
        return of_the_machine(error)
    except RuntimeError as error:
        return RuntimeError(f"{machine}: {error}")
    return None


def _ask(method: Any, *arguments: object) -> Any:
    """What a method of the keeper returns, waited for."""
    import ray

    return ray.get(method.remote(*arguments))
