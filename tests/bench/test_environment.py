"""The environment record: strict JSON, nothing guessed, whatever the driver and its bindings do."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specgauge.bench import environment
from specgauge.bench.environment import collect_environment, fastest_threads, use_threads

READ = {
    "driver": "570.1",
    "sm_clock_hz": 1_500_000_000,
    "sm_clock_max_hz": 1_980_000_000,
    "memory_clock_hz": 2_619_000_000,
    "power_limit_w": 700.0,
    "temperature_c": 41,
}
UNREAD = dict.fromkeys(READ)


ANSWERS: dict[str, dict[tuple[Any, ...], Any]] = {
    "nvmlInit": {(): None},
    "nvmlShutdown": {(): None},
    "nvmlSystemGetDriverVersion": {(): b"570.1"},
    "nvmlDeviceGetHandleByUUID": {("GPU-5f9c",): "second"},
    "nvmlDeviceGetClockInfo": {("second", 1): 1500, ("second", 2): 2619},
    "nvmlDeviceGetMaxClockInfo": {("second", 1): 1980},
    "nvmlDeviceGetPowerManagementLimit": {("second",): 700_000},
    "nvmlDeviceGetTemperature": {("second", 0): 41},
}


def bindings(failing: tuple[str, ...] = (), error: Exception | None = None) -> Mock:
    """NVML's of a machine with two devices, the second of which is the only one torch sees."""
    calls = {
        name: Mock(side_effect=error if name in failing else lambda *given, answers=answers: answers[given])
        for name, answers in ANSWERS.items()
    }
    return Mock(NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, **calls)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Torch that sees one CUDA device."""
    properties = SimpleNamespace(
        name="NVIDIA H200", total_memory=150_754_820_096, major=9, minor=0, multi_processor_count=132, uuid="5f9c"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    return properties


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_record_of_a_machine_without_cuda(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict JSON without a path in it."""
    monkeypatch.setattr(environment, "PACKAGES", ("specgauge", "torch", "a-package-nobody-wrote"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    record = collect_environment()
    text = json.dumps(record, allow_nan=False)
    assert json.loads(text) == record
    assert not re.search(r'["\s:=](/|[A-Za-z]:\\)\w|""', text)
    assert (record["device"], record["cuda_devices"]) == ("cpu", [])
    assert record["threads"] == torch.get_num_threads()
    assert record["thread_variables"] == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": None}
    versions = {"specgauge": importlib.metadata.version("specgauge"), "torch": torch.__version__}
    assert record["packages"] == {**versions, "a-package-nobody-wrote": None}


def figures(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record["cuda_devices"][0][name] for name in UNREAD}


@pytest.mark.parametrize("error", [RuntimeError("driver"), OSError("library"), AttributeError("name"), KeyError("x")])
@pytest.mark.parametrize(
    ("failing", "lost"),
    [
        ((), set()),
        (("nvmlInit",), set(UNREAD)),
        (("nvmlDeviceGetHandleByUUID",), set(UNREAD) - {"driver"}),
        (("nvmlSystemGetDriverVersion",), {"driver"}),
        (("nvmlDeviceGetClockInfo",), {"sm_clock_hz", "memory_clock_hz"}),
        (("nvmlDeviceGetMaxClockInfo",), {"sm_clock_max_hz"}),
        (("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetTemperature"), {"power_limit_w", "temperature_c"}),
        (("nvmlShutdown",), set()),
    ],
)
def test_what_nvml_cannot_read_is_none_and_nothing_else(
    one_gpu: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    failing: tuple[str, ...],
    lost: set[str],
    error: Exception,
) -> None:
    nvml = bindings(failing, error)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    record = json.loads(json.dumps(collect_environment(), allow_nan=False))
    assert record["device"] == "NVIDIA H200"
    assert record["cuda_devices"] == [
        {
            "name": "NVIDIA H200",
            "memory_bytes": 150_754_820_096,
            "compute_capability": "9.0",
            "multiprocessors": 132,
            **{name: None if name in lost else READ[name] for name in READ},
        }
    ]
    assert nvml.nvmlInit.call_count == 1
    assert nvml.nvmlShutdown.call_count == (0 if "nvmlInit" in failing else 1)


@pytest.mark.parametrize("uuid", [None, "0000"])
def test_a_device_that_nvml_does_not_know_is_not_mistaken_for_another(
    one_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, uuid: str | None
) -> None:
    one_gpu.uuid = uuid
    monkeypatch.setitem(sys.modules, "pynvml", bindings())
    assert figures(collect_environment()) == {**UNREAD, "driver": "570.1"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert figures(collect_environment()) == UNREAD, "bindings that are not installed"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_keys() -> tuple[str | None, bool | None]:
    record = collect_environment()
    return record["commit"], record["uncommitted_changes"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_of_a_checkout(no_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package below a foreign checkout has none, and git's variables lead to no other repository."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "-m", "First", "--allow-empty")
    module = tmp_path / "environment.py"
    module.touch()
    monkeypatch.setattr(environment, "__file__", str(module))
    assert commit_keys() == (None, None)
    git(tmp_path, "add", module.name)
    git(tmp_path, "commit", "-q", "-m", "Second")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit_keys() == (head, False)
    module.write_text("changed\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit_keys() == (head, True)


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 5), PermissionError()])
def test_no_git_no_commit(no_gpu: None, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=error))
    assert commit_keys() == (None, None)


def test_files_of_the_system_that_are_not_there(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError(13, "Permission denied")))
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "")
    monkeypatch.setattr(os, "sysconf", lambda name: -1)
    record = collect_environment()
    assert [record[key] for key in ("cpu", "cpu_governor", "memory_bytes", "machine")] == [None] * 4


def test_what_the_system_says_of_its_processor(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/cpuinfo": "processor\t: 0\nmodel name\t: A Processor: fast\nmodel name\t: Another\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda self, **options: files[str(self)])
    record = collect_environment()
    assert (record["cpu"], record["cpu_governor"]) == ("A Processor: fast", "powersave")


def test_threads_are_set_when_asked_for_and_put_back_after_use(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert use_threads(None) == {}  # the work is elsewhere
    assert use_threads(4) == {}
    with pytest.raises(RuntimeError), environment.threads_in_use(3):
        raise RuntimeError
    assert asked == [4, 3, 2]


@pytest.mark.parametrize(
    ("timed_s", "usual", "chosen"),
    [
        ({1: 0.01, 2: 0.006}, 2, 2),
        ({1: 0.01, 2: 0.03}, 2, 1),  # a neighbour on one of two cores
        ({1: 0.011, 2: 0.01}, 2, 1),  # about as fast
        ({1: 0.01101, 2: 0.01}, 2, 2),
        ({1: 0.02, 2: 0.01, 4: 0.008, 8: 0.02}, 8, 4),
        ({1: 0.01}, 1, 1),
        ({}, 3, 3),
    ],
)
def test_threads_are_the_fewest_that_are_about_as_fast_as_any(
    timed_s: dict[int, float], usual: int, chosen: int
) -> None:
    assert fastest_threads(timed_s, usual) == chosen


def test_threads_are_timed_once_and_kept_by_a_run_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    timed_s = environment.time_threads(0.0)
    assert sorted(timed_s) == [1, 2, 4]
    assert all(seconds > 0 for seconds in timed_s.values())
    asked.clear()
    monkeypatch.setattr(environment, "time_threads", lambda: {1: 0.01, 2: 0.02, 4: 0.03})
    assert use_threads(None) == {1: 0.01, 2: 0.02, 4: 0.03}
    assert use_threads(None, {"threads": 2, "threads_timed_s": {"1": 0.5, "2": 0.25}}) == {1: 0.5, 2: 0.25}
    assert use_threads(None, {"threads": 3}) == {}
    assert asked == [1, 2, 3]


def test_what_is_not_timed_takes_the_threads_that_are_fastest_now(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(environment, "time_threads", lambda: {1: 0.01, 2: 0.09})
    with environment.fastest_threads_in_use():
        assert asked == [1]
    assert asked == [1, 2]
