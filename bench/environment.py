"""What a measurement was taken on: machine, device, packages, versions and clocks; unknown is null, never a guess.

environment = collect_environment()      # strict JSON, written to environment.json
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "specgauge",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "accelerate",
    "numpy",
    "pandas",
    "scipy",
    "pyarrow",
)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _cpu_governor() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this code runs from, or None for an installed package."""
    folder = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


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
                **_nvml(index),
            }
        )
    return devices


def _nvml(index: int) -> dict[str, Any]:
    """Driver version, clocks, power limit and temperature as NVML reads them; None where it cannot."""
    figures: dict[str, Any] = dict.fromkeys(
        ("driver", "sm_clock_hz", "sm_clock_max_hz", "memory_clock_hz", "power_limit_w", "temperature_c")
    )
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:  # any failure of an optional reading means unknown
        return figures
    readings = {
        "driver": pynvml.nvmlSystemGetDriverVersion,
        "sm_clock_hz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1_000_000,
        "sm_clock_max_hz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1_000_000,
        "memory_clock_hz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1_000_000,
        "power_limit_w": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    }
    for name, read in readings.items():
        try:
            figures[name] = read()
        except pynvml.NVMLError:
            figures[name] = None
    return figures


def collect_environment() -> dict[str, Any]:
    """The environment as a strict-JSON mapping; keys carry units."""
    devices = _cuda_devices()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cpu_cores": os.cpu_count(),
        "cpu_governor": _cpu_governor(),
        "memory_bytes": _memory_bytes(),
        "device": devices[0]["name"] if devices else "cpu",
        "cuda_devices": devices,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "thread_variables": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")},
        "packages": {package: _version(package) for package in PACKAGES},
        "commit": _commit(),
    }


def use_threads(threads: int | None) -> None:
    """Set torch's threads within one operation; None leaves torch's own choice."""
    if threads is not None:
        torch.set_num_threads(threads)
