"""Settings of every test: hypothesis draws the same examples on every machine and never fails for being slow.

What imports and earlier files left behind is frozen before each file of tests, so that the garbage collections in its
tests look at what they made, not at a million objects of libraries. Nobody waits for the disk: no test cuts the power.
Arithmetic keeps to one thread: over tensors of a few numbers, threads mostly wait for each other.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from tests.snapshots import check_snapshot

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch and numpy are imported, here and in what tests start

settings.register_profile("specgauge", deadline=None, derandomize=True)
settings.load_profile("specgauge")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--snapshot-update", action="store_true", help="write what the program shows to tests/snapshots")


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``snapshot(name, text)`` compares with tests/snapshots/<name>.txt, or writes it under --snapshot-update."""
    update: bool = request.config.getoption("--snapshot-update")
    return lambda name, text: check_snapshot(name, text, update=update)


@pytest.fixture(scope="module", autouse=True)
def no_old_garbage() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield
