"""`specgauge predict` and `specgauge explain` from the command line: results on stdout, one line for each bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from specgauge.cli.main import main

MAGICDEC = Path(__file__).parent / "golden" / "magicdec.csv"
TIMES = ("--t-decode", "19.05ms", "--t-draft", "1.614ms", "--t-verify", "41.08ms")
PROBS = ("--target-probs", ".2,.4,.4", "--draft-probs", ".1,.1,.8")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command line in an empty folder; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def document(result: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = result
    assert (code, err) == (0, "")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    parsed: dict[str, Any] = json.loads(out, parse_constant=refuse)
    return parsed


def test_predict_from_one_alpha(command: Run) -> None:
    found = document(command("predict", "--alpha", ".8", "--gamma", "1:8", *TIMES, "--json"))
    assert [row["gamma"] for row in found["rows"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    row = found["rows"][4]
    assert row["tokens_per_round"] == pytest.approx((1 - 0.8**6) / 0.2, rel=1e-12)
    assert row["speedup"] == pytest.approx((1 - 0.8**6) / 0.2 * 19.05 / (5 * 1.614 + 41.08), rel=1e-12)
    assert (row["t_decode_s"], row["t_verify_s"], row["t_verify_known"]) == (0.01905, 0.04108, "assumed flat")
    assert (row["best_gamma"], row["recommended_gamma"]) == (8, 7)


def test_predict_from_counts_takes_t_verify_for_itself(command: Run) -> None:
    found = document(command("predict", "--counts", "208/260/52", "--gamma", "5", *TIMES, "--json"))
    assert found["rows"][0]["tokens_per_round"] == pytest.approx(5.0)
    assert found["rows"][0]["speedup"] == pytest.approx(1.94, abs=0.005)


def test_predict_with_lists_units_batch_and_overhead(command: Run) -> None:
    found = document(
        command(
            *("predict", "--rates", ".75,.5", "--t-decode", "1 s", "--t-draft", "250ms,500ms", "--t-verify", "1,1.5"),
            *("--t-overhead", "125000us", "--t-draft-catch-up", "0.5s", "--batch", "2", "--json"),
        )
    )
    first, second = found["rows"]
    assert first["t_round_s"] == 0.25 + 1 + (1 - 0.25**2) * 0.5 + 0.125
    assert second["t_round_s"] == 0.75 + 1.5 + 0.75 * 0.5 + 0.125
    assert second["batch_size"] == 2
    assert found["label"] is None


def test_predict_a_table(command: Run) -> None:
    found = document(command("predict", "--table", str(MAGICDEC), "--json"))
    assert len(found["rows"]) == 59
    assert found["errors"]["mean_abs_error"] == pytest.approx(0.0338, abs=2e-4)
    fitted = document(command("predict", "--table", str(MAGICDEC), "--fit-overhead", "gpu", "--json"))
    assert fitted["fit"]["loo_mean_abs_error"] <= 0.004
    assert fitted["rows"][-1]["t_overhead_s"] == fitted["fit"]["groups"]["8xA100"]["t_overhead_s"]


def test_predict_prints_tables(command: Run) -> None:
    code, out, err = command("predict", "--alpha", ".8", "--gamma", "1:8", *TIMES)
    assert (code, err) == (0, "")
    assert "best gamma 8 (S = 1.527); recommended 7 (S = 1.513), the smallest within 1 %" in out
    code, out, _ = command("predict", "--table", str(MAGICDEC), "--fit-overhead", "gpu")
    assert code == 0
    assert "error of S over 59 measured rows: mean 0.31 %" in out


def test_explain_one_position_and_a_chain(command: Run) -> None:
    found = document(command("explain", *PROBS, "--names", "A,B,C", "--json"))
    assert [t["residual"] for t in found["positions"][0]["tokens"]] == pytest.approx([0.25, 0.75, 0.0])
    chain = document(command("explain", *PROBS, "--gamma", "2", "--json"))
    assert [leaf["probability"] for leaf in chain["tree"]] == pytest.approx([0.4, 0.24, 0.36])
    apart = document(command("explain", "--target-probs", "1,0;.5,.5", "--draft-probs", ".5,.5; 1,0", "--json"))
    assert [position["overlap"] for position in apart["positions"]] == [0.5, 0.5]
    match = document(command("explain", *PROBS, "--acceptance-rule", "match", "--json"))
    assert match["positions"][0]["overlap"] == pytest.approx(0.02 + 0.04 + 0.32)


def test_explain_draws_an_svg(command: Run, tmp_path: Path) -> None:
    code, out, _ = command("explain", *PROBS, "--names", "A,<B>,C", "--svg", "bars.svg")
    assert code == 0
    assert "overlap (accepted mass) 0.6, rejected mass 0.4" in out
    assert ElementTree.parse(tmp_path / "bars.svg").getroot().tag.endswith("svg")


def test_explain_logits(command: Run) -> None:
    arguments = ("explain", "--logits", "2,1,1,0", "--temperature", ".7", "--top-k", "3", "--top-p", ".9")
    found = document(command(*arguments, "--json"))
    assert [stage["kept"] for stage in found["stages"]] == [4, 4, 3, 3, 3]
    assert "top_k 3 removes 3" in command(*arguments)[1]
    greedy = document(command("explain", "--logits", "2,1", "--top-k", "1", "--json"))
    assert greedy["greedy_in_disguise"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict",), "acceptance: found none, allowed: exactly one of --alpha"),
        (("predict", "--alpha", "1.5", *TIMES), "alpha: found 1.5, allowed: a probability in [0, 1]"),
        (("predict", "--alpha", "nan", *TIMES), "alpha: found nan, allowed: a finite number"),
        (("predict", "--rates", ".5,.6", *TIMES), "rates: found 0.5 at position 1 and 0.6 at position 2"),
        (
            ("predict", "--alpha", ".5", *TIMES, "--t-decode", "-3ms"),
            "--t-decode: found '-3ms', allowed: a time of at least 0",
        ),
        (("predict", "--alpha", ".5", "--t-decode", "3ms"), "--t-verify: found none"),
        (("predict", "--alpha", ".5", *TIMES[:-1], "1ms,2ms"), "--t-verify: found 2 values for 8 gammas"),
        (("predict", "--alpha", ".5", *TIMES, "--draft-kind", "tree"), "draft trees are not covered"),
        (("predict", "--alpha", ".5", *TIMES, "--gamma", "8:1"), "--gamma: found '8:1'"),
        (("predict", "--alpha", ".5", *TIMES, "--gamma", ""), "--gamma: found nothing"),
        (("predict", "--alpha", ".5", *TIMES, "--gamma", "1000000000"), "--gamma: found 1000000000, allowed: at most"),
        (
            ("predict", "--counts", "1" + "0" * 23 + ":1", *TIMES),
            "rounds: found 1e+23, allowed: a whole number, at most",
        ),
        (("predict", "--histogram", "9" * 20 + ",1", *TIMES), "histogram (item 1): found 1e+20"),
        (("predict", "--alpha", ".5", *TIMES, "--batch", "9" * 23), "batch_size: found 1e+23"),
        (("predict", "--alpha", ".5", *TIMES, "--wanted-speedup", "0"), "wanted_speedup: found 0, allowed: a number"),
        (("predict", "--alpha", ".5", *TIMES, "--t-decode", "1e308"), "--t-decode: found 1e+308, allowed: seconds, at"),
        (
            ("predict", "--alpha", ".5", *TIMES, "--t-verify", "5e-324"),
            "--t-verify (item 1): found 4.94066e-324, allowed: seconds, at least 1e-30",
        ),
        (("predict", "--alpha", ".5", *TIMES, "--t-draft", "1e308"), "t_draft_s: found 1e+308"),
        (("predict", "--alpha", ".5", *TIMES, "--batch", "0"), "batch_size: found 0"),
        (("predict", "--alpha", ".5", *TIMES, "--fit-overhead", "gpu"), "--fit-overhead: found without --table"),
        (("predict", "--alpha", ".5", "--table", "x.csv"), "--alpha: found beside --table, which does not use it"),
        (("predict", "--table", "absent.csv"), "absent.csv: No such file"),
        (("explain", "--logits", "1e308,-1e308", "--temperature", ".5"), "which overflows float64 logits; use 0"),
        (("explain",), "explain: found too little"),
        (("explain", *PROBS, "--top-k", "1"), "--top-k: found beside --target-probs, which does not use it"),
        (("explain", "--logits", "1,2", "--svg", "x"), "--svg: found beside --logits, which does not use it"),
        (("explain", "--logits", "1,2", "--temperature", "-1"), "temperature: found -1"),
        (
            ("explain", "--target-probs", ".2,.4", "--draft-probs", ".5,.5"),
            "sum of target_probs: found 0.6, allowed: 1",
        ),
        (("explain", "--target-probs", "1,0", "--draft-probs", "1"), "draft_probs: found 1 probabilities, allowed: 2"),
        (("explain", *PROBS, "--gamma", "0"), "--gamma: found 0, allowed: 1 to 64, beside a single position"),
        (("explain", *PROBS, "--gamma", "1000000000"), "--gamma: found 1000000000, allowed: 1 to 64"),
        (
            ("explain", "--target-probs", "1" + ";1" * 64, "--draft-probs", "1" + ";1" * 64),
            "draft_probs: found 65 positions, allowed: at most 64",
        ),
        (
            ("explain", *PROBS, "--acceptance-rule", "typical"),
            "--acceptance-rule: found 'typical', allowed: ratio, match",
        ),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(
    command: Run, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
