"""`specgauge plan`: numbers by hand, MagicDec's tables foretold, what is read and written, and the text."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specgauge.cli.calibrate import calibrated_entry, fitted_text, read_groups
from specgauge.cli.plan import WIDTH, plan_text
from specgauge.configs.hardware import load_hardware
from specgauge.model.roofline.calibration import calibrate
from specgauge.model.speedup import round_time_s, speedup, tokens_per_round_iid
from specgauge.sweeps.foretell.document import SCHEMA, SCHEMA_VERSION
from tests.cli.conftest import Document, Run
from tests.model.roofline.test_calibration import one_sequence, synthetic
from tests.reports.synthetic import Shape, build_run

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "golden" / "magicdec.csv"
LLAMA_2 = ("plan", "--target", "llama-2-7b", "--hardware", "a100-80gb-sxm", "--context", "1000")
PLAIN = (*LLAMA_2, "--uncalibrated", "--alpha", ".8")
LENGTHS = """\
deepseek-v3:
  thinking_on: {1: 1.93, 2: 2.73, 3: 3.31}
  thinking_off: {1: 1.86, 2: 2.55}
"""


def test_llama_2_7b_on_an_a100(document: Document) -> None:
    found = document(*PLAIN, "--batch-size", "1,64", "--gamma", "8")
    assert (found["schema"], found["schema_version"]) == (SCHEMA, SCHEMA_VERSION)
    assert (found["provenance"], found["label"].split(":")[0]) == ("predicted", "uncalibrated, data-sheet peaks")
    card = found["hardware"]
    assert (card["memory_bandwidth_bytes_per_s"], card["peak_flops_per_s"]) == (2.039e12, 312e12)
    assert found["target"]["weight_bytes_per_device"] == 2 * 6_738_415_616
    assert found["target"]["kv_bytes_per_token"] == 524_288
    assert (found["draft"]["kind"], found["draft"]["name"], found["calibration"]) == ("ngram", None, None)
    weights = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096 + 65 * 4096)
    decode_s = (weights + 2 * 4096 + 524_288 * 1001) / 2.039e12
    verify_s = (weights + 9 * 2 * 4096 + 524_288 * 1009) / 2.039e12
    first, second = found["points"]
    (eight,) = first["by_gamma"]
    assert (first["t_decode_s"], eight["t_verify_s"]) == pytest.approx((decode_s, verify_s), rel=1e-12)
    assert (eight["t_draft_total_s"], first["parts"]["draft"], first["t_draft_catch_up_s"]) == (0, None, None)
    assert first["speedup"] == pytest.approx((1 - 0.8**9) / 0.2 * decode_s / verify_s, rel=1e-12)
    assert (first["low"], first["high"], first["calibrated"], first["decision"]["verdict"]) == (
        *(None, None, None),
        "undecided",
    )
    assert first["decision"]["reason"] == f"uncalibrated: S = {first['speedup']:.2f} has no interval"
    # 0.9 · 80 GB less the weights, over 1001 tokens of 512 KiB
    (context,) = found["contexts"]
    assert context["largest_batch_without_draft"] == int((72e9 - 2 * 6_738_415_616) // (524_288 * 1001))
    assert (second["batch_size"], second["parts"]["verify"]["bound"]) == (64, "flops")


def test_the_best_gamma_is_that_of_the_single_equation(document: Document) -> None:
    draft = ("--draft", "tinyllama-1.1b", "--dtype", "bfloat16")
    found = document(*PLAIN, *draft, "--batch-size", "8", "--gamma", "1:6")
    (row,) = found["points"]
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
    np.testing.assert_allclose([columns["speedup"].astype(float), columns["t_round_s"]], [gains, t_round_s], rtol=1e-12)
    assert row["best_gamma"] == 1 + gains.argmax()
    assert row["speedup"] == pytest.approx(gains.max(), rel=1e-12)
    assert row["t_draft_catch_up_s"] > 0
    (context,) = found["contexts"]
    assert context["largest_batch"] < context["largest_batch_without_draft"]


def test_links_can_bind(document: Document) -> None:
    arguments = ("--target", "llama-3.1-70b", "--hardware", "l40", "--tensor-parallel", "8", "--batch-size", "64")
    parts = document("plan", *arguments, "--alpha", ".8", "--uncalibrated")["points"][0]["parts"]
    assert (parts["decode"]["bound"], parts["draft"], parts["verify"]["bound"]) == ("weights", None, "all_reduce")


def test_a_calibrated_plan_has_intervals_and_an_answer(document: Document) -> None:
    given = ("--draft", "tinyllama-1.1b", "--tensor-parallel", "8", "--batch-size", "32,64", "--gamma", "2")
    found = document(*LLAMA_2, *given, "--alpha", ".7", "--context", "1k,8000", "--draft-window", "512")
    fitted = load_hardware("a100-80gb-sxm").calibration
    assert fitted is not None
    assert fitted.same_target is not None
    error = found["calibration"]["error"]
    assert error == fitted.same_target.model_dump()
    assert fitted.draft is not None
    assert fitted.draft.other_draft is not None
    known = found["calibration"]["draft"]
    assert (known["token_s"], known["error"]) == (fitted.draft.token_s, fitted.draft.same_draft.model_dump())
    other = document(*LLAMA_2, *given, "--alpha", ".7", "--draft", "eagle3")["calibration"]["draft"]
    assert other["error"] == fitted.draft.other_draft.model_dump()
    assert document(*LLAMA_2, *given, "--alpha", ".7", "--draft", "ngram")["calibration"]["draft"] is None
    for point in found["points"]:
        assert point["low"] < point["speedup"] < point["high"]
        assert point["t_decode_low_s"] * point["t_decode_high_s"] == pytest.approx(point["t_decode_s"] ** 2, rel=1e-12)
        assert point["t_overhead_s"] == fitted.t_overhead_s
        assert point["calibrated"]
    short, long = found["points"][0], found["points"][2]
    assert (long["context"], long["decision"]["verdict"], long["gamma"]) == (8000, "speculate", 2)
    assert short["speedup"] < long["speedup"]


def test_what_is_not_calibrated_is_said_to_lie_outside(document: Document) -> None:
    found = document(*LLAMA_2, "--tensor-parallel", "8", "--batch-size", "1,32", "--gamma", "2,3", "--alpha", ".01")
    assert [point["calibrated"] for point in found["points"]] == [False, False]  # context 1000 is under 1024
    assert "2 of 2 points lie outside" in " ".join(plan_text(found).split())


def test_the_documentation_lists_every_field(document: Document) -> None:
    found = document(*LLAMA_2, "--draft", "tinyllama-1.1b", "--alpha", ".8", "--batch-size", "1")
    text = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    tables = text.partition("## The JSON document")[2].split("\n| field |")[1:]
    fields = [re.findall(r"^\| (`[^|]*) \|", table, flags=re.MULTILINE) for table in tables]
    whole, point, context = (set(re.findall(r"`(\w+)`", " ".join(names))) for names in fields)
    assert whole == set(found)
    assert point == set(found["points"][0])
    assert context == set(found["contexts"][0])
    assert {f"`{name}`" for name in found["points"][0]["by_gamma"][0]} <= set(re.findall(r"`\w+`", text))


def test_names_of_the_table_can_be_told(command: Run) -> None:
    head, *rows = TABLE.read_text(encoding="utf-8").splitlines()
    kept = [row for row in rows if "Llama2-7B-32K" in row and "8xA100" in row]
    text = "\n".join([head, *kept, ""]).replace("Llama2-7B-32K", "mine").replace("A100", "Z100")
    Path("renamed.csv").write_text(text, encoding="utf-8")
    aliases = ("--alias", "mine=llama-2-7b", "--alias", "Z100=a100-80gb-sxm")
    code, out, err = command("plan", "--calibrate", "renamed.csv", *aliases)
    assert (code, err) == (0, "")
    assert out.startswith("mine on 8xZ100, 30 rows;")


def test_drafts_of_unknown_shape_are_named(command: Run) -> None:
    text = TABLE.read_text(encoding="utf-8")
    Path("t.csv").write_text(text.replace("TinyLlama-1.1B", "Mine"), encoding="utf-8")
    fit = ("plan", "--calibrate", "t.csv", "--hardware", "a100-80gb-sxm", "--draft-window", "512")
    code, out, err = command(*fit)
    assert (code, err) == (0, "")
    assert out.endswith("\ndrafts of unknown shape, left out: Mine; name them with --alias NAME=SHAPE\n")
    assert re.search(r"^a100-80gb-sxm +30 ", out, flags=re.MULTILINE)
    code, out, _ = command(*fit, "--alias", "Mine=tinyllama-1.1b")
    assert (code, "unknown shape" in out, bool(re.search(r"^a100-80gb-sxm +47 ", out, flags=re.MULTILINE))) == (
        0,
        False,
        True,
    )


def test_what_the_steps_do_not_tell_is_said() -> None:
    assert fitted_text(calibrate([synthetic()])) == (
        "bandwidth 80.0%, FLOPs 45.0% of peak, launch 150.0 µs a layer; "
        "16 steps, error held out by batch_size: mean 0.00%, worst 0.0%"
    )
    unsure = fitted_text(calibrate([one_sequence()]))
    assert "of peak (not identified)" in unsure
    assert unsure.endswith("4 steps, no second value to hold out")


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "h100-sxm", "l40"])
def test_shipped_calibrations_are_what_their_command_fits(command: Run, name: str) -> None:
    shipped = load_hardware(name)
    assert shipped.calibration is not None
    words = shipped.calibration.command.split()
    assert words[:4] == ["specgauge", "plan", "--calibrate", "tests/golden/magicdec.csv"]
    source = ("--source", shipped.calibration.source, "--out", "entry.yaml")
    code, out, err = command("plan", "--calibrate", str(TABLE), *words[4:], *source)
    assert (code, err) == (0, "")
    assert out.startswith("all rows of a device together; error on what was left out: mean (worst)\n")
    again = load_hardware("entry.yaml").calibration
    assert again is not None
    numbers = shipped.calibration.model_dump(exclude={"command"})
    for key, value in again.model_dump(exclude={"command"}).items():
        assert value == pytest.approx(numbers[key], rel=1e-3) if isinstance(value, float) else True, key
        assert isinstance(value, (float, dict)) or value == numbers[key], key
    code, out, _ = command("plan", "--target", "llama-2-7b", "--hardware", "entry.yaml", "--alpha", ".5")
    assert (code, "calibrated on" in out) == (0, True)


@pytest.mark.parametrize(
    ("name", "launch_of", "message"),
    [
        ("b200-sxm", None, r"^--hardware: expected one of the measured l40, h100-sxm, a100-80gb-sxm, got 'b200-sxm'$"),
        ("l40", "b200-sxm", r"^--launch-of: expected an entry with a calibration, got 'b200-sxm' without one$"),
    ],
)
def test_only_what_was_measured_can_be_calibrated(name: str, launch_of: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibrated_entry(read_groups(TABLE, aliases={}), name, source="s", command="c", launch_of=launch_of)


def test_only_an_entry_of_the_same_machine_is_replaced(command: Run) -> None:
    fit = ("plan", "--calibrate", str(TABLE), "--hardware", "h100-sxm", "--out", "mine.yaml")
    out = Path("mine.yaml")
    shipped = load_hardware("h100-sxm")
    own = shipped.model_copy(update={"calibration": None}).to_yaml()
    kept = {
        "another machine": load_hardware("l40").to_yaml(),
        "other peaks": own.replace("3350000000000", "3000000000000"),
        "notes of one's own": f"# mine\n{own}",
        "no entry": "todo: [buy milk]\n",
    }
    assert kept["other peaks"] != own
    for what, text in kept.items():
        out.write_text(text, encoding="utf-8")
        code, told, err = command(*fit)
        assert (code, told, out.read_text(encoding="utf-8")) == (2, "", text), what
        assert err == (
            "specgauge: mine.yaml: expected a new file, or one that specgauge wrote for h100-sxm with the same peaks, "
            "got another, which is kept; name a new file, or move that one\n"
        )
    for text in (own, shipped.to_yaml()):
        out.write_text(text, encoding="utf-8")
        assert command(*fit)[0] == 0
        written = load_hardware("mine.yaml").calibration
        assert written is not None
        assert written.command == f"specgauge plan --calibrate {TABLE} --hardware h100-sxm"


def test_a_run_is_calibrated_and_its_entry_planned_with(document: Document, command: Run) -> None:
    grid: dict[str, Any] = {"batch_sizes": (1, 2, 4), "contexts": (64, 128), "gammas": (1, 2, 3)}
    build_run(Path("run"), Shape(alphas={"greedy": 0.8}, overhead_s=0.003, **grid))
    fit = ("plan", "--calibrate", "run", "--hardware", "cpu-2-cores")
    code, out, err = command(*fit, "--out", "mine.yaml")
    assert (code, err) == (0, "")
    assert out.splitlines()[2].startswith("cpu-2-cores ")
    fitted = load_hardware("mine.yaml").calibration
    assert fitted is not None
    assert (fitted.source, fitted.command) == ("run", "specgauge plan --calibrate run --hardware cpu-2-cores")
    assert (fitted.batch_sizes, fitted.contexts, fitted.tokens) == ([1, 4], [64, 128], [1, 4])
    assert fitted.t_overhead_s == pytest.approx(0.003, rel=0.02)
    assert fitted.draft_error is not None
    assert fitted.draft is not None  # the run's draft takes what no roofline of a CPU says
    assert (fitted.draft.drafts, fitted.draft.same_draft.held_out) == (["embedded draft"], "batch_size")
    assert fitted.draft.same_draft.rms < fitted.draft_error
    recorded = ("--survival-of", "run", "--gamma", "1:2")
    shape = ("--target", "smollm2-135m", "--hardware", "mine.yaml", "--dtype", "float32")
    found = document("plan", *shape, *recorded, "--batch-size", "1", "--context", "64")
    assert found["acceptance"]["source"] == "run"
    assert (found["acceptance"]["run"], found["acceptance"]["sampling"]) == ("run", "greedy")
    assert [one["gamma"] for one in found["points"][0]["by_gamma"]] == [1, 2]
    assert found["points"][0]["low"] < found["points"][0]["high"]
    Path("run/predictions.csv").unlink()  # as when it was stopped
    assert command(*fit, "--out", "mine.yaml")[0] == 0
    assert (load_hardware("mine.yaml").calibration or fitted).t_overhead_s is None


def test_acceptance_lengths_are_tokens_a_round(document: Document, command: Run) -> None:
    Path("lengths.yaml").write_text(LENGTHS, encoding="utf-8")
    given = ("--acceptance-lengths", "lengths.yaml", "--acceptance-table", "deepseek-v3/thinking_on")
    found = document(*LLAMA_2, *given, "--batch-size", "1")
    assert [one["tokens_per_round"] for one in found["points"][0]["by_gamma"]] == pytest.approx([1.93, 2.73, 3.31])
    assert found["acceptance"]["table"] == "deepseek-v3/thinking_on"
    code, out, _ = command(*LLAMA_2, *given, "--batch-size", "1")
    assert code == 0
    assert "of deepseek-v3/thinking_on, the bonus included: 1.93 at gamma 1" in " ".join(out.split())
    code, out, err = command(*LLAMA_2, *given, "--gamma", "1:5")
    assert (code, out) == (2, "")
    assert err == (
        "specgauge: lengths.yaml: acceptance lengths of deepseek-v3/thinking_on are for gamma 1, 2, 3: expected no "
        "other in --gamma, got 4; add it to the table, or leave it out (--gamma 1,2,3)\n"
    )


def test_a_limit_on_rounds_binds(document: Document) -> None:
    free, limited = (
        document(*PLAIN, "--batch-size", "64", *limit)["points"][0] for limit in ((), ("--max-itl", "23.03ms"))
    )
    assert free["best_gamma"] > limited["best_gamma"] >= 1
    assert all(one["t_round_s"] <= 0.02303 for one in limited["by_gamma"] if one["within_limits"])
    none = document(*PLAIN, "--batch-size", "64", "--max-itl", "1us")
    assert (none["points"][0]["best_gamma"], none["points"][0]["speedup"], none["points"][0]["gamma"]) == (0, None, 0)
    assert none["contexts"][0]["pays"] == []
    assert "over the limit" in plan_text(none)


def test_drafts_of_every_kind(document: Document) -> None:
    given = ("plan", "--target", "llama-3.1-8b", "--hardware", "h100-sxm", "--alpha", ".7", "--batch-size", "1")
    kinds: dict[str, Any] = {}
    for draft in ("llama-3.2-1b", "eagle3", "layers:4", "{layers: 4}", "ngram"):
        found = document(*given, "--draft", draft)
        kinds[draft] = (found["draft"]["kind"], found["draft"]["parameters"])
    assert kinds == {
        "llama-3.2-1b": ("model", 1_235_814_400),
        "eagle3": ("eagle3", 424_689_664),
        "layers:4": ("layers", 1_923_125_248),
        "{layers: 4}": ("layers", 1_923_125_248),
        "ngram": ("ngram", None),
    }


def test_a_copied_draft_takes_more_memory_and_sends_nothing(document: Document) -> None:
    given = ("plan", "--target", "llama-3.1-70b", "--draft", "llama-3.2-1b", "--hardware", "h100-sxm", "--alpha", ".7")
    shared, copied = (
        document(*given, "--tensor-parallel", "4", "--batch-size", "1", *how)
        for how in ((), ("--draft-tensor-parallel", "1"))
    )
    assert copied["draft"]["weight_bytes_per_device"] == pytest.approx(
        4 * shared["draft"]["weight_bytes_per_device"], rel=1e-3
    )
    sent = [one["points"][0]["parts"]["draft"]["all_reduce"] for one in (copied, shared)]
    assert sent[0] == 0 < sent[1]
    assert copied["contexts"][0]["largest_batch"] < shared["contexts"][0]["largest_batch"]


def test_quantised_weights_and_a_small_cache(document: Document) -> None:
    given = (*PLAIN, "--batch-size", "1", "--gamma", "2", "--dtype", "bfloat16")
    plain, four, cache = (
        document(*given, *more) for more in ((), ("--weights", "int4:128"), ("--kv-cache", "fp8", "--weights", "fp8"))
    )
    layers = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    saved = plain["target"]["weight_bytes_per_device"] - four["target"]["weight_bytes_per_device"]
    assert saved == pytest.approx(layers * (2 - 0.5 - 2 / 128), rel=1e-12)
    assert four["target"]["weights"] == "int4 in groups of 128"
    assert 2 * cache["target"]["kv_bytes_per_token"] == plain["target"]["kv_bytes_per_token"]
    assert cache["hardware"]["compute_dtype"] == "bfloat16"  # an A100 has no fp8 arithmetic


def test_a_config_of_ones_own_and_a_cached_hub_id(
    document: Document, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = (ROOT / "configs" / "shapes" / "llama-2-7b.json").read_text(encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(Path("hub").absolute()))
    snapshot = Path("hub/models--org--tiny/snapshots/abc")
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(config, encoding="utf-8")
    refs = Path("hub/models--org--tiny/refs")
    refs.mkdir()
    (refs / "main").write_text("abc", encoding="utf-8")
    Path("own").mkdir()
    Path("own/config.json").write_text(config, encoding="utf-8")
    rest = (*PLAIN[3:], "--batch-size", "1")
    names = ("own", "own/config.json", "org/tiny")
    assert {document("plan", "--target", name, *rest)["target"]["parameters"] for name in names} == {6_738_415_616}
    code, _, err = command("plan", "--target", "org/llama-2-7c", *rest)
    assert code == 2
    assert err == (
        "specgauge: model shape: expected a file that exists or a hub id with its config.json in the local cache, got "
        "'org/llama-2-7c'; did you mean 'llama-2-7b'?; download it with `hf download org/llama-2-7c config.json`\n"
    )


def test_the_text_keeps_to_the_width_of_a_terminal(command: Run) -> None:
    given = ("--draft", "llama-3.2-1b", "--hardware", "h100-sxm", "--tensor-parallel", "4", "--alpha", ".78")
    contexts = "1k,2k,4k,8k,16k,32k,64k"
    code, out, err = command("plan", "--target", "llama-3.1-70b", *given, "--context", contexts, "--max-itl", "40ms")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= WIDTH


def test_the_page_is_written_beside_the_answer(command: Run) -> None:
    code, out, err = command(*PLAIN, "--batch-size", "1:64", "--context", "1k,32k", "--html", "plan.html")
    assert (code, err) == (0, "")
    assert out.startswith("a100-80gb-sxm: ")
    page = Path("plan.html").read_text(encoding="utf-8")
    assert "llama-2-7b with ngram on a100-80gb-sxm" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    code, out, err = command(*PLAIN, "--html", "absent/plan.html")
    assert (code, out) == (2, "")
    assert err == "specgauge: absent/plan.html: the folder absent does not exist; make it first, or name another\n"


def test_json_is_strict_where_nothing_fits(command: Run) -> None:
    given = ("--target", "llama-3.1-405b", "--hardware", "a100-80gb-sxm", "--alpha", ".7", "--batch-size", "2,4")
    code, out, _ = command("plan", *given, "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert [point["fits"] for point in found["points"]] == [False, False]
    assert (found["contexts"][0]["schedule"], found["contexts"][0]["largest_batch"]) == ([], 0)
    assert "Context 1024: not even 2 sequences fit." in plan_text(found)
