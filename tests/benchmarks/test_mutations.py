"""Mutated run files are answered, refused or told, and the benchmark sees what is not."""

from __future__ import annotations

import os
import sys

import pytest

from tests.benchmarks import mutations
from tests.benchmarks.mutations import Answer, fault_of, mutated

USUAL = Answer(0, "answer", False, "", 0.1)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and alarms")


def test_a_few_mutations(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutations.main(["made", "1", "recommendation.yaml", "cells.jsonl"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("all: 2 mutations, ")


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (USUAL, ""),
        (USUAL._replace(shown="other", told=True), ""),
        (USUAL._replace(shown="other"), "silent"),
        (USUAL._replace(shown="", code=2), ""),
        (USUAL._replace(fault="a bug in specgauge, KeyError"), "bug"),
        (USUAL._replace(fault="hang"), "hang"),
        (USUAL._replace(seconds=11.0), "hang"),
    ],
)
def test_what_counts_as_a_fault(found: Answer, fault: str) -> None:
    assert fault_of(found, USUAL) == fault


def test_a_command_that_hangs_or_dies_is_counted_and_the_others_are_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def odd(arguments: list[str]) -> int:
        match arguments:
            case ["hang"]:
                while True:
                    pass
            case ["die"]:
                os._exit(7)
        return 0

    monkeypatch.setattr(mutations, "command_line", odd)
    monkeypatch.setattr(mutations, "ALARM_S", 1)
    lines = {name: ([name], ()) for name in ("first", "hang", "die", "last")}
    assert {name: found.fault for name, found in mutations.answers(lines)} == {
        "first": "", "hang": "hang", "die": "died with 7", "last": "",
    }  # fmt: skip


def test_a_mutation_is_told_by_its_number() -> None:
    data = b'{"a": 1, "b": 2}\n' * 9
    assert [mutated("f.json", data, number) for number in range(30)] == [
        mutated("f.json", data, number) for number in range(30)
    ]
    assert {kind for kind, changed in (mutated("f.json", data, number) for number in range(60)) if changed != data} == {
        "flip_bits", "cut", "repeat", "swap_lines", "other_value", "slightly_other",
    }  # fmt: skip
