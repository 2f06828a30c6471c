"""What the buttons over a table copy."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.reports.copying import copies, csv_text, latex_text, markdown_text
from specgauge.reports.html import write_report
from specgauge.reports.tables import Row, RowGroup, Table
from tests.reports.pages import Page
from tests.reports.synthetic import Shape, build_run

TABLE = Table(
    columns=["γ", "S", "interval", "time, ms", "note|s"],
    groups=[
        RowGroup(heading="batch 1", rows=[Row(cells=["2", "1.42", "1.38–1.46", "12.3", "a_b, 5\u202f%"])]),
        RowGroup(heading="batch 4", rows=[Row(cells=["3", "0.95 (0.90–0.99)", "–", "–", "−1"])]),
    ],
)


def test_the_whole_table_is_copied_with_its_units() -> None:
    found = copies(TABLE)
    assert found["CSV"] == (
        'of,γ,S,"S, low","S, high","S, low","S, high","time, ms",note|s\n'
        'batch 1,2,1.42,,,1.38,1.46,12.3,"a_b, 5 %"\n'
        "batch 4,3,0.95,0.90,0.99,,,,-1\n"
    )
    assert found["Markdown"] == (
        "| of | γ | S | S, interval | time, ms | note\\|s |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| batch 1 | 2 | 1.42 | 1.38–1.46 | 12.3 | a\\_b, 5\u202f% |\n"
        "| batch 4 | 3 | 0.95 (0.90–0.99) | – | – | −1 |\n"
    )
    assert found["LaTeX"] == (
        "\\begin{tabular}{llllll}\n\\toprule\n"
        "of & $\\gamma$ & S & S, interval & time, ms & note\\textbar{}s \\\\\n\\midrule\n"
        "batch 1 & 2 & 1.42 & 1.38--1.46 & 12.3 & a\\_b, 5\\,\\% \\\\\n"
        "batch 4 & 3 & 0.95 (0.90--0.99) & -- & -- & $-$1 \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["S", "1.42 (1.38–1.46)", "–"], [["S", "S, low", "S, high"], ["1.42", "1.38", "1.46"], ["", "", ""]]),
        (["S", "1.42 (1.38–1.46)", "2"], [["S", "S, low", "S, high"], ["1.42", "1.38", "1.46"], ["2", "", ""]]),
        (["S", "1.42 (0.80–>99)"], [["S", "S, low", "S, high"], ["1.42", "0.80", ""]]),
        (["S, interval", "1.38–1.46", "–"], [["S, low", "S, high"], ["1.38", "1.46"], ["", ""]]),
        (["interval", "−7.2 to +13.4\u202f%", "–"], [["interval"], ["-7.2 to +13.4 %"], [""]]),
        (["where", "64–256", "words"], [["where"], ["64–256"], ["words"]]),
    ],
)
def test_intervals_are_columns_of_their_own_in_csv(column: list[str], expected: list[list[str]]) -> None:
    assert list(csv.reader(io.StringIO(csv_text([[text] for text in column])))) == expected


def test_a_table_without_groups_has_no_column_of_them() -> None:
    table = Table(columns=["a"], groups=[RowGroup(heading="", rows=[Row(cells=["1"])])])
    assert copies(table)["CSV"] == "a\n1\n"


WORDS = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="–"), min_size=1, max_size=8)


@given(st.lists(st.lists(WORDS, min_size=2, max_size=2), min_size=2, max_size=4))
def test_no_cell_is_lost_or_obeyed(cells: list[list[str]]) -> None:
    read = list(csv.reader(io.StringIO(csv_text(cells))))
    assert [[text.replace("−", "-") for text in row] for row in cells] == read
    assert [line.replace("\\|", "").count("|") for line in markdown_text(cells).splitlines()] == [3] * (len(cells) + 1)
    assert latex_text(cells).count(r" \\") == len(cells)


def test_every_table_of_a_page_can_be_copied(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Shape(contexts=(64,), gammas=(1, 2), overhead_s=0.001))
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert page.tags.count("table") * 3 == len(page.copies) == page.tags.count("button")
    head, first, *_ = csv.reader(io.StringIO(page.copies["copy-answers-csv"].lstrip("\n")))
    row = dict(zip(head, first, strict=True))
    assert row["of"] == "Sampling greedy"
    assert [row[name] for name in ("batch", "context", "γ", "speed-up S", "speed-up S, low")] == [
        "1", "64", "2", "1.63", "1.58",
    ]  # fmt: skip
    assert (row["Ω, mean acceptance length"], row["plain, tokens/s"], row["round, ms"]) == ("2.49", "99", "15.39")
