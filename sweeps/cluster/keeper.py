"""The one writer of a run directory whose parts are measured on other machines: an actor on the driver's own node.

    keeper = ray.remote(Keeper).options(num_cpus=0).remote(path, config, jobs, seconds=600.0, at_once={None: 4})
    keeper.begin.remote(3, "node-7")            # what job 3 has to know, and the seconds it may take
    keeper.take.remote(3, "node-7", files)      # journalled before it returns
    keeper.end.remote(3, outcome)

It lives as long as the driver does, and holds the lock of the journal. A job that is tried again is given what is
journalled by then; one whose node is lost time after time, without a finished block in between, is recorded as killed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.configs.loader import config_to_yaml
from specgauge.model.arms import arm_names
from specgauge.sweeps.cluster.exchange import Files, device_of, packed, take_in
from specgauge.sweeps.plan import plan_cells, planned_pairs
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.session import Part
from specgauge.sweeps.run.worker import end_pair
from specgauge.sweeps.store.environment import DEVICES, MODELS, environment_on, machine_of
from specgauge.sweeps.store.outcomes import ALL_MISSING, PairOutcome, together
from specgauge.sweeps.store.rows import read_mapping, write_mapping
from specgauge.sweeps.store.rundir import CONFIG, ENVIRONMENT
from specgauge.sweeps.store.writer import OpenRun, has_results

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

MOST_TRIES = 3
"""Of a job, one after another, that end without a finished block since their node was lost."""
MACHINES = "machines"
"""The key of environment.json under which every node that measured says what it is."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A part of a pair that one task measures."""

    pair: str
    part: Part
    label: str
    """In words, such as `p, batch size 4`."""
    device: str | None = None
    """The `accelerator_type` of its pair."""

    def part_with(self, prompts: tuple[Any, ...]) -> Part:
        """The part, with the prompts that it is measured by."""
        return replace(self.part, prompts=prompts)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a task is to do: the files it goes on from, and the seconds it may take (None is no limit)."""

    files: Files
    seconds: float | None


@dataclass
class Told:
    """How far the jobs are."""

    blocks: int = 0
    """Blocks of timing that have a result, earlier runs' included."""
    ended: int = 0
    running: dict[int, str] = field(default_factory=dict)
    """The node of every job that is being measured."""
    lines: list[str] = field(default_factory=list)
    """What was told since the last time."""


class Keeper:
    """Keeps what tasks measure in a run directory that nobody else writes."""

    def __init__(
        self,
        path: Path,
        config: Config,
        jobs: Sequence[Job],
        *,
        seconds: float | None,
        at_once: Mapping[str | None, int],
        sent: Config | None = None,
    ) -> None:
        """Open the run directory at `path`; `at_once` is how many jobs are measured at a time, by their device.

        sent: the configuration that tasks are told, where it is not the run's own.

        Raises:
            ValueError: another process writes it, or it is damaged.
        """
        self._opened = OpenRun(path, config, fresh=False)
        self._jobs, self._at_once, self._deadline = jobs, at_once, Deadline(seconds)
        self._sent = sent or config
        self._begun: set[int] = set()
        self._is_stopped = False
        self._lost: dict[int, list[str]] = {}
        """The nodes of a job's tries that have not brought a block."""
        self._outcomes: dict[int, PairOutcome] = {}
        self._named: set[tuple[str, str]] = set()
        """Machines and labels that environment.json has."""
        blocks = sum(line.status == "ok" for line in self._opened.journal.latest.values())
        self._told = Told(blocks=blocks)

    def begin(self, number: int, machine: str) -> Order | None:
        """What a task is to do that begins a job now; None where there is nothing to do any more.

        Raises:
            ValueError: a file of the run is damaged.
        """
        job, tries = self._jobs[number], self._lost.setdefault(number, [])
        if self._is_stopped or number in self._outcomes:
            return None
        if len(tries) >= MOST_TRIES:
            self.give_up(number, f"{', '.join(dict.fromkeys(tries))} did not answer any more, {MOST_TRIES} times")
            return None
        if tries:
            self._told.lines.append(f"{job.label}: {tries[-1]} was lost; resumed on {machine}")
        refused = [self._outcomes[one] for one in self._outcomes if self._jobs[one].pair == job.pair]
        if any(one.bad_input is not None for one in refused):
            self._outcomes[number] = PairOutcome()
            return None
        seconds = self._seconds_of(number)
        if seconds == 0.0 and not job.part.is_machine_alone:  # which every answer needs
            left_out = ALL_MISSING if job.part.acceptance else f"whatever was missing of {job.label}"
            self._outcomes[number] = PairOutcome(left_out=[left_out])
            return None
        tries.append(machine)
        self._begun.add(number)
        self._told.running[number] = machine
        files = packed(self._opened, job.pair, job.part)
        files[CONFIG] = config_to_yaml(self._sent).encode()
        return Order(files=files, seconds=None if seconds == math.inf else seconds)

    def _seconds_of(self, number: int) -> float:
        """What a job may take: the seconds left, shared by it and those of its kind that follow it on its device."""
        kind, device = self._jobs[number].part.acceptance, self._jobs[number].device
        waiting = [
            one
            for one, job in enumerate(self._jobs)
            if (job.part.acceptance, job.device) == (kind, device) and (one not in self._begun or one == number)
        ]
        return self._deadline.left_s / math.ceil(len(waiting) / self._at_once[device])

    def take(self, number: int, machine: str, files: Files) -> None:
        """Keep what a task measured; it is on the disk when this returns.

        Raises:
            ValueError: a file is damaged, or the node is no machine like that of the run.
            StorageError: the disk refused a write.
        """
        path = self._opened.path / ENVIRONMENT
        files = dict(files)
        found = files.pop(ENVIRONMENT, None)
        if found is not None:
            self._check_environment(path, found, machine, self._jobs[number].device)
        if files:
            self._told.blocks += take_in(self._opened, files, machine=machine)
            self._lost[number].clear()
            self._lost[number].append(machine)
            self._name_machine(path, machine, self._jobs[number].label)

    def _check_environment(self, path: Path, found: bytes, machine: str, device: str | None) -> None:
        """Keep the first environment of a device; refuse a node whose own is another."""
        own = path.with_name(f".{machine}.json")
        own.write_bytes(found)
        try:
            environment = read_mapping(own)
        finally:
            own.unlink()
        kept = read_mapping(path) if path.exists() else {}
        known = environment_on(kept, device)
        if known:
            self._check_machine(path, machine_of(known), machine_of(environment), machine)
            models = {**(environment.get(MODELS) or {}), **(known.get(MODELS) or {})}  # how they lie, by pair
            if models == (known.get(MODELS) or {}):
                return
            environment = {**known, MODELS: models}
        environment.pop("schema", None)
        if device is not None:
            devices = {**kept.get(DEVICES, {}), device: environment}
            environment = {**kept, DEVICES: dict(sorted(devices.items()))}
        write_mapping(path, environment)

    @staticmethod
    def _check_machine(path: Path, known: Mapping[str, Any], now: Mapping[str, Any], machine: str) -> None:
        for name, before in known.items():
            if before != now[name]:
                raise ValueError(
                    f"{path.parent}: measured with {name} {before!r}, on {machine} it is {now[name]!r}; let nodes of "
                    "one kind measure (executor.accelerator_type), or give another --out"
                )

    def _name_machine(self, path: Path, machine: str, label: str) -> None:
        """Say in the environment that a machine measured something."""
        if (machine, label) in self._named:
            return
        self._named.add((machine, label))
        environment = read_mapping(path)
        machines: dict[str, Any] = environment.get(MACHINES) or {}
        measured = machines.get(machine) or []
        if label not in measured:
            write_mapping(path, {**environment, MACHINES: {**machines, machine: [*measured, label]}})

    def end(self, number: int, outcome: PairOutcome, machine: str) -> None:
        """Keep what went wrong with a job; nothing, mostly."""
        self._told.running.pop(number, None)
        if outcome.bad_input is not None:
            outcome.bad_input = f"{machine}: {outcome.bad_input}"
        self._outcomes[number] = outcome

    def say(self, line: str) -> None:
        """Let the driver show a line."""
        self._told.lines.append(line)

    def give_up(self, number: int, reason: str) -> None:
        """Record why a job is not tried any more: every arm of its cells without a block is killed."""
        if number in self._outcomes:
            return
        job = self._jobs[number]
        self._told.lines.append(f"{job.label}: killed: {reason}")
        self._told.running.pop(number, None)
        self._outcomes[number] = end_pair(self._opened, job.pair, reason, job.part)

    def told(self) -> Told:
        """How far the jobs are, and what was told since the last call."""
        now = self._told
        now.ended = len(self._outcomes)
        self._told = Told(blocks=now.blocks, running=dict(now.running))
        return now

    def last_machine(self, number: int) -> str | None:
        """The node that measured a job last; None where none has begun it."""
        tries = self._lost.get(number)
        return tries[-1] if tries else None

    def outcomes(self) -> Mapping[str, PairOutcome]:
        """What went wrong with each pair."""
        found: dict[str, list[PairOutcome]] = {}
        for number, job in enumerate(self._jobs):
            found.setdefault(job.pair, []).append(
                self._outcomes.get(number, PairOutcome(left_out=[f"whatever was missing of {job.label}"]))
            )
        devices = {job.pair: job.device for job in self._jobs}
        return {pair: together(parts, at_once=self._at_once[devices[pair]]) for pair, parts in found.items()}

    def stop(self) -> list[int]:
        """Begin nothing more, and let what is being measured end; returns the numbers of those jobs."""
        self._is_stopped = True
        return list(self._told.running)

    def goes_on(self) -> bool:
        """Whether a job is to be measured on."""
        return not self._is_stopped

    def close(self) -> None:
        """Let go of the directory."""
        self._opened.close()


def unknown_devices(opened: OpenRun) -> dict[str | None, str]:
    """The devices of which nothing is measured yet, each with its first pair; what was known of them is forgotten."""
    path = opened.path / ENVIRONMENT
    pairs: dict[str | None, list[str]] = {}
    for pair in planned_pairs(opened.config):
        pairs.setdefault(pair.accelerator_type, []).append(pair.name)
    kept = read_mapping(path) if path.exists() else {}
    unknown = {
        device: names[0]
        for device, names in pairs.items()
        if not (environment_on(kept, device) and has_results(opened.path, None if device is None else names))
    }
    if None in unknown:
        path.unlink(missing_ok=True)
    elif kept and unknown:
        known = {device: one for device, one in kept.get(DEVICES, {}).items() if device not in unknown}
        write_mapping(path, {**kept, DEVICES: known})
    return unknown


def planned_jobs(config: Config, pairs: Sequence[str], unknown: Mapping[str | None, str]) -> list[Job]:
    """The jobs of a run: the unknown devices' machines, then acceptance, then the cells of a batch size.

    All cells of a pair and batch size are one job: they are interleaved, and share `precision.max_seconds`. Those that
    should take longest come first.
    """
    jobs = [
        Job(
            pair=pair,
            part=Part(acceptance=False, cells=()),
            label="the machine" if device is None else f"the machine with {device}",
            device=device,
        )
        for device, pair in unknown.items()
    ]
    of = {pair: device_of(config, pair) for pair in pairs}
    jobs += [Job(pair=pair, part=Part(cells=()), label=f"{pair}, acceptance", device=of[pair]) for pair in pairs]
    groups: dict[tuple[int, str], list[str]] = {}
    for pair in pairs:
        for cell in plan_cells(config, pair):
            groups.setdefault((cell.batch_size, pair), []).append(cell.id)
    for (batch_size, pair), cells in sorted(groups.items(), key=lambda one: -one[0][0]):
        part = Part(acceptance=False, cells=tuple(cells))
        jobs.append(Job(pair=pair, part=part, label=f"{pair}, batch size {batch_size}", device=of[pair]))
    return jobs


def least_blocks(config: Config) -> int:
    """Blocks of timing that a whole run has at least."""
    return sum(
        len(arm_names(config.grid.gamma, catches_up=cell.catches_up)) * config.precision.min_blocks
        for cell in plan_cells(config)
    )
