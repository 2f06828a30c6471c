"""The floors as text: numbers by hand, and one line for every mistake."""

import pytest

from specgauge.reports.floors import main

LLAMA_2 = ["--target", "llama-2-7b", "--hardware", "a100-80gb-sxm", "--context", "1000"]


def test_llama_2_7b_on_an_a100(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA_2, "--batch", "1,64", "--gamma", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "a100-80gb-sxm: 2,039 GB/s, 312 TFLOP/s in float16, ridge at 153 FLOPs/byte; s = 1000, gamma = 8; "
        "times are floors"
    )
    assert lines[1] == (
        "target llama-2-7b: 6.738 G parameters, 13.48 GB held by a device, 524.3 kB of KV cache for a token"
    )
    weights = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096 + 65 * 4096)
    decode_s = (weights + 2 * 4096 + 524_288 * 1001) / 2.039e12
    verify_s = (weights + 9 * 2 * 4096 + 524_288 * 1009) / 2.039e12
    assert lines[3].split()[:5] == ["1", f"{decode_s * 1e3:.3f}", "ms", f"{verify_s * 1e3:.3f}", "ms"]
    assert lines[3].split()[5] == "–"
    assert lines[4].split()[0] == "64"
    # 0.9 · 80 GB less the weights, over 1001 tokens of 512 KiB
    assert lines[5] == f"largest batch without a draft: {int((72e9 - 2 * 6_738_415_616) // (524_288 * 1001))}"
    assert len(lines) == 6


def test_a_draft_adds_its_chain_and_takes_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA_2, "--draft", "tinyllama-1.1b", "--gamma", "2", "--batch", "1", "--dtype", "bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "draft tinyllama-1.1b: 1.100 G parameters" in out
    assert "–" not in out
    assert "largest batch with the draft at gamma = 2: " in out


def test_links_can_bind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "llama-3.1-70b", "--hardware", "l40", "--devices", "8", "--batch", "64"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("8 x l40: ")
    assert out.splitlines()[3].endswith(" link")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--batch", "x"], "--batch: found 'x', allowed: whole numbers of at least 1, with commas between"),
        (["--gamma", "-1"], "--gamma: found '-1', allowed: whole numbers of at least 0, with commas between"),
        (["--devices", "3"], "llama-2-7b: devices: found 3, allowed: a divisor of the 32 attention heads "),
        (["--dtype", "bf16"], "weights: found 'bf16', allowed: float64, "),
        (["--dtype", "float8"], "hardware 'a100-80gb-sxm': peak_flops_per_s for float8 is unknown, known: bfloat16, "),
        (["--hardware", "a10"], "hardware entry: expected a file that exists, or a100-80gb-sxm, "),
        (["--draft", "tinyllama"], "model shape: expected a file that exists, or gemma-2-9b, "),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA_2, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1
