"""`specgauge plan`: numbers by hand, the single equation, and the published MagicDec table's held-out errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specgauge.cli.plan import MeasuredGroup, compare_groups, fitted_text, read_groups
from specgauge.model.roofline.calibration import Comparison, calibrate
from specgauge.model.speedup import round_time_s, speedup, tokens_per_round_iid
from tests.cli.conftest import Document, Run
from tests.model.roofline.test_calibration import one_sequence, synthetic

TABLE = Path(__file__).parents[1] / "golden" / "magicdec.csv"
LLAMA_2 = ("plan", "--target", "llama-2-7b", "--hardware", "a100-80gb-sxm", "--context", "1000", "--alpha", ".8")


def test_llama_2_7b_on_an_a100(document: Document) -> None:
    found = document(*LLAMA_2, "--batch-size", "1,64", "--gamma", "8")
    assert (found["provenance"], found["label"].split(";")[0]) == ("predicted", "uncalibrated, data-sheet peaks")
    card = found["hardware"]
    assert (card["memory_bandwidth_bytes_per_s"], card["peak_flops_per_s"]) == (2.039e12, 312e12)
    assert found["target"]["weight_bytes_per_device"] == 2 * 6_738_415_616
    assert (found["target"]["kv_bytes_per_token"], found["draft"]) == (524_288, None)
    weights = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096 + 65 * 4096)
    decode_s = (weights + 2 * 4096 + 524_288 * 1001) / 2.039e12
    verify_s = (weights + 9 * 2 * 4096 + 524_288 * 1009) / 2.039e12
    first, second = found["rows"]
    assert (first["t_decode_s"], first["t_verify_s"]) == pytest.approx((decode_s, verify_s), rel=1e-12)
    assert (first["t_draft_total_s"], first["bounds"]["draft"]) == (0, None)
    assert first["speedup"] == pytest.approx((1 - 0.8**9) / 0.2 * decode_s / verify_s, rel=1e-12)
    # 0.9 · 80 GB less the weights, over 1001 tokens of 512 KiB
    assert first["largest_batch_without_draft"] == int((72e9 - 2 * 6_738_415_616) // (524_288 * 1001))
    assert (second["batch_size"], second["bounds"]["verify"]) == (64, "arithmetic")


def test_the_best_gamma_is_that_of_the_single_equation(document: Document) -> None:
    draft = ("--draft", "tinyllama-1.1b", "--dtype", "bfloat16")
    (row,) = document(*LLAMA_2, *draft, "--batch-size", "8", "--gamma", "1:6")["rows"]
    columns = {name: np.array([entry[name] for entry in row["by_gamma"]]) for name in row["by_gamma"][0]}
    t_round_s = round_time_s(
        t_draft_total_s=columns["t_draft_total_s"],
        t_verify_s=columns["t_verify_s"],
        t_draft_catch_up_s=row["t_draft_catch_up_s"],
        full_acceptance=0.8 ** columns["gamma"],
        batch_size=8,
    )
    omega = tokens_per_round_iid(0.8, columns["gamma"])
    gains = speedup(omega, t_decode_s=row["t_decode_s"], t_round_s=t_round_s)
    np.testing.assert_allclose([columns["speedup"], columns["t_round_s"]], [gains, t_round_s], rtol=1e-12)
    assert row["best_gamma"] == 1 + gains.argmax()
    assert row["speedup"] == pytest.approx(gains.max(), rel=1e-12)
    assert row["t_draft_catch_up_s"] > 0
    assert row["largest_batch"] < row["largest_batch_without_draft"]


def test_links_can_bind(document: Document) -> None:
    arguments = ("--target", "llama-3.1-70b", "--hardware", "l40", "--tensor-parallel", "8", "--batch-size", "64")
    found = document("plan", *arguments, "--alpha", ".8")
    assert found["rows"][0]["bounds"] == {"decode": "memory", "draft": None, "verify": "link"}


def test_peaks_that_were_probed_and_a_draft_that_does_not_pay(document: Document) -> None:
    arguments = ("--target", "llama-2-7b", "--draft", "llama-2-7b", "--hardware", "cpu-2-cores", "--dtype", "bfloat16")
    found = document("plan", *arguments, "--alpha", ".8", "--context", "8k")
    assert found["label"].startswith("uncalibrated, probed peaks;")
    assert [row["speculation_pays"] for row in found["rows"]] == [False] * 3


Compared = list[tuple[MeasuredGroup, Comparison]]


@pytest.fixture(scope="module")
def compared() -> Compared:
    return compare_groups(read_groups(TABLE, aliases={}), TABLE, by="batch_size")


def test_the_roofline_beats_the_line_on_batch_sizes_it_has_not_seen(compared: Compared) -> None:
    errors = [
        [held[part].mean_abs_error for held in (comparison.line, comparison.alone, comparison.together)]
        for _, comparison in compared
        for part in ("t_decode_s", "t_verify_s")
    ]
    expected = [[0.0837, 0.0099, 0.0083], [0.0751, 0.0134, 0.0101], [0.0603, 0.0243, 0.0235], [0.0273, 0.0073, 0.0163]]
    np.testing.assert_allclose(errors, expected, atol=5e-5)


def test_few_numbers_that_a_machine_can_have(compared: Compared) -> None:
    for _, comparison in compared:
        calibration = comparison.calibration
        assert 0.8 < calibration.efficiency.bandwidth_fraction < 1.0
        assert 0.2 < calibration.efficiency.flops_fraction < 0.6
        assert calibration.unidentified == ()
    launches = [comparison.calibration.efficiency.launch_s for _, comparison in compared]
    assert max(launches) < 1.1 * min(launches)


def test_names_of_the_table_can_be_told(command: Run) -> None:
    head, *rows = TABLE.read_text(encoding="utf-8").splitlines()
    kept = [row for row in rows if "Llama2-7B-32K" in row and "8xA100" in row]
    text = "\n".join([head, *kept, ""]).replace("Llama2-7B-32K", "mine").replace("A100", "Z100")
    Path("renamed.csv").write_text(text, encoding="utf-8")
    aliases = ("--alias", "mine=llama-2-7b", "--alias", "Z100=a100-80gb-sxm")
    code, out, err = command("plan", "--calibrate", "renamed.csv", *aliases)
    assert (code, err) == (0, "")
    assert out.startswith("mine on 8xZ100, 30 rows;")


def test_what_the_steps_do_not_tell_is_said() -> None:
    assert fitted_text(calibrate([synthetic()])) == (
        "bandwidth 80.0%, FLOPs 45.0% of peak, launch 150.0 µs a layer; "
        "16 steps, error held out by batch_size: mean 0.00%, worst 0.0%"
    )
    unsure = fitted_text(calibrate([one_sequence()]))
    assert "of peak (not identified)" in unsure
    assert unsure.endswith("4 steps, no second value to hold out")
