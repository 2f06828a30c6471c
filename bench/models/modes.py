"""Execution modes: eager, torch.compile, CUDA graphs; a loaded model or pair in each of them.

    eager        as torch runs it, over views as narrow as the context
    compile      torch.compile, one graph for every (batch size, new tokens, bucket), no dynamic shapes
    cuda_graph   a captured and replayed CUDA graph for each of them

A mode covers the draft's forward, the target's and the verification.  Prompts are prefilled eagerly in all of them,
since their lengths are too many to compile a graph for each, and so are texts that are teacher-forced.

    refuse_mode_of(config.pairs[0], "cuda_graph")             # ValueError on a machine without CUDA
    pair = pair_in_mode(load_pair(config.pairs[0]), "compile")
"""

from __future__ import annotations

from dataclasses import replace

import torch

from specgauge.bench.models.agreement import check_static_forward
from specgauge.bench.models.pair import LoadedModel, LoadedPair, choose_device
from specgauge.configs.fields import Mode
from specgauge.configs.pairs import ModelConfig, PairConfig


def refuse_mode(mode: Mode, device: torch.device, name: str, *, spread: bool = False) -> None:
    """Refuse a mode on a model's device, or on one ``spread`` over several.

    Raises:
        ValueError: CUDA graphs without CUDA, or over several devices.
    """
    if mode != "cuda_graph":
        return
    if device.type != "cuda":
        seen = "a CUDA device to use" if torch.cuda.is_available() else "no CUDA device"
        raise ValueError(
            f"{name}: mode cuda_graph: expected a CUDA device, got {device} (torch {torch.__version__} sees {seen}); "
            "use mode: eager or compile"
        )
    if spread:
        raise ValueError(
            f"{name}: mode cuda_graph: expected one device, got a model spread over several by device_map; "
            "use mode: eager, or put it on one device"
        )


def in_mode(loaded: LoadedModel, mode: Mode) -> LoadedModel:
    """The same model, its forwards in ``mode``; weights are shared.

    Whether it compiles, or can be captured, shows at its first forward.

    Raises:
        ValueError: as `refuse_mode`, and for a model that computes other logits over static shapes.
    """
    devices = set(getattr(loaded.model, "hf_device_map", {}).values())
    refuse_mode(mode, loaded.device, loaded.name, spread=len(devices) > 1)
    if loaded.mode == mode:
        return loaded
    found = replace(loaded, mode=mode)
    if found.static is not None:
        check_static_forward(found.static)
    return found


def pair_in_mode(pair: LoadedPair, mode: Mode) -> LoadedPair:
    """The same pair, the forwards of its models in ``mode``; raises as `in_mode`."""
    target, draft = in_mode(pair.target, mode), None if pair.draft is None else in_mode(pair.draft, mode)
    return replace(pair, target=target, draft=draft)


def refuse_mode_of(pair: PairConfig, mode: Mode) -> None:
    """`refuse_mode`, before anything is loaded, for the devices that the models of a pair would be on."""
    for role in ("target", "draft"):
        spec = getattr(pair, role)
        if isinstance(spec, ModelConfig) and spec.device_map is None:
            name = f"pair '{pair.name}' {role}"
            refuse_mode(mode, choose_device(spec.device, name), name)
