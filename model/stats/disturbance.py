"""What tells of other programs beside a measurement, and whether that was more than an idle machine makes.

    found = Disturbance(threads=2, wall_s=0.02, processor_s=0.03, involuntary_switches=3, steal_s=0.0)
    found.is_disturbed(on_cpu=True, cores=4), added_up([found, found]).involuntary_switches        →  True, 6

A thread that loses its core to another program is switched involuntarily (getrusage(2), ru_nivcsw).  On two idle cores
that happened 3 times a second of one thread's work and 54 to 91 times of two threads', which leave no core to the
housekeeping; beside a program that kept one of the cores busy 100 to 240 times, and 100 to over a thousand.  A host
that gives a virtual machine's processors to others shows as steal (proc_stat(5)): a tick of 10 ms within a sample, or
over 1 % of something longer.  A GPU that slows down since it is hot or short of power says so itself.  Counts decide,
not whether something was slow, so that taking it again favours no fast ones.  Where the processor does all the work, a
process that ran for less than nine tenths of the time stood in a queue, however seldom it was switched; so did threads
that ran for less than nine tenths of theirs while something waited for a processor in over a tenth of the time (two
threads on two cores: .99 and .7 %, beside a program that kept one core busy .55 and 50 %, at 106 switches a second).
Everything else is recorded and decides nothing.

Several threads wait for each other at every operation.  Where another program holds one of them up, an operation takes
that wait, whatever it computes: a longer forward looks as cheap as a short one, in every sample alike, so that no
interval over blocks shows it.  One thread has nobody to wait for: what it is slowed down by, all its work is alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

MOST_SWITCHES, MOST_SWITCHES_PER_S, MOST_ON_ALL_CORES_PER_S = 1, 40.0, 150.0
"""Involuntary switches of anything measured, and for each second of each thread, that idle machines make; the last
where the threads leave no core free."""
MOST_STOLEN = 0.01
"""Share of the time."""
LEAST_RUNNING = 0.9
"""Processor seconds in each second of work on the CPU; of each thread where something waited, too."""
MOST_WAITED = 0.1
"""Share of the time in which something waited for a processor, of an idle machine."""
SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""What slows a GPU's clocks down, by its bit in NVML's reasons; clocks that are idle or were set are none of them."""
WAITING_SPREAD = 0.2
"""Standard deviation of log S where several threads were held up in every sample.  S of 1.33, quiet, was 1.6 with two
threads on two cores that others kept busy."""
POWER_CAP = SLOWDOWNS[0x4]
"""What a GPU's own work brings about: it is as fast as it will be in use."""

_COUNTS = ("threads", "involuntary_switches", "other_processes", "disturbed", "retaken")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Of one sample, or of several together; None is unknown."""

    threads: int | None = None
    """That may work at once."""
    wall_s: float | None = None
    processor_s: float | None = None
    """Seconds of all threads of this process on a processor."""
    involuntary_switches: int | None = None
    steal_s: float | None = None
    """Seconds that a host gave to others, the mean of the machine's processors."""
    pressure_s: float | None = None
    """Seconds in which something that could run waited for a processor, whose ever it was (Linux's PSI, `some`)."""
    sm_clock_hz: float | None = None
    """Of the slowest GPU at the end; so are the next two."""
    throttled_by: str | None = None
    """Which of `SLOWDOWNS`; empty where none does."""
    other_processes: int | None = None
    """On the GPUs."""
    disturbed: int = 0
    """Samples (or blocks of decoding) that other programs disturbed and that are kept all the same."""
    retaken: int = 0
    """How often one of them was taken again, and the seconds of what was dropped."""
    retaken_s: float = 0.0

    def is_disturbed(self, *, on_cpu: bool, cores: int) -> bool:
        """Whether switches or lost time are more than an idle machine makes.

        on_cpu: whether all work is the processor's. cores: those that this process may use.
        """
        wall_s = self.wall_s or 0.0
        threads = self.threads or 1
        if on_cpu and self.processor_s is not None:
            waited = (self.pressure_s or 0.0) > MOST_WAITED * wall_s
            if self.processor_s < LEAST_RUNNING * wall_s * (threads if waited else 1):
                return True
        per_s = MOST_SWITCHES_PER_S if threads < cores else MOST_ON_ALL_CORES_PER_S
        housekeeping = MOST_SWITCHES + per_s * wall_s * threads
        return (self.involuntary_switches or 0) > housekeeping or (self.steal_s or 0.0) > MOST_STOLEN * wall_s

    @property
    def is_throttled(self) -> bool:
        """Whether a GPU was slowed down by something else than its own work's power."""
        return bool(self.throttled_by) and self.throttled_by != POWER_CAP

    def waiting_spread(self, samples: int) -> float:
        """Standard deviation of the logarithm of a ratio of times, from threads that waited in some of the samples."""
        held_up = (self.threads or 1) > 1 and samples > 0
        return WAITING_SPREAD * min(self.disturbed / samples, 1.0) if held_up else 0.0

    def on_gpus(self, gpus: Disturbance, samples: int) -> Disturbance:
        """With what is known of the GPUs; where they were throttled, all of the samples are disturbed. To the µs."""
        seconds = {name: value for name, value in vars(self).items() if name.endswith("_s") and value is not None}
        return replace(
            self,
            **{name: round(value, 6) for name, value in seconds.items()},
            sm_clock_hz=gpus.sm_clock_hz,
            throttled_by=gpus.throttled_by,
            other_processes=gpus.other_processes,
            disturbed=samples if gpus.is_throttled else self.disturbed,
        )


def disturbance_of(figures: Mapping[str, Any]) -> Disturbance:
    """From its figures by name, among others; what is unknown may be None, NaN or missing."""
    own = {one.name: figures.get(one.name) for one in fields(Disturbance)}
    known: dict[str, Any] = {name: value for name, value in own.items() if value is not None and value == value}
    return Disturbance(**known | {name: int(known[name]) for name in _COUNTS if name in known})


def added_up(parts: Iterable[Disturbance]) -> Disturbance:
    """All together: seconds and counts added, the slowest clock, every reason; unknown where one of them is."""
    found = list(parts)

    def over(reduce: Callable[[list[Number]], Number], values: Iterable[Number | None]) -> Number | None:
        known = list(values)
        told = [value for value in known if value is not None]
        return reduce(told) if told and len(told) == len(known) else None

    reasons = [one.throttled_by for one in found if one.throttled_by is not None]
    return Disturbance(
        threads=over(max, (one.threads for one in found)),
        wall_s=over(sum, (one.wall_s for one in found)),
        processor_s=over(sum, (one.processor_s for one in found)),
        involuntary_switches=over(sum, (one.involuntary_switches for one in found)),
        steal_s=over(sum, (one.steal_s for one in found)),
        pressure_s=over(sum, (one.pressure_s for one in found)),
        sm_clock_hz=over(min, (one.sm_clock_hz for one in found)),
        throttled_by=joined_reasons(reasons) if reasons else None,
        other_processes=over(max, (one.other_processes for one in found)),
        disturbed=sum(one.disturbed for one in found),
        retaken=sum(one.retaken for one in found),
        retaken_s=sum(one.retaken_s for one in found),
    )


def joined_reasons(reasons: Iterable[str]) -> str:
    """Each reason once, in a fixed order."""
    return ", ".join(sorted({name for own in reasons for name in own.split(", ") if name}))


def shares_text(found: Disturbance) -> str:
    """The figures of a report: `steal 12 %, pressure 40 %, …`; empty where the system has none of them."""
    wall_s = found.wall_s or 0.0
    shares = {"steal": found.steal_s, "pressure": found.pressure_s}
    told = [f"{name} {100 * s / wall_s:.0f} %" for name, s in shares.items() if s is not None and wall_s > 0]
    if found.processor_s is not None and wall_s > 0:
        told.append(f"{found.processor_s / wall_s:.2f} processors used")
    if found.sm_clock_hz is not None:
        told.append(f"SM clock {found.sm_clock_hz / 1e6:.0f} MHz")
    if found.throttled_by:
        told.append(f"throttled by {found.throttled_by}")
    if found.other_processes:
        told.append(f"{found.other_processes} other processes on the GPU")
    return ", ".join(told)
