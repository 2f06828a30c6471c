"""Where a run measures: on this machine, or on the nodes of a Ray cluster.

executor: {kind: ray, address: auto, gpus_per_task: 1, accelerator_type: H100}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from specgauge.configs.errors import Errors, refused
from specgauge.configs.fields import ByteCount, Positive, Section, Text, expects, null_means, one_of

ADDRESSES = "auto, local or HOST:PORT"
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def host_and_port(address: str) -> tuple[str, int] | None:
    """The parts of HOST:PORT; None for anything else."""
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        return None
    return match[1].strip("[]"), int(match[2])


def _address(written: str) -> str:
    if written not in ("auto", "local") and host_and_port(written) is None:
        raise refused(written, ADDRESSES)
    return written


class ExecutorConfig(Section):
    """Where a run measures, one process a pair here or tasks on a Ray cluster; what is measured is the same, so a run
    may be resumed by another executor."""

    kind: Literal["local", "ray"] = "local"
    """`local` measures on this machine, `ray` on the nodes of a Ray cluster (needs specgauge[ray])."""
    address: Annotated[Text, expects(ADDRESSES), AfterValidator(_address)] = "auto"
    """The Ray cluster: `auto` is the one that this machine is a node of, `local` one of this machine alone that lives
    as long as the run, HOST:PORT that of this head node."""
    gpus_per_task: Annotated[Annotated[int, Field(ge=0, le=64)] | None, null_means("1 where nodes have GPUs")] = None
    """GPUs of a task, which are its alone; 0 measures on CPUs, one task a node. Null is 1 where any node has GPUs, else
    0."""
    cpus_per_task: Annotated[Positive | None, null_means("1 beside a GPU, else all of a node")] = None
    """CPUs of a task; null is 1 where a task has a GPU, else all that the smallest node has."""
    memory: Annotated[ByteCount | None, null_means("as the estimate says")] = None
    """Host memory of a task, such as 40GiB; null is what `specgauge check` estimates where it measures on CPUs."""
    accelerator_type: Annotated[Annotated[Text, one_of("accelerator_type")] | None, null_means("any")] = None
    """The GPU that a task needs, by Ray's name for it, such as H100. Several make a variant of every pair each,
    which nodes of that kind measure."""
    pack_weights: bool = False
    """Whether weights that are here travel to the nodes, in a package of Ray's runtime environment (512 MiB in all);
    otherwise each node finds them itself."""


def device_errors(executor: ExecutorConfig, named: Sequence[str | None]) -> Errors:
    """What is wrong with the accelerators that pairs name: Ray alone knows nodes by them, and all pairs have one then.

    named: the `accelerator_type` of every pair.
    """
    if not any(named):
        return []
    if executor.kind != "ray":
        index, name = next((index, name) for index, name in enumerate(named) if name)
        expected = "null, since executor.kind is local and only Ray knows nodes by their accelerators"
        return [(("pairs", index, "accelerator_type"), refused(name, expected))]
    expected = "a name such as H100, since other pairs have one"
    return [
        (("pairs", index, "accelerator_type"), refused(None, expected, got="null"))
        for index, name in enumerate(named)
        if not name
    ]
