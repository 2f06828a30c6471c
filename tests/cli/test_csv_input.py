"""CSV files as people make them: every fault named by file, row and column."""

from pathlib import Path

import numpy as np
import pytest

from specgauge.cli.csv_input import CsvTable, read_csv


def table(tmp_path: Path, text: str | bytes) -> CsvTable:
    path = tmp_path / "cells.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_csv(path, required=("gamma",), known=("gamma", "t_decode_s"))


def test_columns_are_read_as_numbers_and_carried_along(tmp_path: Path) -> None:
    read = table(tmp_path, 'gamma,t_decode_s,gpu,id,note,empty\n1,0.5,"A, B",7,1.5,\n\n2, 1e-3 ,C,,x,\n')
    assert read.size == 2
    assert read.whole_numbers("gamma", minimum=1).tolist() == [1, 2]
    assert read.numbers("t_decode_s", above=0).tolist() == [0.5, 0.001]
    assert read.plain("gpu") == ["A, B", "C"]
    assert read.plain("id") == [7, None]
    assert read.plain("note") == ["1.5", "x"]
    assert read.plain("empty") == [None, None]


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_header(tmp_path: Path) -> None:
    assert table(tmp_path, b"\xef\xbb\xbfgamma\r\n3\r\n").whole_numbers("gamma", minimum=1).tolist() == [3]


def test_optional_numbers_are_nan_where_empty_or_absent(tmp_path: Path) -> None:
    read = table(tmp_path, "gamma,t_decode_s\n1,\n2,0.5\n")
    np.testing.assert_array_equal(read.optional_numbers("t_decode_s"), [np.nan, 0.5])
    np.testing.assert_array_equal(read.optional_numbers("t_overhead_s"), [np.nan, np.nan])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cells.csv: found an empty file, allowed: a header with gamma and rows"),
        ("\n \n", "found an empty file"),
        ("gamma\n", "found a header without rows"),
        ("gama\n1\n", r"header: found no column gamma \(nearest found: gama\) among gama"),
        ("gamma;t_decode_s\n1;2\n", "the file needs commas between columns"),
        ("gamma,gamma\n1,2\n", "found column 'gamma' 2 times"),
        ("gamma,t_decode_ms\n1,2\n", "found column 't_decode_ms', allowed: t_decode_s is the name and unit"),
        ("gamma,x\n1,2\n3\n", r"row 2 \(line 3\): found 1 cells, allowed: 2, one a column"),
        (b"gamma\n\xff\n", "no UTF-8 text"),
        ('gamma\n"1\n', "found no readable CSV"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        table(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("fast", r"row 2 \(line 3\), column gamma: found 'fast', allowed: a finite number"),
        ("", "row 2 .* found an empty cell"),
        ("nan", "found 'nan'"),
        ("-2", "found -2, allowed: at least 1"),
        ("1.5", "found 1.5, allowed: a whole number"),
    ],
)
def test_bad_cells_are_one_clear_line(tmp_path: Path, cell: str, message: str) -> None:
    read = table(tmp_path, f"gamma,x\n1,y\n{cell},z\n")
    with pytest.raises(ValueError, match=message):
        read.whole_numbers("gamma", minimum=1)


def test_bounds_are_told(tmp_path: Path) -> None:
    read = table(tmp_path, "gamma\n2\n")
    with pytest.raises(ValueError, match="found 2, allowed: above 2 and at most 3"):
        read.numbers("gamma", above=2, maximum=3)
