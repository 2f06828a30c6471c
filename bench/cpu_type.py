"""The type of weights that is natively fast on this machine's CPU, which `dtype: auto` takes there.

    fast_dtype()      {"dtype": "float32", "why": "no bfloat16 instructions", "timed_s": {}}

Without instructions for bfloat16 its prefills take several times those of float32. With them it is taken where it
measured faster: forwards of 1 to 64 tokens through a few layers, on the geometric mean of their ratios. Nothing is
loaded in fewer digits than it is stored in. Importing this needs no torch.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

from specgauge.bench.processor import cpu_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from transformers import PreTrainedModel

    from specgauge.bench.notes import Note

TOKENS = (1, 4, 16, 64)
"""A draft step, verifications, a prefill."""
CLEARLY_FASTER = 0.95
_WIDTH, _LAYERS = 1024, 8
_FEWEST, _MOST, _SECONDS = 3, 20, 0.3
"""Rounds of forwards in both types, and the seconds after which no more of them are begun."""
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
_CAPPED = {
    "ATEN_CPU_CAPABILITY": {"default", "avx2"},
    "ONEDNN_MAX_CPU_ISA": {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"},
}
"""Variables that keep torch and oneDNN from instructions which the CPU has, and values that leave none for bfloat16."""


def bfloat16_instructions() -> str | None:
    """The best instructions for bfloat16 that may be used here; None without any."""
    if any(os.environ.get(name, "") in values for name, values in _CAPPED.items()):
        return None
    return next((name for name in _INSTRUCTIONS if name in cpu_flags()), None)


def fast_dtype() -> dict[str, Any]:
    """`bfloat16` where it is natively fast and measured faster, else `float32`; why, and the seconds of its forwards.

    `timed_s` has those of both types by number of tokens, and is empty where nothing was timed.
    """
    native = bfloat16_instructions()
    if native is None:
        return {"dtype": "float32", "why": "no bfloat16 instructions", "timed_s": {}}
    timed_s = _forwards_s(("float32", "bfloat16"))
    pairs = zip(timed_s["bfloat16"], timed_s["float32"], strict=True)
    ratio = math.exp(sum(math.log(half / full) for half, full in pairs) / len(TOKENS))
    is_faster = ratio < CLEARLY_FASTER
    return {
        "dtype": "bfloat16" if is_faster else "float32",
        "why": f"bfloat16 by {native} takes {ratio:.2f} × the time of float32, forwards of 1 to {max(TOKENS)} tokens",
        "timed_s": {name: dict(zip(map(str, TOKENS), found, strict=True)) for name, found in timed_s.items()},
    }


def _forwards_s(dtypes: Sequence[str]) -> dict[str, list[float]]:
    """By type, the shortest of a few forwards through a few layers on one thread, for each number in `TOKENS`."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # however many the run takes: on a busy machine threads wait for each other
    try:
        with torch.inference_mode():
            layers = {
                name: [torch.full((_WIDTH, _WIDTH), 1 / _WIDTH, dtype=getattr(torch, name)) for _ in range(_LAYERS)]
                for name in dtypes
            }
            rounds: list[dict[str, list[float]]] = []
            ends_s = time.perf_counter() + _SECONDS
            while len(rounds) < _FEWEST or (len(rounds) < _MOST and time.perf_counter() < ends_s):
                rounds.append({name: [forward_s(layers[name], tokens) for tokens in TOKENS] for name in dtypes})
    finally:
        torch.set_num_threads(threads)
    return {name: [min(times) for times in zip(*(one[name] for one in rounds), strict=True)] for name in dtypes}


def forward_s(layers: Sequence[torch.Tensor], tokens: int) -> float:
    """Seconds of one forward of that many tokens through square layers, each (width, width), by the clock."""
    hidden = layers[0].new_ones(tokens, layers[0].shape[0])
    started_s = time.perf_counter()
    for layer in layers:
        hidden = (hidden @ layer.T).relu()
    return time.perf_counter() - started_s


def take_fast_dtype(model: PreTrainedModel, cpu_dtype: str, name: str) -> Iterator[Note]:
    """Take a model on the CPU to float32, unless it is stored in what is fast there; told where memory forbids it."""
    import torch

    from specgauge.bench.device import free_bytes
    from specgauge.bench.notes import Note

    stored = str(model.dtype).removeprefix("torch.")
    if stored not in ("bfloat16", "float16") or stored == cpu_dtype:
        return
    needed = 2 * sum(weight.nbytes for weight in model.parameters())
    free = free_bytes(torch.device("cpu"))
    if free is not None and needed > free:
        yield Note(
            code="dtype_kept",
            message=f"{name}: stays {stored}, which is slow on this CPU: as float32 it takes {needed / 2**30:.3g} GiB, "
            f"{free / 2**30:.3g} GiB are free",
            remedy="free memory, or set dtype",
        )
        return
    model.float()
    model.config.dtype = torch.float32
