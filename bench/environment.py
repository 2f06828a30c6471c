"""What a measurement was taken on: machine, device, packages, versions and clocks; unknown is null, never a guess.

environment = collect_environment()      # strict JSON, written to environment.json
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specgauge.bench.cpu_type import forward_s
from specgauge.bench.processor import cpu_name
from specgauge.bench.timing.gpu_state import gpu_handle, reading

THREADS_SECONDS = 1.0
ABOUT_AS_FAST = 0.1
_WIDTH, _LAYERS = 1024, 12
"""A step of a small model: some 50 MB of weights, each read once."""
PACKAGES = (
    "specgauge", "torch", "transformers", "tokenizers", "safetensors", "accelerate", "peft", "numpy", "pandas", "scipy",
    "pyarrow",
)  # fmt: skip


def _reading(read: Callable[[], Any]) -> Any:
    """As `reading`, bytes as text."""
    value = reading(read)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _first_line(path: str) -> str | None:
    """The first line of a file that is not blank; None where there is none."""
    text = _reading(lambda: Path(path).read_text(encoding="utf-8", errors="replace")) or ""
    return next(filter(None, map(str.strip, text.splitlines())), None)


def _memory_bytes() -> int | None:
    pages = _reading(lambda: os.sysconf("SC_PHYS_PAGES")) or 0
    return os.sysconf("SC_PAGE_SIZE") * pages if pages > 0 else None


def _git(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    """A git command in this file's folder; None where git is missing or does not answer."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False, env=variables)
    except (OSError, subprocess.SubprocessError):
        return None


def _checkout() -> tuple[str | None, bool | None]:
    """(commit, whether files differ from it) of the checkout this code runs from; None each for an installed package.

    A package installed below someone else's checkout is not part of it: this very file has to be tracked.
    """
    tracked = _git("ls-files", "--error-unmatch", Path(__file__).name)
    if tracked is None or tracked.returncode != 0:
        return None, None
    head, changes = _git("rev-parse", "HEAD"), _git("diff", "--quiet", "HEAD")
    commit = head.stdout.strip() if head is not None and head.returncode == 0 else None
    return commit, None if changes is None else {0: False, 1: True}.get(changes.returncode)


def _cuda_devices() -> list[dict[str, Any]]:
    """Name, memory, driver and clocks of each CUDA device; figures the driver does not tell are None."""
    if not torch.cuda.is_available():
        return []
    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                **_nvml(getattr(properties, "uuid", None)),
            }
        )
    return devices


def _nvml(uuid: Any) -> dict[str, Any]:
    """Driver version, clocks, power limit and temperature as NVML reads them; None where it cannot."""
    readings: dict[str, Callable[[], Any]] = {
        "driver": lambda: pynvml.nvmlSystemGetDriverVersion(),
        "sm_clock_hz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1_000_000,
        "sm_clock_max_hz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1_000_000,
        "memory_clock_hz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1_000_000,
        "power_limit_w": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    }
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no bindings, no library, no driver, no permission
        return dict.fromkeys(readings)

    handle = gpu_handle(pynvml, uuid)
    figures = {
        name: _reading(read) if handle is not None or name == "driver" else None for name, read in readings.items()
    }
    _reading(lambda: pynvml.nvmlShutdown())
    return figures


def collect_environment() -> dict[str, Any]:
    """The environment as a strict-JSON mapping; keys carry units, what is not known is None."""
    devices = _cuda_devices()
    commit, has_changes = _checkout()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine() or None,
        "cpu": cpu_name(),
        "cpu_cores": os.cpu_count(),
        "cpu_governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": _memory_bytes(),
        "device": devices[0]["name"] if devices else "cpu",
        "cuda_devices": devices,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "thread_variables": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")},
        "packages": {package: _reading(partial(importlib.metadata.version, package)) for package in PACKAGES},
        "commit": commit,
        "uncommitted_changes": has_changes,
    }


@contextmanager
def threads_in_use(threads: int) -> Iterator[None]:
    """So many of torch's threads within one operation; as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def use_threads(threads: int | None, recorded: Mapping[str, Any] | None = None) -> dict[int, float]:
    """Set torch's threads within one operation; None takes the fewest with which a forward was about as fast as any.

    recorded: the environment of the run that goes on, whose threads are kept. Returns the seconds of the forward by
    number of threads; empty where none was timed: a number was given, or the work is on a GPU.
    """
    timed_s: dict[int, float] = {}
    if threads is None and recorded is not None:
        threads = recorded.get("threads")
        timed_s = {int(number): seconds for number, seconds in (recorded.get("threads_timed_s") or {}).items()}
    elif threads is None and not torch.cuda.is_available():
        timed_s = time_threads()
        threads = fastest_threads(timed_s, torch.get_num_threads())
    if threads is not None:
        torch.set_num_threads(threads)
    return timed_s


@contextmanager
def fastest_threads_in_use() -> Iterator[None]:
    """What is fastest right now, for work that is not timed; as many as before afterwards. Nothing changes on a GPU."""
    usual = torch.get_num_threads()
    threads = usual if torch.cuda.is_available() else fastest_threads(time_threads(), usual)
    with threads_in_use(threads):
        yield


def fastest_threads(timed_s: Mapping[int, float], usual: int) -> int:
    """The fewest threads that are about as fast as the fastest; the usual number where none was timed.

    Threads that gain little wait for each other as soon as another program wants one of their cores.
    """
    best_s = min(timed_s.values(), default=0.0)
    return min((number for number, took_s in timed_s.items() if took_s <= (1 + ABOUT_AS_FAST) * best_s), default=usual)


def time_threads(seconds: float = THREADS_SECONDS) -> dict[int, float]:
    """Mean seconds of a forward of one token through a few layers, by number of threads; empty where there is one.

    The usual number, halves of it and 1 are timed: on cores that others use too, fewer threads wait less for each
    other. Each runs for a while without a break, there and back again: a system lets a thread that slept go first, for
    a moment.
    """
    usual = torch.get_num_threads()
    numbers = sorted({max(1, usual >> shift) for shift in range(usual.bit_length())})
    if len(numbers) < 2:
        return {}
    weights = [torch.full((_WIDTH, _WIDTH), 1 / _WIDTH) for _ in range(_LAYERS)]
    took_s, forwards = dict.fromkeys(numbers, 0.0), dict.fromkeys(numbers, 0)
    for number in (*numbers, *reversed(numbers)):
        with threads_in_use(number), torch.inference_mode():
            forward_s(weights, 1)  # starts the threads
            spent_s = 0.0
            while spent_s < seconds / (2 * len(numbers)) or not spent_s:
                spent_s += forward_s(weights, 1)
                forwards[number] += 1
        took_s[number] += spent_s
    return {number: took_s[number] / forwards[number] for number in numbers}
