"""Options that change a configuration: where their values go, and in which form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.loader import load_config
from tests.configs.texts import MINIMAL, TWO_PAIRS, write

SETTINGS = "sampling=[{name: t1}, {name: t2, temperature: 2}]"
LOOKUP = "pairs[0].draft=ngram"
FAULTY = "grid:\n  gamma: 0\nseed: 1\nseed: 2\n"


@pytest.mark.parametrize(
    ("options", "place", "value"),
    [
        (["grid.batch_size=[1, 2]"], "grid.batch_size", [1, 2]),
        (["precision.relative_ci=1e-3"], "precision.relative_ci", 0.001),
        (["precision.max_seconds=null"], "precision.max_seconds", None),
        ([SETTINGS, "sampling[1].top_k=5"], "sampling[1].top_k", 5),
        (["limits.run_seconds=90"], "limits.run_seconds", 90.0),
        (["seed = 7"], "seed", 7),
        (["seed=1", "seed=2"], "seed", 2),
        (["pairs[1].target.dtype=bfloat16"], "pairs[1].target.model", "org/big"),
        (["pairs[1].draft=org/tiny"], "pairs[1].draft.model", "org/tiny"),
        (["pairs[1].draft=org/tiny"], "pairs[1].draft.dtype", "auto"),
        (["pairs[1].draft.quantization.8=x"], "pairs[1].draft.quantization", {"8": "x"}),
        (["pairs[1].target.revision=a=b"], "pairs[1].target.revision", "a=b"),
        ([LOOKUP], "pairs[0].draft.ngram.longest", 3),
        ([LOOKUP, "pairs[0].draft.ngram.longest=5"], "pairs[0].draft.ngram.longest", 5),
        ([LOOKUP, "pairs[0].draft=org/small"], "pairs[0].draft.model", "org/small"),
        (["pairs[0].draft={layers: 2}", "pairs[0].draft.layers=3"], "pairs[0].draft", {"layers": 3}),
    ],
)
def test_a_value_is_yaml_and_goes_to_its_place(tmp_path: Path, options: list[str], place: str, value: object) -> None:
    found: Any = load_config(write(tmp_path, TWO_PAIRS), options).model_dump(mode="json")
    for index, key in re.findall(r"\[(\d+)\]|([^.\[\]]+)", place):
        found = found[int(index) if index else key]
    assert found == value
    assert type(found) is type(value)


def test_an_option_mends_a_faulty_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL + FAULTY), ["grid.gamma=3", "seed=5"])
    assert (config.grid.gamma, config.seed) == ((3,), 5)
