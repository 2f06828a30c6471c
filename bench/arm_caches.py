"""Whether memory, and what a run may take of it, holds the caches of all arms that take turns at once.

Too much of it ends in an exception on a device and in a killed process on a host, so it is asked before.

    caches_fit(pair, arms=9, batch_size=4, tokens=320)
    caches_fit(pair, arms=9, batch_size=4, tokens=320, limit=8 << 30)
"""

from __future__ import annotations

from pathlib import Path

import torch

from specgauge.bench.cache import capacity_bucket
from specgauge.bench.models import LoadedModel, LoadedPair

MOST_OF_FREE = 0.5
"""Share of the free memory that caches may take: logits and what else a round needs come on top."""


def caches_fit(pair: LoadedPair, *, arms: int, batch_size: int, tokens: int, limit: int | None = None) -> bool:
    """Whether each arm may have caches of its own, of so many tokens a row; yes where a figure is unknown.

    limit: bytes that the weights of both models and all those caches may take together; None is no limit.
    """
    needed: dict[torch.device, int] = {}
    for model in pair.models:
        own = cache_bytes(model, batch_size=batch_size, tokens=tokens) or 0
        needed[model.device] = needed.get(model.device, 0) + arms * own
    if limit is not None and weight_bytes(pair) + sum(needed.values()) > limit:
        return False
    return all((free := free_bytes(device)) is None or own <= MOST_OF_FREE * free for device, own in needed.items())


def weight_bytes(pair: LoadedPair) -> int:
    """Bytes of the weights of both models; what they share counts once."""
    weights = {weight.data_ptr(): weight.nbytes for model in pair.models for weight in model.model.parameters()}
    return sum(weights.values())


def cache_bytes(model: LoadedModel, *, batch_size: int, tokens: int) -> int | None:
    """Bytes of keys and values of all layers; None where the configuration does not say their shape."""
    config = model.model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    layers, hidden = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    if not heads or not layers or not hidden:
        return None
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    numbers = 2 * layers * batch_size * kv_heads * capacity_bucket(tokens) * head_dim
    return int(numbers) * model.dtype.itemsize


def free_bytes(device: torch.device) -> int | None:
    """Bytes that may still be taken: on CUDA what the driver and torch's own pool have, on a host what Linux says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (available,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return None
    return available * 1024
