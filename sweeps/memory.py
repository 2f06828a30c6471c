"""Cells that are skipped before anything is tried, since they should not fit into `limits.memory`. No torch.

    over_memory(config, sizes, cell)    →  "needs 9.1 GiB by estimate (weights 8 GiB, keys and values 1.1 GiB), …"

What counts is what can be known beforehand: the weights of both models, and the keys and values of the cell. A model
whose files do not tell its size is tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specgauge.sweeps.estimate import PairSizes, is_over_memory, kv_bytes, weight_bytes
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.units import size_text

if TYPE_CHECKING:
    from specgauge.configs.schema import Config


def over_memory(config: Config, sizes: PairSizes, cell: Cell) -> str | None:
    """Why a cell should not fit, with the figures and the remedy; None where it may, or nothing is known."""
    if not is_over_memory(config, sizes, cell):
        return None
    limit, weights, kv = config.limits.memory, weight_bytes(sizes), kv_bytes(config, sizes, cell)
    assert limit is not None
    assert weights is not None
    assert kv is not None
    remedy = "load the models in a smaller dtype" if weights > limit else "lower grid.batch_size or grid.context"
    return (
        f"needs {size_text(weights + kv)} by estimate (weights {size_text(weights)}, keys and values {size_text(kv)}), "
        f"limits.memory is {size_text(limit)}; raise it, or {remedy}"
    )
