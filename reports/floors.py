"""What a machine's peaks allow for a draft/target pair: bytes, FLOPs, least times and the largest batch, as text.

Nothing is measured or fitted here: these are the roofline's floors (`specgauge.model.roofline.step_time`) from two
shapes and a hardware entry.  Shapes and entries are shipped names or the user's own files.

    python -m specgauge.reports.floors --target llama-3.1-8b --draft llama-3.2-1b --hardware h100-sxm \\
        --batch 1,8,64 --context 4000 --gamma 4
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specgauge.configs.hardware import hardware_names, load_hardware, load_shape, shape_names
from specgauge.model.roofline.architecture import architecture_from_config
from specgauge.model.roofline.deployment import Deployment, Hardware, Precision, largest_batch, native_precision
from specgauge.model.roofline.step_time import step_work, t_decode_s, t_draft_total_s, t_verify_s

COLUMNS = ("B", "T_decode", "T_verify", "C(gamma)", "FLOPs/byte, 1 token", "FLOPs/byte, gamma + 1", "bound of T_verify")


def deployment(shape: str, hardware: str, *, devices: int = 1, dtype: str | None = None) -> Deployment:
    """A shape (name, config.json or folder) on an entry (name or YAML file); `dtype` None is the config's own.

    Raises ValueError with one line for unknown names and for what does not fit together.
    """
    architecture = architecture_from_config(load_shape(shape), name=Path(shape).name)
    precision = (
        native_precision(architecture) if dtype is None else Precision(weights=dtype, kv_cache=dtype, compute=dtype)
    )
    card = Hardware(**load_hardware(hardware).plain())
    return Deployment(architecture=architecture, hardware=card, precision=precision, devices=devices)


def floors_text(
    target: Deployment, draft: Deployment | None, *, batch_sizes: Sequence[int], context: int, gamma: int
) -> str:
    """The floors for each batch size at one context and gamma, and what fits."""
    card = target.hardware
    peak = card.peak(target.precision.compute)
    devices = f"{target.devices} x {card.name}" if target.devices > 1 else card.name
    lines = [
        f"{devices}: {card.bandwidth() / 1e9:,.0f} GB/s, {peak / 1e12:,.4g} TFLOP/s in {target.precision.compute}, "
        f"ridge at {peak / card.bandwidth():.0f} FLOPs/byte; s = {context}, gamma = {gamma}; times are floors",
    ]
    for role, model in (("target", target), ("draft", draft)):
        if model is not None:
            lines.append(
                f"{role} {model.architecture.name}: {model.architecture.parameters / 1e9:.3f} G parameters, "
                f"{model.weight_bytes_held / 1e9:.2f} GB held by a device, "
                f"{float(model.kv_bytes_held(1)) / 1e3:.1f} kB of KV cache for a token"
            )
    rows = [_row(target, draft, batch, context, gamma) for batch in batch_sizes]
    widths = [max(len(row[place]) for row in (COLUMNS, *rows)) for place in range(len(COLUMNS))]
    for row in (COLUMNS, *rows):
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    lines.append(f"largest batch without a draft: {_fits(target, None, context, 0)}")
    if draft is not None:
        lines.append(f"largest batch with the draft at gamma = {gamma}: {_fits(target, draft, context, gamma)}")
    return "\n".join(lines)


def _row(target: Deployment, draft: Deployment | None, batch: int, context: int, gamma: int) -> tuple[str, ...]:
    one = step_work(target, batch_size=batch, context=context)
    many = step_work(target, batch_size=batch, context=context, tokens=gamma + 1)
    verify_s = float(t_verify_s(target, batch_size=batch, context=context, gamma=gamma))
    limits = {
        "memory": float(many.memory_bytes) / target.hardware.bandwidth(),
        "arithmetic": float(many.flops) / target.hardware.peak(target.precision.compute),
    }
    bound = next((name for name, seconds in limits.items() if seconds == verify_s), "link")
    chain = t_draft_total_s(draft, batch_size=batch, context=context, gamma_max=gamma)[-1] if draft and gamma else None
    return (
        str(batch),
        _ms(float(t_decode_s(target, batch_size=batch, context=context))),
        _ms(verify_s),
        "–" if chain is None else _ms(float(chain)),
        f"{float(one.arithmetic_intensity):.2f}",
        f"{float(many.arithmetic_intensity):.2f}",
        bound,
    )


def _fits(target: Deployment, draft: Deployment | None, context: int, gamma: int) -> str:
    if target.hardware.memory_bytes is None:
        return "unknown (the entry has no memory_bytes)"
    return str(int(largest_batch(target, draft=draft, context=context, gamma=gamma)))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _counts(option: str, text: str, *, minimum: int) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < minimum:
        raise ValueError(f"{option}: found {text!r}, allowed: whole numbers of at least {minimum}, with commas between")
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the floors; exit code 0, or 2 for what the user got wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m specgauge.reports.floors", description="Least times and largest batch that a machine allows."
    )
    parser.add_argument("--target", required=True, help="config.json, its folder, or " + ", ".join(shape_names()))
    parser.add_argument("--draft", default=None, help="the same; left out: no draft")
    parser.add_argument("--hardware", required=True, help="YAML file, or " + ", ".join(hardware_names()))
    parser.add_argument("--devices", type=int, default=1, help="tensor-parallel size (default 1)")
    parser.add_argument("--dtype", default=None, help="of weights, cache and arithmetic (default: the config's)")
    parser.add_argument("--batch", default="1,8,64", help="batch sizes (default 1,8,64)")
    parser.add_argument("--context", type=int, default=1024, help="tokens in the cache (default 1024)")
    parser.add_argument("--gamma", type=int, default=4, help="draft tokens of a round (default 4)")
    options = parser.parse_args(arguments)
    try:
        models = [
            deployment(shape, options.hardware, devices=options.devices, dtype=options.dtype)
            for shape in (options.target, options.draft)
            if shape is not None
        ]
        text = floors_text(
            models[0],
            models[1] if len(models) > 1 else None,
            batch_sizes=_counts("--batch", options.batch, minimum=1),
            context=options.context,
            gamma=_counts("--gamma", str(options.gamma), minimum=0)[0],
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
