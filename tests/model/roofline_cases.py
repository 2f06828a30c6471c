"""Deployments that several tests of the roofline share."""

from typing import Any

from specgauge.configs.hardware import load_hardware, load_shape
from specgauge.model.roofline.architecture import Architecture, architecture_from_config
from specgauge.model.roofline.deployment import Deployment, Hardware, Precision

HALF = Precision(weights="bfloat16", kv_cache="bfloat16", compute="bfloat16")


def shape(name: str) -> Architecture:
    return architecture_from_config(load_shape(name), name=name)


def deployed(
    model: Architecture | str, hardware: Hardware | str = "a100-80gb-sxm", *, tensor_parallel: int = 1
) -> Deployment:
    architecture = shape(model) if isinstance(model, str) else model
    card = Hardware(**load_hardware(hardware).plain()) if isinstance(hardware, str) else hardware
    return Deployment(architecture=architecture, hardware=card, precision=HALF, tensor_parallel=tensor_parallel)


def tiny_config(**changes: Any) -> dict[str, Any]:
    """Two layers, 4 query and 2 key-value heads of 2 numbers, hidden 8, feed-forward 16, 10 tokens."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 10,
    }
    return config | changes


def tiny(**changes: Any) -> Architecture:
    """`tiny_config` as counts."""
    return architecture_from_config(tiny_config(**changes), name="tiny")


def round_machine(**changes: Any) -> Hardware:
    """A machine of round numbers: 1 kB/s, 10 kFLOP/s, 100 B/s links, 100 kB."""
    numbers: dict[str, Any] = {
        "name": "round",
        "memory_bytes": 1e5,
        "memory_bandwidth_bytes_per_s": 1e3,
        "peak_flops_per_s": {"bfloat16": 1e4},
        "link_bandwidth_bytes_per_s": 1e2,
        "multiprocessors": None,
    }
    return Hardware(**{**numbers, **changes})
