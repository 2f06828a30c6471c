"""policies.json: written before anything is decoded under the policies, read back exactly, refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.store.rundir import POLICIES
from specgauge.sweeps.store.tuned_policies import TunedCell, TunedHalf, half_of, keep_tuned, read_tuned
from tests.model.policy_cases import POLICIES as EVERY_KIND
from tests.sweeps.decoded import key


def cell(**changes: Any) -> TunedCell:
    halves = (
        TunedHalf(tuned_on=(1, 3), policies=EVERY_KIND),
        TunedHalf(tuned_on=(0, 2), policies=dict(reversed(EVERY_KIND.items()))),
    )
    made = TunedCell(
        key=key(), prompts=4, gamma_max=6, t_overhead_s=0.1 + 0.2, t_look_s=0.1, halves=halves, left_out={"x": "why"}
    )
    return replace(made, **changes)


def test_cells_come_back_as_they_were(tmp_path: Path) -> None:
    assert read_tuned(tmp_path) == {}
    other = cell(key=key(batch_size=4), left_out={})
    keep_tuned(tmp_path, cell())
    keep_tuned(tmp_path, other)
    assert read_tuned(tmp_path) == {key(): cell(), key(batch_size=4): other}
    assert list(read_tuned(tmp_path)[key()].names) == list(EVERY_KIND)
    keep_tuned(tmp_path, cell(t_look_s=0.5))
    assert read_tuned(tmp_path)[key()].t_look_s == 0.5


def test_a_prompt_belongs_to_one_half_at_every_length() -> None:
    """Five prompts at two lengths: numbers 0 to 4, then 5 to 9."""
    assert [half_of(number, 5) for number in range(10)] == [0, 1, 0, 1, 0] * 2


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-20], "truncated or not JSON"),
        (lambda text: "[]", "a JSON object is expected"),
        (lambda text: text.replace('"schema": 1', '"schema": 99'), "was written by another release"),
        (lambda text: "{}", "no policies of specgauge: 'cells' is missing"),
        (lambda text: text.replace('"t_look_s": 0.1', '"look": 0.1'), "'t_look_s' is missing"),
        (lambda text: text.replace('"kind": "svip"', '"kind": "magic"'), "found kind 'magic'"),
        (lambda text: json.dumps({"cells": [{**json.loads(text)["cells"][0], "halves": []}]}), "not enough values"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, damage: Callable[[str], str], words: str) -> None:
    keep_tuned(tmp_path, cell())
    path = tmp_path / POLICIES
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=words) as error:
        read_tuned(tmp_path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
