"""Settings of every test: hypothesis draws the same examples on every machine and never fails for being slow.

What imports and earlier files left behind is frozen before each file of tests, so that the garbage collections in its
tests look at what they made, not at a million objects of libraries. Nobody waits for the disk: no test cuts the power.
Arithmetic keeps to one thread: over tensors of a few numbers, threads mostly wait for each other.
"""

import difflib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from specgauge.bench import cpu_type

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch and numpy are imported, here and in what tests start

settings.register_profile("specgauge", deadline=None, derandomize=True)
settings.load_profile("specgauge")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--snapshot-update", action="store_true", help="write what the program shows to tests/snapshots")


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``snapshot(name, text)`` compares with tests/snapshots/<name>.txt, or writes it under --snapshot-update."""
    update: bool = request.config.getoption("--snapshot-update")
    folder = Path(__file__).parent / "snapshots"
    return lambda name, text: check_snapshot(folder / f"{name}.txt", text, update=update)


def check_snapshot(path: Path, text: str, *, update: bool) -> None:
    """Compare ``text`` with what a file keeps, or write it there.

    Raises:
        AssertionError: they differ, or there is no such file; the message is the difference, line by line.
    """
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if text == kept and path.exists():
        return
    ends = (f"kept in {path.name}", "what the program shows now")
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), *ends, lineterm="", n=1)
    raise AssertionError("\n".join([*lines, "", "where this is meant: python -m pytest TESTS --snapshot-update"]))


@pytest.fixture(scope="module", autouse=True)
def no_old_garbage() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_kind_of_cpu() -> Iterator[None]:
    """What is shown before a run does not depend on the machine of the tests: it has instructions for bfloat16."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cpu_type, "cpu_flags", lambda: frozenset({"amx_bf16"}))
        yield
