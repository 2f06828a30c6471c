from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specgauge.configs.canonical import strict_loads
from specgauge.configs.schema import Config
from specgauge.sweeps.analysis.predictions import predict
from specgauge.sweeps.answer_table import tokens_per_second
from specgauge.sweeps.compare import Comparison, Ratio, compare, comparison_json, comparison_text, differences, verdict
from specgauge.sweeps.store.journal import Journal
from specgauge.sweeps.store.rows import json_line
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PromptRow
from tests.sweeps import made
from tests.sweeps.decoded import Batch, key, write_blocks
from tests.sweeps.made import exact, known
from tests.sweeps.store.test_tables import CELL

HALF = made.acceptance_frame(8, 16, 0.5)
ROUND_2_S = 2 * made.T_DRAFT_S + 0.25 * made.CATCH_UP_S + made.T_VERIFY_S
"""T_round at the recommended γ = 2, where half of all drafts pass and A_2 is a quarter."""
S_2 = 1.75 * made.T_DECODE_S / ROUND_2_S
ALL_ARMS = ("decode", "draft", "draft_catch_up", "verify:1", "verify:2", "verify:3")
NOISE = {0: 0.8, 1: 1.0, 2: 1.25}
"""Seconds of a decode step by block, around its median of 1."""
REACH = 2.92 * math.log(1.25) / math.sqrt(3)
"""Half the 90 % interval of the logarithm of its median: Student's t of three blocks."""
ALL_FIGURES = {"plain", "speculative", "speed-up"}


def write(
    path: Path,
    config: Config | None = None,
    *,
    frame: pd.DataFrame | None = HALF,
    decode_s: Mapping[int, float] | None = None,
    **rest: Any,
) -> Run:
    """A run in which half of all drafts pass; `decode_s` gives the decode step by block."""
    config = config or made.config()
    acceptance = {} if frame is None else {sampling.name: frame for sampling in config.sampling}
    run = made.write_run(path, config, acceptance, **rest)
    with made.begin(path, config) as opened:
        for block, seconds in (decode_s or {}).items():
            opened.journal.append(made.line("decode", [[seconds]] * 4, block))
    return run


def write_prompts(path: Path, *rows: tuple[str, str]) -> None:
    """The prompts.jsonl of a run: (pair, text)."""
    lines = [json_line(PromptRow(pair=pair, prompt=0, category=None, text=text, tokens=())) for pair, text in rows]
    (path / "prompts.jsonl").write_bytes(b"".join(lines))


def ratios(comparison: Comparison) -> dict[str, Ratio]:
    (cell,) = comparison.cells
    return {ratio.figure: ratio for ratio in cell.ratios}


def figures(comparison: Comparison) -> dict[str, tuple[Any, str]]:
    return {name: (exact(ratio.ratio), ratio.verdict) for name, ratio in ratios(comparison).items()}


def test_the_same_times_are_the_same(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    same = {"ratio": 1.0, "low": exact(1.0), "high": exact(1.0), "verdict": "same"}
    rate = exact(1.75 / ROUND_2_S)
    ratios = [
        {"figure": "plain", "first": 1.0, "second": 1.0, "gamma_first": None, "gamma_second": None} | same,
        {"figure": "speculative", "first": rate, "second": rate, "gamma_first": 2, "gamma_second": 2} | same,
        {"figure": "speed-up", "first": exact(S_2), "second": exact(S_2), "gamma_first": 2, "gamma_second": 2} | same,
    ]
    assert strict_loads(comparison_json(compare(first, second))) == {
        "first": str(first.path), "second": str(second.path), "tolerance": 0.01, "confidence": 0.9,
        "differences": [], "left_out": [], "cells": [CELL | {"ratios": ratios}],
    }  # fmt: skip


def test_ratios_are_those_of_the_parts(tmp_path: Path) -> None:
    base = write(tmp_path / "a")
    twice = write(tmp_path / "b", scale=dict.fromkeys(ALL_ARMS, 0.5))
    slow_step = write(tmp_path / "c", scale={"decode": 1.25})
    for first, second, plain, speculative, speedup in (
        (base, twice, (2.0, "faster"), (2.0, "faster"), (1.0, "same")),
        (base, slow_step, (0.8, "slower"), (1.0, "same"), (1.25, "faster")),
        (slow_step, base, (1.25, "faster"), (1.0, "same"), (0.8, "slower")),
    ):
        expected = {"plain": plain, "speculative": speculative, "speed-up": speedup}
        assert figures(compare(first, second)) == expected


def test_tokens_a_second_count_the_whole_batch(tmp_path: Path) -> None:
    config = made.config(grid={"batch_size": 4, "context": 64, "gamma": 2})
    found = ratios(compare(write(tmp_path / "a", config), write(tmp_path / "b", config)))
    full = 1 - (1 - 0.25) ** 4
    round_s = 2 * made.T_DRAFT_S + full * made.CATCH_UP_S + made.T_VERIFY_S
    assert (found["plain"].first, found["speculative"].first) == (4.0, exact(4 * 1.75 / round_s))


def test_tokens_a_second_are_those_of_the_answers(tmp_path: Path) -> None:
    """Four blocks of seven at half the pace: the mean one is 2^(-4/7), the median sample is of a slow block."""
    run = write(tmp_path / "a")
    journal = Journal(run.path / "cells.jsonl", config=run.journal()[0].config)
    for block in (3, 4, 5, 6):
        for arm in ALL_ARMS:
            journal.append(made.line(arm, [[2 * mark for mark in made.marks(arm, 3)]] * 4, block=block))
    journal.close()
    (entry,) = predict(run).recommendations
    found = ratios(compare(run, write(tmp_path / "b")))
    plain, speculative = tokens_per_second(entry)
    assert (found["plain"].first, found["speculative"].first) == (exact(known(plain)), exact(known(speculative)))
    assert found["plain"].first == exact(2 ** (-4 / 7))


def test_each_run_speculates_at_its_own_gamma(tmp_path: Path) -> None:
    """Verifying two drafts takes twice as long in the second, which recommends three."""
    found = ratios(compare(write(tmp_path / "a"), write(tmp_path / "b", scale={"verify:2": 2.0})))
    speculative = found["speculative"]
    assert (speculative.gamma_first, speculative.gamma_second) == (2, 3)
    round_3_s = 3 * made.T_DRAFT_S + 0.125 * made.CATCH_UP_S + made.T_VERIFY_S
    assert speculative.ratio == exact((1.875 / round_3_s) / (1.75 / ROUND_2_S))
    assert found["plain"].verdict == "same"
    assert found["speed-up"].ratio == speculative.ratio


@pytest.mark.parametrize("noise", [None, NOISE], ids=["one run", "both runs"])
def test_an_interval_around_1_leaves_it_undecided(tmp_path: Path, noise: dict[int, float] | None) -> None:
    """Blocks of two runs are drawn by themselves: drawn together, the noise of equal ones would cancel."""
    plain = ratios(compare(write(tmp_path / "a", decode_s=noise), write(tmp_path / "b", decode_s=NOISE)))["plain"]
    assert (plain.ratio, plain.verdict) == (1.0, "undecided")
    ends = [math.log(known(plain.low)), math.log(known(plain.high))]
    if noise is None:
        assert ends == pytest.approx([-REACH, REACH], rel=0.15)
    assert ends[0] < -0.9 * REACH
    assert ends[1] > 0.9 * REACH


@pytest.mark.parametrize("seed", [0, 5])
def test_prompts_are_drawn_together(tmp_path: Path, seed: int) -> None:
    """What differs between prompts is no uncertainty about the runs, which have the same."""
    frame = pd.concat([made.acceptance_frame(8, 16, 0.9), made.acceptance_frame(8, 16, 0.1)], ignore_index=True)
    frame.loc[len(frame) // 2 :, "prompt"] += 8
    second = write(tmp_path / "b", made.config(seed=seed), frame=frame)
    found = ratios(compare(write(tmp_path / "a", frame=frame), second))
    for name in ("speculative", "speed-up"):
        assert [found[name].low, found[name].high] == pytest.approx([1.0, 1.0])
        assert found[name].verdict == "same"


def test_a_copy_of_a_run_is_the_run(tmp_path: Path) -> None:
    """With S measured beside S predicted, whose weights follow from replicates; the estimates are those answered."""
    first = write(tmp_path / "a", decode_s=NOISE)
    write_blocks(first.path, {key(): [Batch(prompts=(at,), overhead_s=s) for at, s in enumerate((0.01, 0.2, 0.1))]})
    shutil.copytree(first.path, tmp_path / "copy")
    found = ratios(compare(first, Run.open(tmp_path / "copy")))
    assert {name: one.ratio for name, one in found.items()} == dict.fromkeys(ALL_FIGURES, 1.0)
    for one in found.values():
        assert one.first == one.second
        assert known(one.low) < 1.0 < known(one.high)
    (answer,) = predict(first).recommendations
    assert found["speed-up"].first == pytest.approx(answer["speedup"]["value"], rel=1e-14)
    assert answer["speedup"]["value"] != pytest.approx(answer["speedup_predicted"]["value"], rel=1e-3)


def test_one_block_says_nothing_about_others(tmp_path: Path) -> None:
    comparison = compare(write(tmp_path / "a", blocks=1), write(tmp_path / "b", blocks=1))
    for ratio in ratios(comparison).values():
        assert (ratio.ratio, ratio.low, ratio.high, ratio.verdict) == (1.0, None, None, "undecided")
    assert '"low": null' in comparison_json(comparison)
    assert " 1.000  " in comparison_text(comparison)


@pytest.mark.parametrize(
    ("low", "high", "tolerance", "expected"),
    [
        (0.99, 1.01, 0.01, "same"),
        (1.001, 1.009, 0.01, "same"),
        (1.001, 1.009, 0.005, "faster"),
        (0.991, 0.999, 0.005, "slower"),
        (1.0, 1.2, 0.01, "undecided"),
        (0.8, 1.0, 0.01, "undecided"),
        (None, 1.2, 0.01, "undecided"),
        (1.1, None, 0.01, "undecided"),
    ],
)
def test_verdicts(low: float | None, high: float | None, tolerance: float, expected: str) -> None:
    assert verdict(low, high, tolerance=tolerance) == expected


def test_the_tolerance_says_what_is_the_same(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b", scale={"decode": 1 / 1.0078125})
    assert ratios(compare(first, second))["plain"].verdict == "same"
    assert ratios(compare(first, second, tolerance=0.005))["plain"].verdict == "faster"
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"^tolerance: expected above 0 and below 1"):
            compare(first, second, tolerance=wrong)
    with pytest.raises(ValueError, match=r"expected two runs, .*, got the same run twice"):
        compare(second, Run.open(first.path / ".." / "b"))


def pair(name: str = "p", **changes: Any) -> dict[str, Any]:
    return {"name": name, "target": "embedded", "draft": "embedded", **changes}


GREEDY = "p, eager, greedy, same, ratio, batch 1"
GRID: dict[str, Any] = {"batch_size": 1, "context": 64, "gamma": "1:3"}


SHARE_NOTHING: list[tuple[dict[str, Any] | None, dict[str, Any] | None]] = [
    ({}, {"pairs": [pair("q", target="o/m")]}),
    ({}, {"pairs": [pair("q"), pair("r", draft="ngram")]}),
    ({"sampling": [{"name": "a"}]}, {"sampling": [{"name": "b"}]}),
    ({}, {"grid": {**GRID, "context": [65, 66]}}),
    (
        {"pairs": [pair(target={"model": "o/m", "revision": "v1"})]},
        {"pairs": [pair(target={"model": "o/m", "revision": "v2"})]},
    ),
    ({}, None),
    (None, None),
]
"""Changes to the configuration of both; None: a run that has timed nothing."""


def test_runs_that_share_nothing_are_refused_with_the_reasons(
    tmp_path: Path, snapshot: Callable[[str, str], None]
) -> None:
    lines = []
    for number, both in enumerate(SHARE_NOTHING):
        runs = [
            write(tmp_path / f"{number}-{name}", made.config(**changes or {}), only=set() if changes is None else None)
            for name, changes in zip("ab", both, strict=True)
        ]
        with pytest.raises(ValueError, match="nothing to compare") as caught:
            compare(*runs)
        lines.append(str(caught.value).replace(f"{tmp_path}/", ""))
    snapshot("compare_refusals", "\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (pair("p", draft={"layers": 2}), ["pair p, draft: embedded, the target's first 2 layers"]),
        (pair("p", draft="o/d"), ["pair p, draft model: embedded, o/d"]),
        (pair("q", draft="o/d"), ["pair p: called q in the second", "pair p, draft model: embedded, o/d"]),
        (pair("q"), ["pair p: called q in the second"]),
    ],
)
def test_two_drafts_of_one_target_are_compared(tmp_path: Path, other: dict[str, Any], told: list[str]) -> None:
    """The draft of the second takes half the time and passes three times in four."""
    first = write(tmp_path / "a")
    config, name = made.config(pairs=[other]), str(other["name"])
    path = tmp_path / "b"
    made.write_run(path, config, {}, scale={"draft": 0.5, "draft_catch_up": 0.5})
    made.acceptance_frame(8, 16, 0.75).to_parquet(path / "acceptance" / f"{name}--greedy.parquet")
    write_prompts(first.path, ("p", "one"))
    write_prompts(path, (name, "one"))
    comparison = compare(first, Run.open(path))
    assert (list(comparison.differences), comparison.left_out) == (told, ())
    (cell,) = comparison.cells
    assert cell.pair == "p"
    found = ratios(comparison)
    assert (found["plain"].ratio, found["speculative"].gamma_second) == (1.0, 3)
    assert found["speculative"].first == pytest.approx(1.75 / ROUND_2_S, rel=1e-12)
    omega_3 = 1 + 0.75 + 0.75**2 + 0.75**3
    round_3_s = 0.5 * (3 * made.T_DRAFT_S + 0.75**3 * made.CATCH_UP_S) + made.T_VERIFY_S
    assert found["speculative"].second == pytest.approx(omega_3 / round_3_s, rel=1e-12)


def test_the_rest_is_compared_and_what_is_left_out_is_told(tmp_path: Path) -> None:
    greedy, warm = {"name": "greedy", "temperature": 0}, {"name": "warm", "temperature": 0.5}
    more = made.config(grid={**GRID, "context": [64, 65]}, sampling=[greedy, warm], pairs=[pair()])
    other = made.config(grid=GRID, sampling=[greedy, {**warm, "top_k": 5}], pairs=[pair(), pair("q", draft="ngram")])
    comparison = compare(write(tmp_path / "a", more), write(tmp_path / "b", other))
    assert set(ratios(comparison)) == ALL_FIGURES
    assert comparison.left_out == (
        "pair q is only in the second",
        "sampling warm means another chain in the second",
        f"1 cell timed only in the first, such as {GREEDY}, context 65",
    )


def test_where_the_draft_is_not_known_plain_decoding_is_compared(tmp_path: Path) -> None:
    first = write(tmp_path / "a", scale={"decode": 2.0})
    comparison = compare(first, write(tmp_path / "b", frame=None))
    assert figures(comparison) == {"plain": (2.0, "faster")}
    where = f"speculative decoding of 1 cell, not known in the second, such as {GREEDY}, context 64: "
    assert comparison.left_out == (
        f"{where}acceptance is not recorded yet; run the same command again, it goes on where it stopped",
    )
    broken = {(1, 64, f"verify:{gamma}"): ("killed", "its process") for gamma in (1, 2, 3)}
    assert compare(first, write(tmp_path / "c", broken=broken)).left_out == (f"{where}killed: its process",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompt_tokens": 64}, "workload.prompt_tokens was None, is (64,)"),
        ({"max_new_tokens": 32}, "workload.max_new_tokens was 64, is 32"),
        ({"chat_template": "never"}, "workload.chat_template was auto, is never"),
        (None, "the prompts differ"),
    ],
)
def test_other_texts_leave_plain_decoding(tmp_path: Path, changes: dict[str, Any] | None, why: str) -> None:
    first = write(tmp_path / "a")
    second = write(tmp_path / "b", made.config(workload=changes or {"prompts": "embedded"}), scale={"decode": 0.5})
    if changes is None:
        write_prompts(first.path, ("p", "one"), ("p", "two"))
        write_prompts(second.path, ("p", "two"), ("p", "three"))
    comparison = compare(first, second)
    assert figures(comparison) == {"plain": (2.0, "faster")}
    assert comparison.left_out == (f"pair p: {why}; only plain decoding is compared",)


def test_a_run_without_prompts_is_named(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    write_prompts(second.path, ("p", "one"))
    for one, other in ((first, second), (second, first)):
        (found,) = compare(one, other).left_out
        assert found == f"pair p: {first.path} keeps no prompts; only plain decoding is compared"


def test_speeds_with_and_without_overhead_are_not_compared(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    write_blocks(second.path, {key(): [Batch(overhead_s=0.5)]}, (2,))
    comparison = compare(first, second)
    assert set(ratios(comparison)) == {"plain"}
    (found,) = comparison.left_out
    assert found.endswith(": overhead was measured in the second only; only plain decoding is compared")
    write_blocks(first.path, {key(): [Batch(overhead_s=0.5)]}, (2,))
    assert set(ratios(compare(first, second))) == ALL_FIGURES


def test_the_prompts_of_other_pairs_do_not_matter_nor_their_order(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    write_prompts(first.path, ("p", "one"), ("p", "two\u2028three"))
    write_prompts(second.path, ("q", "four"), ("p", "two\u2028three"), ("p", "one"))
    assert set(ratios(compare(first, second))) == ALL_FIGURES


def test_what_differs_is_told(tmp_path: Path, snapshot: Callable[[str, str], None]) -> None:
    model = {"model": "o/m", "dtype": "float32"}
    greedy, warm = {"name": "greedy", "temperature": 0}, {"name": "warm"}
    first = write(tmp_path / "a", made.config(pairs=[pair(target=model)]), scale={"decode": 2.0})
    other = pair(target={**model, "dtype": "bfloat16"}, threads=3)
    second = write(tmp_path / "b", made.config(pairs=[other], sampling=[greedy, warm]))
    packages = made.ENVIRONMENT["packages"] | {"torch": "2.14.0"}
    machine = {"device": "NVIDIA H200", "cuda": "13.0", "packages": packages}
    comparison = compare(first, replace(second, environment=made.ENVIRONMENT | machine))
    assert comparison.differences == (
        "device: cpu, NVIDIA H200",
        "cuda: None, 13.0",
        "packages.torch: 2.13.0, 2.14.0",
        "pair p, threads: None, 3",
        "pair p, target dtype: float32, bfloat16",
    )
    snapshot("compare", comparison_text(replace(comparison, first="runs/a", second="runs/b")) + "\n")


def test_machines_are_those_that_measured_the_pair(tmp_path: Path) -> None:
    """Of a run on two kinds of device the one that is named by the pair, against the only one of another run."""
    first, second = (write(tmp_path / name) for name in ("a", "b"))
    own = first.config.pairs[0].model_copy(update={"accelerator_type": "H100"})
    on_both = replace(
        first,
        config=first.config.model_copy(update={"pairs": (own,)}),
        environment={"devices": {"H100": made.ENVIRONMENT | {"device": "NVIDIA H100"}, "L4": {"device": "NVIDIA L4"}}},
    )
    assert list(differences(on_both, second, {"p": "p"})) == ["H100, device: NVIDIA H100, cpu"]
