"""What counts as a lack of memory; peak memory of several devices is the sum of theirs, each counted once."""

from __future__ import annotations

import pytest
import torch

from specgauge.bench.device import distinct_devices, is_out_of_memory, peak_memory_bytes

CPU, CUDA, CUDA_0, CUDA_1 = (torch.device(name) for name in ("cpu", "cuda", "cuda:0", "cuda:1"))


def test_a_device_under_two_names_is_one() -> None:
    assert distinct_devices([CUDA, CUDA_0, CPU, CUDA_1, torch.device("cpu:0")]) == (CUDA, CPU, CUDA_1)


def test_the_peak_of_two_devices_is_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {CUDA: 5, CUDA_1: 7}.__getitem__)
    assert peak_memory_bytes([CUDA]) == 5
    assert peak_memory_bytes([CUDA, CUDA_1]) == 12
    host = peak_memory_bytes([CPU])
    assert host > 2**20
    assert peak_memory_bytes([CUDA_1, CPU]) >= host + 7


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("x"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
