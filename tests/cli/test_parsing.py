"""What people write, read: durations, lists, ranges, acceptance, and rows of CSV files."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from pydantic.dataclasses import dataclass

from specgauge.cli import parsing
from specgauge.sweeps.store.schema import OPEN, Positive

ACCEPTANCE = ("alpha", "rates", "conditional_rates", "counts", "histogram", "tokens_per_round")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parsing.parse_duration_s, "19.05ms", 0.01905),
        (parsing.parse_duration_s, "0.5 s", 0.5),
        (parsing.parse_duration_s, "120µs", 0.00012),
        (parsing.parse_duration_s, "120 μs", 0.00012),
        (parsing.parse_duration_s, "80ns", 8e-8),
        (parsing.parse_duration_s, " 2e-3 ", 0.002),
        (parsing.parse_duration_s, "0", 0.0),
        (parsing.parse_durations_s, "1ms, 2 s,3", [0.001, 2.0, 3.0]),
        (parsing.parse_numbers, ".2, .4,-1e1", [0.2, 0.4, -10.0]),
        (parsing.parse_counts, "3, 0,12,8k", [3, 0, 12, 8192]),
        (parsing.parse_gammas, "4", [4]),
        (parsing.parse_gammas, "1,2,4", [1, 2, 4]),
        (parsing.parse_gammas, "1:4", [1, 2, 3, 4]),
        (parsing.parse_gammas, "1:8:3", [1, 4, 7]),
        (parsing.parse_gammas, "5:5", [5]),
        (parsing.parse_gammas, "1:1000", [*range(1, 1001)]),
        (parsing.parse_batch_sizes, "1:256", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        (parsing.parse_batch_sizes, "3:12", [3, 4, 8, 12]),
        (parsing.parse_batch_sizes, "8:30:8,1", [1, 8, 16, 24]),
        (parsing.parse_batch_sizes, "5:5,5", [5]),
        (parsing.parse_batch_sizes, "4:8", [4, 8]),
    ],
)
def test_values_are_read(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@given(st.floats(0, 1e6))
def test_plain_seconds_are_kept_to_the_last_bit(value: float) -> None:
    assert parsing.parse_duration_s(repr(value)) == value
    assert parsing.parse_duration_s(f"{value!r}s") == value


def test_a_duration_below_0_is_read_where_it_may_be_one() -> None:
    assert parsing.parse_duration_s("-0.3ms", signed=True) == -0.0003
    with pytest.raises(ValueError, match=r"^--t-draft: expected a time of at least 0, got '-0\.3ms'"):
        parsing.parse_duration_s("-0.3ms", "--t-draft")


def test_each_acceptance_option_gives_its_profile_and_its_gammas() -> None:
    def given_by(name: str, value: Any, gamma: str | None = None) -> Any:
        return parsing.parse_acceptance({**dict.fromkeys(ACCEPTANCE), name: value}, gamma)

    alpha = given_by("alpha", 0.5)
    assert (alpha.gammas, alpha.inputs) == ([1, 2, 3, 4, 5, 6, 7, 8], {"alpha": 0.5})
    for name, text in (("rates", ".75,.5,.25"), ("counts", "4:3,2,1"), ("histogram", "1,1,1,1")):
        found = given_by(name, text)
        assert found.gammas == [1, 2, 3]
        assert found.profile.survival.tolist() == [0.75, 0.5, 0.25]
    conditional = given_by("conditional_rates", ".5,1", "2:4:2")
    assert conditional.gammas == [2, 4]
    assert conditional.profile.survival.tolist() == [0.5, 0.5]
    measured = given_by("tokens_per_round", "1.5,2.5", "1,4")
    np.testing.assert_allclose(measured.profile.at([1, 4]).tokens_per_round, [1.5, 2.5], rtol=1e-12)
    totals = given_by("counts", "208/260/52", "5")
    assert totals.profile.at([5]).tokens_per_round == pytest.approx([5.0])
    assert totals.inputs == {"accepted": 208, "drafted": 260, "rounds": 52}


@dataclass(frozen=True, kw_only=True, config=OPEN)
class Case:
    gamma: Annotated[int, Field(strict=True, ge=1, le=9)]
    t_decode_s: Positive | None = None
    gpu: str = ""


def table(tmp_path: Path, text: str | bytes) -> parsing.Table[Case]:
    path = tmp_path / "cells.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return parsing.read_table(path, Case)


def test_rows_are_typed_and_other_columns_carried_along(tmp_path: Path) -> None:
    read = table(tmp_path, 'gamma,t_decode_s,gpu,id,note,empty\n1,0.5,"A, B",7,1.5,\n\n2, 1e-3 ,C,,x,\n')
    assert [row.gamma for row in read.rows] == [1, 2]
    assert [row.gpu for row in read.rows] == ["A, B", "C"]
    assert read.column("t_decode_s").tolist() == [0.5, 0.001]
    assert read.plain("id") == [7, None]
    assert read.plain("note") == ["1.5", "x"]
    assert read.plain("empty") == [None, None]
    assert read.plain("t_decode_s") == [0.5, 0.001]
    assert table(tmp_path, b"\xef\xbb\xbfgamma\r\n3\r\n").rows == (Case(gamma=3),), "no part of the header"


def test_empty_cells_and_absent_columns_are_unknown(tmp_path: Path) -> None:
    np.testing.assert_array_equal(table(tmp_path, "gamma,t_decode_s\n1,\n2,0.5\n").column("t_decode_s"), [np.nan, 0.5])
    np.testing.assert_array_equal(table(tmp_path, "gamma\n1\n").column("t_decode_s"), [np.nan])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"gamma\n\xff\n", "cells.csv:2"),
        ("gamma\n1\n\n1.5\n", "cells.csv, line 4, gamma"),
        ("gamma\nnan\n", "cells.csv, line 2, gamma"),
        ("gamma\n1_0\n", "cells.csv, line 2, gamma"),
        ("gamma\n٣\n", "cells.csv, line 2, gamma"),
        ("gamma,t_decode_s\n1,1e999\n", "cells.csv, line 2, t_decode_s"),
    ],
)
def test_bad_files_name_the_place(tmp_path: Path, text: str | bytes, place: str) -> None:
    with pytest.raises(ValueError, match=r"; ") as caught:
        table(tmp_path, text)
    assert str(caught.value).partition(": ")[0] == f"{tmp_path}/{place}"
    assert "\n" not in str(caught.value)
