"""`specgauge predict` and `explain`: every number against the formula, the choice, and the bars."""

import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex

from specgauge.cli.explain import ACCEPTED, DEFICIT, SURPLUS, draw_explanation
from specgauge.model.costs import RoundCosts
from specgauge.model.explain import explain
from specgauge.model.sensitivity import sensitivities
from specgauge.model.settings import Provenance
from tests.cli.conftest import Document, Run
from tests.sweeps import made

TIMES = ("--t-decode", "1", "--t-draft", ".1", "--t-verify", "1")
RECORDED = ("run", "pair", "sampling", "draft_sampling", "acceptance_rule")
HEADER = "gpu,gamma,t_decode_s,t_draft_total_s,t_verify_s,tokens_per_round,speedup_measured\n"
ROWS = "A,2,1.0,0.5,1.0,2.0,1.25\nA,2,2.0,0.5,2.0,2.0,\nB,1,1.0,0.25,1.0,1.5,1.0\n"


def test_one_alpha_by_gamma(document: Document) -> None:
    found = document("predict", "--alpha", ".8", *TIMES)
    assert [row["gamma"] for row in found["rows"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    row = found["rows"][0]
    inputs = ("alpha", "t_decode_s", "t_verify_s", "t_verify_provenance")
    assert [row[name] for name in inputs] == [0.8, 1, 1, "assumed flat"]
    assert row["tokens_per_round"] == pytest.approx(1.8, rel=1e-15)
    assert row["speedup"] == pytest.approx(1.8 / 1.1, rel=1e-15)
    assert row["break_even_alpha"] == pytest.approx(0.1, rel=1e-12)
    assert row["break_even_draft_total_s"] == pytest.approx(0.8, rel=1e-12)
    for level in (row, found):
        assert (level["best_gamma"], level["recommended_gamma"]) == (6, 5)
    assert found["speculation_pays"] is True
    assert found["label"] == "optimistic: overhead not measured"


def test_lists_by_gamma_overhead_catch_up_and_batch(document: Document) -> None:
    found = document(
        *("predict", "--rates", ".75,.5", "--t-decode", "1 s", "--t-draft", "250ms,500ms", "--t-verify", "1,1.5"),
        *("--t-overhead", "125000us", "--t-draft-catch-up", "0.5s", "--batch", "2"),
    )
    first, second = found["rows"]
    assert first["t_round_s"] == 0.25 + 1 + (1 - 0.25**2) * 0.5 + 0.125
    assert second["t_round_s"] == 0.75 + 1.5 + 0.75 * 0.5 + 0.125
    assert (second["batch_size"], first["t_verify_provenance"], found["label"]) == (2, "given", None)
    assert second["throughput_tokens_per_s"] == pytest.approx(2 * 2.25 / second["t_round_s"], rel=1e-15)
    assert second["time_per_token_s"] == pytest.approx(second["t_round_s"] / 2.25, rel=1e-15)


@pytest.mark.parametrize(("overhead_s", "round_s"), [(-0.25, 2.25), (-0.75, 2.0)])
def test_an_overhead_below_0_makes_no_round_shorter_than_its_verification(
    document: Document, overhead_s: float, round_s: float
) -> None:
    times = ("--t-decode", "1", "--t-draft", ".25", "--t-verify", "2", "--t-overhead", f"{1e3 * overhead_s}ms")
    (row,) = document("predict", "--alpha", ".5", "--gamma", "2", *times)["rows"]
    assert (row["best_gamma"], row["recommended_gamma"], row["t_verify_provenance"]) == (None, None, "given")
    table = "gamma,t_decode_s,t_draft_s,t_verify_s,acceptance_rate,t_overhead_s\n2,1,.25,2,.5," + f"{overhead_s}\n"
    for found in (row, *predicted(document, table)["rows"]):
        assert (found["t_overhead_s"], found["t_round_s"], found["speedup"]) == (overhead_s, round_s, 1.75 / round_s)


def test_what_no_alpha_reaches_is_null(document: Document) -> None:
    times = ("--t-decode", "1", "--t-draft", "0", "--draft-kind", "lookup", "--t-verify", "5")
    found = document("predict", "--alpha", ".8", "--gamma", "1:2", *times, "--wanted-speedup", "9")
    assert [row["break_even_alpha"] for row in found["rows"]] == [None, None]
    assert found["speculation_pays"] is False
    assert found["at_recommended"]["required_alpha"] is None


def test_a_latency_limit_leaves_what_is_under_it(document: Document) -> None:
    found = document("predict", "--alpha", ".8", *TIMES, "--max-itl", "1.25")
    assert [row["within_limits"] for row in found["rows"]] == [True, True, *[False] * 6]
    assert found["best_gamma"] == 2
    nothing = document("predict", "--alpha", ".8", *TIMES, "--max-itl", ".5")
    assert (nothing["best_gamma"], nothing["speculation_pays"], nothing["at_recommended"]) == (0, False, None)


@pytest.mark.parametrize("option", ["--t-draft", "--t-draft-total"])
def test_sensitivities_know_that_a_lookup_has_one_step(document: Document, option: str) -> None:
    lookup = ("--t-decode", "1", option, ".1", "--draft-kind", "lookup", "--t-verify", "1")
    at = document("predict", "--alpha", ".8", "--gamma", "4", *lookup)["at_recommended"]
    costs = RoundCosts(
        gammas=np.array([4]),
        t_decode_s=np.array(1.0),
        t_draft_total_s=np.array([0.1]),
        t_verify_s=np.array([1.0]),
        provenance=np.array([int(Provenance.ASSUMED)]),
    )
    expected = sensitivities(0.8, costs, draft_steps=1)
    assert at["sensitivities"]["per_t_draft_s"] == pytest.approx(expected.per_t_draft_s.item(), rel=1e-9)


def test_counts_and_one_alpha_that_misleads(document: Document) -> None:
    counts = document("predict", "--counts", "9:6,5", "--gamma", "1:3", *TIMES)
    assert [row["acceptance_provenance"] for row in counts["rows"]] == ["interpolated", "measured", "extrapolated"]
    assert document("predict", "--rates", ".5,.5", *TIMES)["one_alpha"]["misleads"] is True


@pytest.mark.parametrize(
    ("t_decode", "t_verify", "t_draft", "others", "parts"),
    [
        ("19.05", ".041", ".0016", (), ["T_verify"]),
        (".01905", "41", ".0016", (), ["T_verify"]),
        (".01905", ".041", "1.6", (), ["C"]),
        ("1", ".49", ".1", (), ["T_verify"]),
        ("1", ".5", "10", (), []),
        ("1", "20", "0", (), []),
        ("1", "20.1", "0", (), ["T_verify"]),
        ("1", "1", "20.1", (), ["C"]),
        ("1", "1", ".1", ("--t-draft-catch-up", "21", "--t-overhead", "30"), ["the", "overhead"]),
    ],
)
def test_a_time_without_its_unit_is_pointed_out(
    command: Run, t_decode: str, t_verify: str, t_draft: str, others: tuple[str, ...], parts: list[str]
) -> None:
    times = ("--t-decode", t_decode, "--t-verify", t_verify, "--t-draft", t_draft, *others)
    out = command("predict", "--alpha", ".8", *times)[1]
    assert [line.split()[0] for line in out.splitlines() if "check the units" in line] == parts


@pytest.mark.parametrize("name", ["predict", "plan", "explain"])
def test_without_options_a_line_that_works_is_shown(command: Run, name: str) -> None:
    code, _, told = command(name)
    assert code == 2
    example = told.partition(f"such as: specgauge {name} ")[2].partition(" (or ")[0]
    assert command(name, *example.split())[0] == 0


def test_acceptance_of_a_run(document: Document, command: Run) -> None:
    """Half of all drafts pass at every position of its texts, as under one alpha."""
    config = made.config(sampling=[{"name": "greedy", "temperature": 0}, {"name": "t1"}])
    made.write_run(Path("run"), config, dict.fromkeys(("greedy", "t1"), made.acceptance_frame(4, 16, 0.5)))
    found = document("predict", "--from-run", "run", "--sampling", "t1", *TIMES, "--t-draft-catch-up", ".01")
    alpha = document("predict", "--alpha", ".5", "--gamma", "1:3", *TIMES, "--t-draft-catch-up", ".01")
    at: dict[str, Any] = {}
    for row, expected in zip(found["rows"], alpha["rows"], strict=True):
        at = {name: row.pop(name) for name in (*RECORDED, "acceptance_provenance")}
        numbers = {name: value for name, value in row.items() if isinstance(value, float)}
        assert len(numbers) == 13
        assert numbers == pytest.approx({name: expected[name] for name in numbers}, rel=1e-12)
        assert row | numbers == {name: numbers.get(name, expected[name]) for name in row}
    assert list(at.values()) == ["run", "p", "t1", "same", "ratio", "measured"]
    # a cheap draft: the largest γ of the grid is best, which a slower one (.5 of a step) is not
    edge = "γ = 3 is best and the largest that run recorded: a larger one may be better still; extend grid.gamma in a"
    fast = ("--t-decode", "1", "--t-verify", "1", "--t-draft", ".01")
    (told,) = document("predict", "--from-run", "run", "--sampling", "t1", *fast)["warnings"]
    assert told.startswith(edge)
    assert document("predict", "--from-run", "run", "--sampling", "t1", "--gamma", "3", *fast)["warnings"] == []
    assert f"\nwarning: {edge}" in command("predict", "--from-run", "run", "--sampling", "t1", *fast)[1]
    assert document("predict", "--from-run", "run", "--sampling", "t1", "--gamma", "1:2", *fast)["warnings"] == []
    assert document("predict", "--alpha", ".9", "--gamma", "1:3", *fast)["warnings"] == []
    text = command("predict", "--from-run", "run", "--sampling", "t1", "--gamma", "2", *TIMES)[1]
    assert "acceptance: recorded in run, pair p, sampling t1, draft sampling same, acceptance rule ratio\n" in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--from-run", "run"], "--sampling: expected one of greedy, t1, got none"),
        (["--from-run", "run", "--sampling", "t2"], "sampling 't2' is not in this run, allowed: greedy, t1, late"),
        (["--from-run", "run", "--sampling", "late"], "run: pair p, sampling late: acceptance is not recorded yet; "),
        (
            ["--from-run", "run", "--sampling", "greedy", "--gamma", "4"],
            "gamma: expected those that run knows, 1, 2, 3",
        ),
        (["--from-run", "run", "--alpha", ".5"], "acceptance: expected --from-run or one of those typed, got "),
        (["--from-run", "ran"], "ran: no such run; did you mean run?"),
        (["--alpha", ".5", "--context", "64"], "--context: expected --from-run beside it, got none"),
    ],
)
def test_a_run_that_cannot_give_acceptance(command: Run, options: list[str], told: str) -> None:
    config = made.config(sampling=[{"name": "greedy", "temperature": 0}, {"name": "t1"}, {"name": "late"}])
    made.write_run(Path("run"), config, dict.fromkeys(("greedy", "t1"), made.acceptance_frame(4, 16, 0.5)))
    code, out, err = command("predict", *options, *TIMES)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"specgauge: {told}")


def predicted(document: Document, text: str, *options: str) -> dict[str, Any]:
    Path("cases.csv").write_text(text, encoding="utf-8")
    return document("predict", "--table", "cases.csv", *options)


def test_rows_of_a_table(document: Document) -> None:
    found = predicted(document, HEADER + ROWS)
    first, second, _ = found["rows"]
    assert (first["gpu"], first["gamma"], first["t_round_s"]) == ("A", 2, 1.5)
    assert first["speedup"] == pytest.approx(2 / 1.5)
    assert first["relative_error"] == pytest.approx(2 / 1.5 / 1.25 - 1)
    assert (first["t_overhead_s"], first["label"]) == (None, "optimistic: overhead not measured")
    assert (second["speedup_measured"], second["relative_error"]) == (None, None)
    assert (found["errors"]["rows"], found["fit"]) == (2, None)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("A,2,5e-324,.5,1,2,", "line 2, t_decode_s: expected a number of at least 1e-30 and up to 1e+12, got 5e-324"),
        ("A,2,1,.5,1,2,1e-308", "line 2, speedup_measured: expected a number of at least 1e-06 and up to 1e+06,"),
        ("A,2,1,.5,1,2,1e308", "line 2, speedup_measured: expected a number of at least 1e-06 and up to 1e+06,"),
    ],
)
def test_numbers_of_a_table_that_nothing_measures(command: Run, row: str, expected: str) -> None:
    Path("cases.csv").write_text(f"{HEADER}{row}\n", encoding="utf-8")
    code, out, err = command("predict", "--table", "cases.csv", "--fit-overhead", "gpu")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"cases.csv, {expected}" in err


def test_a_table_with_steps_rates_overhead_and_catch_up(document: Document) -> None:
    text = (
        "gamma,t_decode_s,t_draft_s,t_verify_s,acceptance_rate,t_overhead_s,t_draft_catch_up_s,batch_size\n"
        "2,1.0,0.25,1.0,0.5,0.125,1.0,1\n3,1.0,0.25,1.0,1.0,,1.0,4\n"
    )
    first, second = predicted(document, text)["rows"]
    assert first["tokens_per_round"] == pytest.approx(1.75, rel=1e-15)
    assert first["t_round_s"] == pytest.approx(0.5 + 1.0 + 0.25 + 0.125, rel=1e-12)
    assert second["t_round_s"] == 0.75 + 1.0 + 1.0
    assert (first["label"], second["t_overhead_s"]) == (None, None)


def test_a_fit_gives_every_row_of_a_group_its_overhead(document: Document) -> None:
    found = predicted(document, HEADER + ROWS + "C,1,1,1,1,1,\n", "--fit-overhead", "gpu")
    a, second, b, c = found["rows"]
    assert a["t_overhead_s"] == second["t_overhead_s"] == pytest.approx(2 / 1.25 - 1.5, rel=1e-9)
    assert a["speedup"] == pytest.approx(1.25, rel=1e-9)
    assert b["t_overhead_s"] == pytest.approx(0.25, rel=1e-9)
    assert (c["t_overhead_s"], c["label"]) == (None, "optimistic: overhead not measured")
    fit = found["fit"]
    assert (fit["column"], fit["groups"]["A"]["loo_mean_abs_error"], fit["loo_mean_abs_error"]) == ("gpu", None, None)
    assert fit["worst_abs_error"] < 1e-9


PROBS = ("--target-probs", ".2,.4,.4", "--draft-probs", ".1,.1,.8")
SVG = "{http://www.w3.org/2000/svg}"


def test_a_chain_rows_of_probabilities_and_the_match_rule(document: Document) -> None:
    chain = document("explain", *PROBS, "--gamma", "2")
    assert [leaf["probability"] for leaf in chain["tree"]] == pytest.approx([0.4, 0.24, 0.36])
    apart = document("explain", "--target-probs", "1,0;.5,.5", "--draft-probs", ".5,.5; 1,0")
    assert [position["overlap"] for position in apart["positions"]] == [0.5, 0.5]
    match = document("explain", *PROBS, "--acceptance-rule", "match")
    assert match["positions"][0]["overlap"] == pytest.approx(0.02 + 0.04 + 0.32)


def test_logits(document: Document) -> None:
    found = document("explain", "--logits", "2,1,1,0", "--temperature", ".7", "--top-k", "3", "--top-p", ".9")
    assert [stage["kept"] for stage in found["stages"]] == [4, 4, 3, 3, 3]
    assert document("explain", "--logits", "2,1", "--top-k", "1")["greedy_in_disguise"] is True


def test_bars_are_drawn_into_a_file_with_names_as_text(command: Run) -> None:
    names = "<b>A</b>,$B$,a very long token name"
    assert command("explain", *PROBS, "--gamma", "2", "--names", names, "--svg", "bars.svg")[0] == 0
    root = ElementTree.parse("bars.svg").getroot()
    assert root.tag == f"{SVG}svg"
    texts = "".join("".join(node.itertext()) for node in root.iter(f"{SVG}text"))
    for name in ("<b>A</b>", "$B$", "a very long…"):
        assert texts.count(name) == 2


@pytest.mark.parametrize("there", ["pipe", ".", "absent/bars.svg"])
def test_bars_are_drawn_into_files_alone(command: Run, there: str) -> None:
    """A FIFO without a reader would be waited for."""
    os.mkfifo("pipe")
    code, out, err = command("explain", *PROBS, "--svg", there)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"specgauge: {re.escape(there)}: (is|the folder) [^\n]*\n", err)


@pytest.mark.parametrize(
    "line",
    [
        ["predict", "--table"],
        ["predict", "--t-decode", "1ms", "--from-run"],
        ["plan", "--calibrate"],
        ["explain", *PROBS, "--svg"],
        ["recommend"],
        ["replay"],
        ["report"],
        ["compare", "a"],
        ["run", "--out"],
        ["report", "a", "--out"],
        ["report", "a", "--plot"],
        ["export", "--engine", "vllm"],
        ["check"],
    ],
    ids=" ".join,
)
def test_a_home_that_nobody_has_is_told_before_anything_is_made(command: Run, line: list[str]) -> None:
    told = "specgauge: ~nosuchuser/x: expected a path, got the home of a user who is not known here\n"
    assert command(*line, "~nosuchuser/x") == (2, "", told)
    assert not list(Path().iterdir())


def test_a_home_that_the_shell_left_is_found(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    assert command("explain", *PROBS, "--svg=~/bars.svg")[0] == 0
    assert [path.name for path in Path().iterdir()] == ["bars.svg"]


def test_bars_have_the_height_of_their_probability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: dict[str, list[float]] = {ACCEPTED: [], DEFICIT: [], SURPLUS: []}
    bar = Axes.bar

    def kept(self: Axes, x: object, height: list[float], *arguments: object, color: str, **options: object) -> object:
        drawn[to_hex(color)] += list(height)
        return bar(self, x, height, *arguments, color=color, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Axes, "bar", kept)
    draw_explanation(explain([[0.2, 0.4, 0.4]], [[0.1, 0.1, 0.8]]), tmp_path / "bars.svg")
    assert drawn[ACCEPTED] == pytest.approx([0.1, 0.1, 0.4] * 2)
    assert drawn[DEFICIT] == pytest.approx([0.1, 0.3, 0.0])
    assert drawn[SURPLUS] == pytest.approx([0.0, 0.0, 0.4])
