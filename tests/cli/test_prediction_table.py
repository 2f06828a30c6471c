"""The document of `predict --table`: alternatives of columns, fits, and what is refused."""

import json
from pathlib import Path

import pytest

from specgauge.cli.prediction_table import predict_table
from specgauge.cli.prediction_text import table_text

HEADER = "gpu,gamma,t_decode_s,t_draft_total_s,t_verify_s,tokens_per_round,speedup_measured\n"
ROWS = "A,2,1.0,0.5,1.0,2.0,1.25\nA,2,2.0,0.5,2.0,2.0,\nB,1,1.0,0.25,1.0,1.5,1.0\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cases.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_carry_inputs_and_results(tmp_path: Path) -> None:
    document = predict_table(written(tmp_path, HEADER + ROWS))
    first, second, _ = document["rows"]
    assert (first["gpu"], first["gamma"], first["t_round_s"]) == ("A", 2, 1.5)
    assert first["speedup"] == pytest.approx(2 / 1.5)
    assert first["relative_error"] == pytest.approx(2 / 1.5 / 1.25 - 1)
    assert first["t_overhead_s"] is None
    assert first["label"] == "optimistic: overhead not measured"
    assert (second["speedup_measured"], second["relative_error"]) == (None, None)
    assert document["errors"]["rows"] == 2
    assert document["fit"] is None
    json.dumps(document, allow_nan=False)


def test_costs_per_step_rates_overhead_and_catch_up(tmp_path: Path) -> None:
    text = (
        "gamma,t_decode_s,t_draft_s,t_verify_s,acceptance_rate,t_overhead_s,t_draft_catch_up_s,batch_size\n"
        "2,1.0,0.25,1.0,0.5,0.125,1.0,1\n3,1.0,0.25,1.0,1.0,,1.0,4\n"
    )
    first, second = predict_table(written(tmp_path, text))["rows"]
    assert first["tokens_per_round"] == pytest.approx(1.75, rel=1e-15)
    assert first["t_round_s"] == pytest.approx(0.5 + 1.0 + 0.25 + 0.125, rel=1e-12)
    assert second["t_round_s"] == 0.75 + 1.0 + 1.0
    assert first["label"] is None
    assert second["t_overhead_s"] is None


def test_a_fit_gives_every_row_of_a_group_its_overhead(tmp_path: Path) -> None:
    document = predict_table(written(tmp_path, HEADER + ROWS + "C,1,1,1,1,1,\n"), fit_overhead_by="gpu")
    a, second, b, c = document["rows"]
    assert a["t_overhead_s"] == second["t_overhead_s"] == pytest.approx(2 / 1.25 - 1.5, rel=1e-9)
    assert a["speedup"] == pytest.approx(1.25, rel=1e-9)
    assert b["t_overhead_s"] == pytest.approx(0.25, rel=1e-9)
    assert (c["t_overhead_s"], c["label"]) == (None, "optimistic: overhead not measured")
    assert document["fit"]["column"] == "gpu"
    assert document["fit"]["groups"]["A"]["loo_mean_abs_error"] is None
    assert document["fit"]["worst_abs_error"] < 1e-9
    assert document["fit"]["loo_mean_abs_error"] is None
    json.dumps(document, allow_nan=False)
    text = table_text(document)
    assert "overhead fitted for each gpu" in text
    assert "error of S over 2 measured rows: mean 0.00 %" in text


def test_text_of_a_table_without_measurements(tmp_path: Path) -> None:
    text = table_text(
        predict_table(written(tmp_path, "gamma,t_decode_s,t_draft_s,t_verify_s,acceptance_rate\n1,1,0.5,1,0.5\n"))
    )
    assert text.splitlines()[1].split() == ["1", "0.5", "1.5", "1500", "1"]
    assert "S is optimistic in 1 rows" in text


@pytest.mark.parametrize(
    ("text", "fit", "message"),
    [
        (
            "gamma,t_decode_s\n1,1\n",
            None,
            "header: found no column t_verify_s .*required are gamma, t_decode_s, t_verify_s",
        ),
        (HEADER.replace("t_draft_total_s", "t_draft") + ROWS, None, "found column 't_draft', allowed: t_draft_s"),
        (
            HEADER.replace("t_draft_total_s", "cost") + ROWS,
            None,
            "found neither, allowed: one of t_draft_total_s, t_draft_s",
        ),
        (
            HEADER.replace("gpu", "acceptance_rate") + ROWS.replace("A", ".5").replace("B", ".5"),
            None,
            "found tokens_per_round and acceptance_rate, allowed: one of",
        ),
        (HEADER.replace("gpu", "speedup") + ROWS, None, "found column 'speedup', allowed: other names"),
        (
            HEADER + ROWS.replace("A,2,1.0", "A,2,-1.0"),
            None,
            r"row 1 \(line 2\), column t_decode_s: found -1.0, allowed: above 0",
        ),
        (HEADER + ROWS.replace("0.25", "-0.25"), None, r"row 3 \(line 4\), column t_draft_total_s: found -0.25"),
        (HEADER + ROWS.replace("2.0,1.25", "3.5,1.25"), None, "tokens_per_round: found 3.5 at gamma 2.*draft trees"),
        (HEADER + ROWS.replace("2.0,1.25", "0.5,1.25"), None, "tokens_per_round: found 0.5, allowed: at least 1"),
        (HEADER + ROWS.replace("A,2", "A,0"), None, "column gamma: found 0, allowed: at least 1"),
        (HEADER + ROWS, "card", "--fit-overhead card: found no column card in .*allowed: gpu, gamma"),
        (HEADER.replace(",speedup_measured", ",s") + ROWS, "gpu", "found no column speedup_measured"),
        (HEADER + "A,2,1,1,1,2,\n", "gpu", "column speedup_measured: found no value"),
        (
            HEADER.replace("gpu", "t_overhead_s") + ROWS.replace("A", "1").replace("B", "1"),
            "gamma",
            "header: found t_overhead_s",
        ),
        (
            "gamma,t_decode_s,t_draft_s,t_verify_s,acceptance_rate\n1,1,0.5,1,1.5\n",
            None,
            "column acceptance_rate: found 1.5, allowed: at least 0 and at most 1",
        ),
    ],
)
def test_bad_tables_are_one_clear_line(tmp_path: Path, text: str, fit: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        predict_table(written(tmp_path, text), fit_overhead_by=fit)
    assert "\n" not in str(caught.value)
