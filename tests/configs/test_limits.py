from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.configs.fields import LARGEST_BYTES

from specgauge.configs.schema import LimitsConfig
from specgauge.configs.loader import load_config
from tests.configs.texts import MINIMAL, error_of, write

ALLOWED = (
    "bytes as an integer, or a number with a unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB) such as 8GiB,"
    " or null (no limit)"
)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("8GiB", 8 * 2**30), ("8 GiB", 8 * 2**30), ("0.5MiB", 2**19), ("4.1kB", 4100), ("80GB", 80 * 10**9), ("7B", 7),
        (123, 123), (None, None),
    ],
)  # fmt: skip
def test_memory_is_bytes_or_text_with_a_unit(written: object, size: int | None) -> None:
    assert LimitsConfig.model_validate({"memory": written}).memory == size


@given(st.integers(1, LARGEST_BYTES))
def test_bytes_are_themselves_however_written(size: int) -> None:
    for written in (size, f"{size}B"):
        assert LimitsConfig.model_validate({"memory": written}).memory == size


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("8Gib", f"found '8Gib', allowed: {ALLOWED}; did you mean 8GiB?"),
        ("8", f"found '8', allowed: {ALLOWED}"),
        ("a lot", f"found 'a lot', allowed: {ALLOWED}"),
        ("-1GiB", f"found '-1GiB', allowed: {ALLOWED}"),
        ("0.1B", f"found '0.1B', allowed: {ALLOWED}"),
        ("8e9", f"found 8000000000.0, allowed: {ALLOWED}"),
        ("0", f"found 0, allowed: {ALLOWED}"),
        ("true", f"found true, allowed: {ALLOWED}"),
    ],
)
def test_other_memory_is_refused(written: str, found: str, tmp_path: Path) -> None:
    quoted = f"'{written}'" if written == "8" else written
    line = error_of(write(tmp_path, MINIMAL + f"limits:\n  memory: {quoted}\n"))
    assert line == f"file.yaml:5: limits.memory: {found}"


def test_seconds_are_above_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    assert load_config(path).limits == LimitsConfig(run_seconds=None, memory=None)
    assert load_config(path, ["limits.run_seconds=90"]).limits.run_seconds == 90.0
    assert error_of(path, "limits.run_second=1") == (
        "--set limits.run_second=1: unknown key 'run_second' in limits; did you mean 'run_seconds'?"
        " allowed: run_seconds, memory"
    )
    assert error_of(path, "limits.run_seconds=0") == (
        "--set limits.run_seconds=0: limits.run_seconds: found 0, allowed: a number above 0 seconds, or null (no limit)"
    )
