"""Positions by configuration: rotary scaling that was only added, and factors that switch."""

from __future__ import annotations

from typing import Any

import pytest

from specgauge.model.context import context_limit, rope_switch

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [8.0]}
PHI = {"max_position_embeddings": 128, "original_max_position_embeddings": 32, "rope_scaling": LONG}


@pytest.mark.parametrize(
    ("config", "reach", "limit", "switch"),
    [
        ({}, 10, None, None),
        ({"n_positions": 64}, None, 64, None),
        ({"max_position_embeddings": 64, "rope_scaling": YARN}, None, 256, None),
        ({"max_position_embeddings": 300, "rope_scaling": YARN}, None, 300, None),
        ({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "yarn", "factor": 2}}, None, 128, None),
        ({"max_position_embeddings": 64, "rope_parameters": {"full": YARN, "sliding": {}}}, None, 256, None),
        ({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "llama3", "factor": 8}}, None, 64, None),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 4.0}}, 64, 64, 64),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 4.0}}, 65, 256, 64),
        (PHI, 32, 32, 32),
        (PHI, 33, 128, 32),
        ({"max_position_embeddings": 128, "rope_scaling": {**YARN, "type": "su"}}, None, 64, 64),
    ],
)
def test_positions_a_model_takes(
    config: dict[str, Any], reach: int | None, limit: int | None, switch: int | None
) -> None:
    assert (context_limit(config, reach), rope_switch(config)) == (limit, switch)
