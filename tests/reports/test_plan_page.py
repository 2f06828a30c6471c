"""The page of a plan: every point is on it, what it says is escaped, and the break-even line is drawn."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from specgauge.model.acceptance.profiles import profile_from_alpha
from specgauge.reports.plan_page import write_plan_page
from specgauge.sweeps.foretell.document import Plan, plan_document
from specgauge.sweeps.foretell.machine import planned_pair
from tests.reports.pages import Page


def document(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "pair": planned_pair("llama-2-7b", "tinyllama-1.1b", "a100-80gb-sxm", tensor_parallel=8, draft_window=512),
        "acceptance": profile_from_alpha(0.6).at([1, 2, 3]),
        "given": {"source": "alpha", "alpha": 0.6},
        "batch_sizes": [1, 16, 64],
        "contexts": [1024, 8192],
    }
    return plan_document(Plan(**{**given, **changes}))


def page(folder: Path, **changes: Any) -> str:
    text = write_plan_page(document(**changes), folder / "plan.html").read_text(encoding="utf-8")
    Page(text)  # balanced, ids once, nothing loaded
    return text


def test_every_point_is_on_the_page(tmp_path: Path) -> None:
    text, found = page(tmp_path), document()
    for point in found["points"]:
        assert f"{point['speedup']:.2f}" in text
    assert "drafts: fitted to 47 times of llama-2-7b, llama-3.1-8b, tinyllama-1.1b" in text
    crowded = page(tmp_path, batch_sizes=[100_000])
    assert "no room" in crowded
    assert crowded.count(">does not fit<") == 2
    assert "llama-2-7b with tinyllama-1.1b on 8 × a100-80gb-sxm" in text
    assert found["label"] in text
    assert "Nothing on this page was measured" in text


def test_the_table_can_be_copied(tmp_path: Path) -> None:
    copied = Page(page(tmp_path)).copies
    assert list(copied) == ["copy-every-point-csv", "copy-every-point-markdown", "copy-every-point-latex"]
    head, first, *rest = csv.reader(io.StringIO(copied["copy-every-point-csv"].lstrip("\n")))
    row, point = dict(zip(head, first, strict=True)), document()["points"][0]
    (at,) = [one for one in point["by_gamma"] if one["gamma"] == point["recommended_gamma"]]
    assert len(rest) == 5
    assert (row["of"], row["batch"], row["γ"]) == ("context 1024", "1", str(at["gamma"]))
    expected = {
        "T_decode, ms": point["t_decode_s"] * 1e3,
        **{name: at[key] for name, key in (("S", "speedup"), ("S, low", "low"), ("S, high", "high"))},
        **{name: at[key] * 1e3 for name, key in (("C(γ), ms", "t_draft_total_s"), ("T_round, ms", "t_round_s"))},
    }
    assert {name: float(row[name]) for name in expected} == pytest.approx(expected, rel=0.01)


def test_break_even_is_drawn_where_it_is_crossed(tmp_path: Path) -> None:
    crossed = page(tmp_path)
    assert "contour" in crossed
    assert "contour" not in page(tmp_path, contexts=[1024], batch_sizes=[1])


def test_a_limit_that_nothing_keeps(tmp_path: Path) -> None:
    found = page(tmp_path, max_itl_s=1e-6)
    assert "over limit" in found
    assert found.count(">over the limit<") == 6


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    assert page(tmp_path) == page(tmp_path)


def test_names_are_escaped(tmp_path: Path) -> None:
    found = document()
    found["target"]["name"] = "<script>alert(1)</script>"
    text = write_plan_page(found, tmp_path / "plan.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text


def test_a_page_is_written_into_a_folder_that_exists(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r": is a directory, a file name is expected \(for example .*plan\.html\)$"):
        write_plan_page(document(), tmp_path)


def test_a_page_is_not_written_over_what_a_run_measured(tmp_path: Path) -> None:
    measured = tmp_path / "cells.jsonl"
    for path in (measured, tmp_path / "config.yaml"):
        path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"cells\.jsonl: holds what a run measured, another file name is expected"):
        write_plan_page(document(), measured)
    assert measured.read_text(encoding="utf-8") == "{}\n"


def test_only_a_page_of_this_program_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "plan.html"
    out.write_text("<!DOCTYPE html>\n<title>mine</title>\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"plan\.html: expected a new file, or a page that specgauge wrote, got another"
    ):
        write_plan_page(document(), out)
    assert "mine" in out.read_text(encoding="utf-8")
    out.unlink()
    first = write_plan_page(document(), out).read_text(encoding="utf-8")
    assert write_plan_page(document(), out).read_text(encoding="utf-8") == first


def test_a_page_has_room_for_so_many_points(tmp_path: Path) -> None:
    found = document()
    found["points"] *= 167
    with pytest.raises(
        ValueError, match=r"plan\.html: expected at most 1000 points on a page, got 1002; give fewer, or no"
    ):
        write_plan_page(found, tmp_path / "plan.html")
