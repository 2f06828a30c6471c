"""Workers that meet with an accident, as processes of their own.

    monkeypatch.setattr(pair_process, "work_apart", odd_workers.with_accidents("little memory", f"pause in {cell.id}"))
    subprocess.run([sys.executable, "-P", "-m", "tests.sweeps.odd_workers", "fake,pause in …", "run", "config.yaml"])

Those named `fake …` measure with the fake bench and import no torch.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specgauge.cli import main as cli
from specgauge.sweeps.run import pair_process
from specgauge.sweeps.run.pair import PairRun
from specgauge.sweeps.store.checkpoint import Checkpoint
from tests.sweeps import odd_workers
from tests.sweeps.fake_bench import FakeBench

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
"""What such a process has to find."""
SPARE_BYTES = 200 << 20
"""What `little memory` leaves once the models are loaded."""
JOURNAL_BYTES = 20_000
"""What a file may hold on the `full disk`."""


def with_accidents(*accidents: str) -> Callable[..., None]:
    return partial(work, accidents)


def work(accidents: tuple[str, ...], *arguments: Any) -> None:
    for accident in accidents:
        name, *where = accident.split(" in ")
        ACCIDENTS[name](*where)
    pair_process.work_apart(*arguments)


def at(cell: str, happens: Callable[[], object]) -> None:
    """Something happens at every block of that cell."""
    begin = Checkpoint.block

    def block(self: Checkpoint, where: str, arm: str, number: int) -> None:
        begin(self, where, arm, number)
        if where == cell:
            happens()

    setattr(Checkpoint, "block", block)  # noqa: B010


def slow(seconds: str) -> None:
    """A device on which every block takes so long."""
    begin = Checkpoint.block

    def block(self: Checkpoint, where: str, arm: str, number: int) -> None:
        begin(self, where, arm, number)
        time.sleep(float(seconds))

    setattr(Checkpoint, "block", block)  # noqa: B010


def pid(folder: str) -> None:
    """Leave a file named by its process."""
    (Path(folder) / str(os.getpid())).touch()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def little_memory() -> None:
    """Once the models are loaded, leave SPARE_BYTES of address space."""
    time_cells = PairRun._time

    def limited(self: PairRun, *loaded: Any) -> None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        time_cells(self, *loaded)

    setattr(PairRun, "_time", limited)  # noqa: B010


def fake() -> None:
    """Measure with the fake bench."""
    sys.modules.update(FakeBench().modules())


def full_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (JOURNAL_BYTES, JOURNAL_BYTES))


def deaf() -> None:
    """As what a script starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def refuse(module: str) -> None:
    """End where that module can be found."""
    if find_spec(module) is not None:
        sys.exit(3)


ACCIDENTS: dict[str, Callable[..., object]] = {
    "deaf": deaf,
    "little memory": little_memory,
    "pid": pid,
    "pause": lambda cell: at(cell, lambda: time.sleep(600)),
    "death": lambda cell: at(cell, kill),
    "fake": fake,
    "full disk": full_disk,
    "refuse": refuse,
    "slow": slow,
}


def main(accidents: str, *arguments: str) -> int:
    """`specgauge` whose workers have these accidents."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background are born deaf to it
    setattr(pair_process, "work_apart", odd_workers.with_accidents(*accidents.split(",")))  # noqa: B010
    pair_process.GRACE_S = 0.1
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
