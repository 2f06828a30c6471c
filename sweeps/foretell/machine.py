"""A pair on a machine, from what its parts are called: shapes, an entry, dtypes, and how the draft is placed.

    pair = planned_pair("llama-3.1-70b", "eagle3", "h100-sxm", tensor_parallel=4)
    pair.source().costs(8, 1024, [1, 2, 3])

A draft is a shape as the target is, `eagle3` (a one-layer head), `layers:8` (the target's first layers) or `ngram`
(lookups, which cost nothing).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from specgauge.configs.hardware import (
    CalibrationEntry,
    CalibrationError,
    DraftError,
    HardwareEntry,
    load_hardware,
    load_shape,
)
from specgauge.model.costs import CostSource
from specgauge.model.roofline.architecture import architecture_from_config
from specgauge.model.roofline.costs import TimeErrors
from specgauge.model.roofline.deployment import DTYPE_BYTES, Deployment, Hardware, precision_of
from specgauge.model.roofline.drafts import eagle3_head, first_layers
from specgauge.model.roofline.quantization import BITS, Quantization, quantized
from specgauge.model.roofline.step_time import Efficiency
from specgauge.sweeps.sources import cost_source

DraftKind = Literal["model", "eagle3", "layers", "ngram"]
_SPELLINGS = {"fp8": "float8", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """What was asked for, None where the config decides; dtypes as people write them."""

    dtype: str | None = None
    """Of plain weights, activations and, unless given, the cache."""
    kv_cache: str | None = None
    weights: str | None = None
    """Of the target's matrices: a dtype, or int4, int8 or fp8, with a group size after a colon (`int4:128`)."""
    draft_weights: str | None = None
    """Of the draft's."""


@dataclass(frozen=True, kw_only=True)
class PlannedPair:
    """A target and its draft on one machine."""

    target: Deployment
    draft: Deployment | None
    """None: lookups."""
    draft_kind: DraftKind
    entry: HardwareEntry

    @property
    def efficiency(self) -> Efficiency | None:
        """Of the entry's calibration, None without one."""
        fitted = self.entry.calibration
        return None if fitted is None else efficiency_of(fitted)

    @property
    def draft_efficiency(self) -> Efficiency | None:
        """The draft's own, None where its times take the target's numbers."""
        fitted = self.entry.calibration
        if fitted is None or fitted.draft is None:
            return None
        return replace(efficiency_of(fitted), launch_s=fitted.draft.launch_s, token_s=fitted.draft.token_s)

    @property
    def draft_error(self) -> DraftError | None:
        """What to expect of this draft where drafts were fitted: that of its own shape, else of others."""
        fitted = self.entry.calibration
        if fitted is None or fitted.draft is None or self.draft is None:
            return None
        known = self.draft.architecture.name.lower() in fitted.draft.drafts
        return fitted.draft.same_draft if known else fitted.draft.other_draft or fitted.draft.same_draft

    @property
    def error(self) -> CalibrationError | None:
        """What to expect of this target: that of its own shape where it was calibrated, else of other shapes."""
        fitted = self.entry.calibration
        if fitted is None:
            return None
        own, other = fitted.same_target, fitted.other_target
        known = self.target.architecture.name.lower() in fitted.targets
        return (own if known else other) or own

    @property
    def time_errors(self) -> TimeErrors | None:
        """The same, as what costs are drawn from."""
        error, fitted = self.error, self.entry.calibration
        if error is None or fitted is None:
            return None
        known = fitted.draft_error if self.draft_error is None else self.draft_error.rms
        draft = max(error.decode, error.verify) if known is None else known
        return TimeErrors(decode=error.decode, verify=error.verify, ratio=error.ratio, draft=draft)

    def source(self) -> CostSource:
        """The roofline of both, with the entry's calibration where it has one."""
        fitted = self.entry.calibration
        overhead_s = None if fitted is None else fitted.t_overhead_s
        return cost_source(
            "roofline",
            target=self.target,
            draft=self.draft,
            efficiency=self.efficiency,
            draft_efficiency=self.draft_efficiency,
            t_overhead_s=overhead_s,
        )


def efficiency_of(fitted: CalibrationEntry) -> Efficiency:
    """The fitted numbers of an entry."""
    return Efficiency(
        bandwidth_fraction=fitted.bandwidth_fraction, flops_fraction=fitted.flops_fraction, launch_s=fitted.launch_s
    )


def planned_pair(
    target: str,
    draft: str | None,
    hardware: str,
    *,
    tensor_parallel: int = 1,
    draft_tensor_parallel: int | None = None,
    draft_window: int | None = None,
    dtypes: Dtypes | None = None,
    calibrated: bool = True,
) -> PlannedPair:
    """A pair on an entry (name or YAML file).

    draft_tensor_parallel: 1 keeps a whole copy on every device, None shares the draft out as the target.  calibrated:
    whether to use the entry's calibration where it has one.  draft_window: cached tokens that a draft sees at most.

    Raises:
        ValueError: an unknown name, sizes that a config lacks, heads that do not divide over the devices, or a dtype
            that nobody knows.
    """
    asked, entry = dtypes or Dtypes(), load_hardware(hardware)
    if not calibrated:
        entry = entry.model_copy(update={"calibration": None})
    devices = tensor_parallel if draft_tensor_parallel is None else draft_tensor_parallel
    if devices not in (1, tensor_parallel):
        expected = f"expected 1 (a copy on every device) or the target's {tensor_parallel}"
        raise ValueError(f"draft tensor parallel: {expected}, got {devices}")
    config = load_shape(target)
    on_machine = deployment(
        config, Path(target).name, entry, tensor_parallel=tensor_parallel, dtypes=asked, weights=asked.weights
    )
    kind, shape, name = _draft_shape(draft, config, on_machine.architecture.name)
    if shape is None:
        return PlannedPair(target=on_machine, draft=None, draft_kind=kind, entry=entry)
    own = asked.draft_weights if asked.draft_weights or kind != "layers" else asked.weights
    try:
        drafting = deployment(
            shape, name, entry, tensor_parallel=devices, dtypes=asked, weights=own, shares_weights=kind == "layers"
        )
    except ValueError as error:
        if devices == 1 or "tensor parallel" not in str(error):
            raise
        raise ValueError(f"{error}; a draft can also be copied to every device (draft tensor parallel 1)") from error
    if kind == "model" and drafting.architecture.shares_embedding:
        kind = "eagle3"
    if draft_window is not None:
        drafting = windowed(drafting, draft_window)
    return PlannedPair(target=on_machine, draft=drafting, draft_kind=kind, entry=entry)


def windowed(model: Deployment, window: int) -> Deployment:
    """The model with a cache of at most `window` tokens in every layer, as drafts with a KV budget have it.

    Raises:
        ValueError: a window of no token.
    """
    if window < 1:
        raise ValueError(f"draft window: expected at least 1 token, got {window}")
    own = model.architecture.windows
    seen = tuple(window if layer is None else min(layer, window) for layer in own)
    return replace(model, architecture=replace(model.architecture, windows=seen))


def deployment(
    config: Mapping[str, Any],
    name: str,
    entry: HardwareEntry,
    *,
    tensor_parallel: int = 1,
    dtypes: Dtypes | None = None,
    weights: str | None = None,
    shares_weights: bool = False,
) -> Deployment:
    """A config.json's model on an entry.

    Raises:
        ValueError: sizes that the config lacks, or what does not fit together.
    """
    asked, card = dtypes or Dtypes(), Hardware(**entry.plain())
    architecture = architecture_from_config(config, name=name)
    plain, stored = _weights(weights)
    precision = precision_of(
        architecture,
        card,
        dtype=plain or _dtype(asked.dtype) or (architecture.dtype if stored else None),
        kv_cache=_dtype(asked.kv_cache),
        quantization=stored,
    )
    return Deployment(
        architecture=architecture,
        hardware=card,
        precision=precision,
        tensor_parallel=tensor_parallel,
        shares_weights=shares_weights,
    )


def _draft_shape(
    draft: str | None, target: Mapping[str, Any], target_name: str
) -> tuple[DraftKind, Mapping[str, Any] | None, str]:
    """Kind, config (None: lookups) and name of a draft."""
    text = "ngram" if draft is None else draft.strip()
    if text == "ngram":
        return "ngram", None, text
    if text.lower() == "eagle3":
        return "eagle3", eagle3_head(target), f"eagle3 head of {target_name}"
    layers = re.fullmatch(r"layers\s*[:=]\s*(\d{1,5})|\{\s*layers\s*[:=]\s*(\d{1,5})\s*\}", text, flags=re.ASCII)
    if layers:
        count = int(layers[1] or layers[2])
        return "layers", first_layers(target, count), f"first {count} layers of {target_name}"
    return "model", load_shape(text, what="draft", kinds=("eagle3", "layers:8", "ngram")), Path(text).name


def _dtype(text: str | None) -> str | None:
    return None if text is None else _SPELLINGS.get(text, text)


def _weights(text: str | None) -> tuple[str | None, Quantization | None]:
    """A plain dtype, or a quantisation, from text such as `int4:128`."""
    if text is None:
        return None, None
    name, _, group = text.partition(":")
    dtype = _dtype(name) or ""
    if dtype in BITS:
        if group and not re.fullmatch(r"\d{1,9}", group, flags=re.ASCII):
            raise ValueError(f"weights: expected a group size after the colon, such as int4:128, got {text!r}")
        return None, quantized(dtype, int(group) if group else None)
    if dtype not in DTYPE_BYTES or group:
        known = ", ".join(dict.fromkeys((*BITS, *DTYPE_BYTES)))
        raise ValueError(f"weights: expected one of {known}, or int4:128 for groups of 128, got {text!r}")
    return dtype, None
