"""Benchmarks' own files: of SGLang, llama.cpp, SPEED-Bench and Spec-Bench, and golden acceptance lengths."""

import json
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.imports.acceptance_files import read_golden, read_spec_bench, read_speed_bench
from specgauge.sweeps.imports.engine_run import Given
from specgauge.sweeps.imports.formats import find_format
from specgauge.sweeps.imports.llama_cpp import read_batched_bench, read_bench
from specgauge.sweeps.imports.llama_cpp import read_scrapes as read_llama_scrapes
from specgauge.sweeps.imports.sglang import read_bench as read_sglang
from specgauge.sweeps.imports.sglang import read_scrapes
from specgauge.sweeps.imports.write import Names, write_import
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow
from tests.sweeps.imports.engines import counts, sglang_line, t_round_s, written
from tests.sweeps.imports.samples import llama_bench, sglang_scrape, spec_bench, speed_bench


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"topk": 4}, "expected a chain (topk 1, num_draft_tokens 4 at steps 3), got topk 4"),
        ({"num_draft_tokens": 3}, "and num_draft_tokens 3; draft trees are not covered"),
        ({"acc_length": 0.8}, "expected at least 1, the bonus included, got 0.8"),
        ({"speed": 1.0}, "expected speed to be acc_length / step_time"),
        ({"step_time": None}, "expected the field 'step_time', it is missing"),
        ({"steps": 65}, "expected a whole gamma from 0 to 64, got 65"),
        ({"batch_size": 0}, "expected a number of at least 1, got 0"),
    ],
)
def test_lines_of_sglang_that_contradict_themselves(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    line = {key: value for key, value in (json.loads(sglang_line(4, 3, 1.0)) | changes).items() if value is not None}
    with pytest.raises(ValueError, match=r".*") as error:
        read_sglang([written(tmp_path / "bench.jsonl", line)], Given())
    assert told in str(error.value)


def test_a_line_of_sglang_without_tokens_keeps_its_mean(tmp_path: Path) -> None:
    line = json.loads(sglang_line(4, 3, 1.0)) | {"completion_tokens": None}
    (run,) = read_sglang([written(tmp_path / "bench.jsonl", line)], Given()).runs
    assert run.counts[0].tokens_per_round == pytest.approx(counts(3).tokens / counts(3).rounds)


def test_counters_of_sglang_subtract(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{times}.txt", sglang_scrape(times)) for times in (1, 2)]
    (run,) = read_scrapes(files, Given(gamma=(3,), batch_size=(4,))).runs
    assert (run.gamma, run.batch_size) == (3, 4)
    assert run.t_round_s == pytest.approx(0.02)
    assert (run.counts[0].rounds, run.counts[0].tokens) == (400, 960)
    with pytest.raises(ValueError, match="expected --gamma, since SGLang's counters do not tell it"):
        read_scrapes(files, Given())


def test_llama_bench_tells_steps_verifications_and_draft_steps_apart(tmp_path: Path) -> None:
    target = [
        llama_bench("big", 8e9, 0, 64, *(64 * one for one in (20_000_000, 20_200_000, 19_900_000))),
        *(
            llama_bench("big", 8e9, gamma + 1, 0, *(one + 500_000 * gamma for one in (21_000_000, 21_100_000)))
            for gamma in (1, 2, 3)
        ),
        llama_bench("big", 8e9, 512, 0, 900_000_000),
    ]
    draft = [llama_bench("small", 1e9, 0, 64, 64 * 1_000_000)]
    path = written(tmp_path / "bench.json", [*target, *draft])
    imported = read_bench([path], Given())
    assert (imported.target, imported.draft, imported.release) == ("big", "small", "abc1234")
    verified = [(run.gamma, run.t_verify_s) for run in imported.runs if run.t_verify_s is not None]
    assert verified[::2] == [(1, 0.0215), (2, 0.022), (3, 0.0225)]
    assert [run.t_draft_total_s for run in imported.runs if run.t_draft_total_s is not None] == pytest.approx(
        [0.001, 0.002, 0.003]
    )
    assert {run.t_round_s for run in imported.runs if run.gamma == 0} == {0.02, 0.0202, 0.0199}


def test_parts_give_a_speed_up_once_acceptance_is_beside_them(tmp_path: Path) -> None:
    rows = ["batch_size,context,gamma,t_round_s,t_draft_total_s,t_verify_s,rounds,tokens,accepted_by_position\n"]
    for noise in (0.999, 1.0, 1.002):
        rows.append(f"1,512,0,{0.020 * noise},,,,,\n")
        rows.append(f"1,512,1,,0.001,{0.021 * noise},,,\n1,512,2,,0.002,{0.022 * noise},1000,2300,800;500\n")
    files = [written(tmp_path / "parts.csv", "".join(rows))]
    form = find_format("table")
    write_import(tmp_path / "run", [form], files, form.read(files, Given()), Names(draft="small"))
    (entry,) = recommend(Run.open(tmp_path / "run")).entries
    assert entry["whole_rounds"] is False
    assert entry["speedup"]["value"] == pytest.approx(2.3 * 0.020 / 0.024)
    rows_of = {row.gamma: row for row in Run.open(tmp_path / "run").rows(PredictionRow)}
    assert rows_of[1].tokens_per_round == 1.8  # of the counts at γ = 2
    assert rows_of[1].acceptance_provenance == "interpolated"
    assert (rows_of[2].t_draft_total_s, rows_of[2].t_verify_s) == (0.002, 0.022)


def test_a_llama_bench_of_prompts_alone_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "bench.json", [llama_bench("big", 8e9, 512, 0, 900_000_000)])
    with pytest.raises(ValueError, match="got prompts alone that no round verifies"):
        read_bench([path], Given())
    three = [llama_bench(name, 1e9, 0, 64, 64) for name in ("a", "b", "c")]
    with pytest.raises(ValueError, match="got 3 models: a, b, c"):
        read_bench([written(tmp_path / "three.json", three)], Given())


def test_llama_batched_bench_decodes_plainly(tmp_path: Path) -> None:
    lines = [
        {"pp": 128, "tg": 64, "pl": size, "n_kv": 0, "t_pp": 1.0, "t_tg": 64 * t_round_s(size, 0)} for size in (1, 8)
    ]
    path = written(tmp_path / "batched.jsonl", "\n".join(map(json.dumps, lines)))
    runs = read_batched_bench([path], Given()).runs
    assert [(run.gamma, run.batch_size, run.context) for run in runs] == [(0, 1, 160), (0, 8, 160)]
    assert [run.t_round_s for run in runs] == pytest.approx([t_round_s(1, 0), t_round_s(8, 0)])


def test_speed_bench_leaves_the_prefills_out(tmp_path: Path) -> None:
    imported = read_speed_bench([written(tmp_path / "rates.json", [speed_bench()])], Given())
    (run,) = imported.runs
    (counted,) = run.counts
    assert (run.gamma, counted.rounds, counted.tokens, counted.accepted_by_position) == (3, 4, 10, (3, 2, 1))
    assert [one.code for one in imported.notes] == ["gamma_derived"]
    (run,) = read_speed_bench([written(tmp_path / "rates.json", [speed_bench()])], Given(gamma=(5,))).runs
    assert run.counts[0].accepted_by_position == (3, 2, 1, 0, 0)


@pytest.mark.parametrize(
    ("histogram", "told"),
    [
        ({"0": 5, "1": 2}, "expected steps by tokens from 1 (the bonus is one), got the key '0'"),
        ({"1": 1, "2": 5}, "expected at least 2 steps of one token, the prefills"),
        ({"1": 2}, "expected steps beside the prefills, got none"),
        ({"1": "x"}, "expected a number of at least 0, got 'x'"),
    ],
)
def test_speed_bench_that_contradicts_itself(tmp_path: Path, histogram: dict[str, Any], told: str) -> None:
    path = written(tmp_path / "rates.json", [speed_bench(Acceptance_Length_Histogram=histogram)])
    with pytest.raises(ValueError, match=r".*") as error:
        read_speed_bench([path], Given())
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"Average_AL": "0.8"}, "Average_AL: expected at least 1, the bonus included, got 0.8"),
        ({"Request_AL": {"0": 2.0, "1": 0.9}}, "Request_AL, 1: expected at least 1, the bonus included, got 0.9"),
        ({"Category_AL": {"qa": "low"}}, "Category_AL, qa: expected a number of at least 0, got 'low'"),
    ],
)
def test_mean_lengths_of_speed_bench_have_the_bonus_in(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_speed_bench([written(tmp_path / "rates.json", [speed_bench(**changes)])], Given())


@pytest.mark.parametrize(("lengths", "tokens"), [([4, 3, 2, 1], 10), ([3, 2, 1, 0], 10)])
def test_spec_bench_with_the_bonus_or_without(tmp_path: Path, lengths: list[int], tokens: int) -> None:
    (run,) = read_spec_bench([written(tmp_path / "answers.jsonl", spec_bench(lengths, tokens))], Given()).runs
    (counted,) = run.counts
    assert (run.gamma, run.batch_size, run.t_round_s) == (3, 1, 0.125)
    assert (counted.rounds, counted.accepted, counted.accepted_by_position) == (4, 6, (3, 2, 1))


def test_spec_bench_that_decodes_plainly(tmp_path: Path) -> None:
    (run,) = read_spec_bench([written(tmp_path / "answers.jsonl", spec_bench([1] * 8, 8))], Given()).runs
    assert (run.gamma, run.counts, run.t_round_s) == (0, (), 0.0625)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (spec_bench([4, 3, 2, 1], 40), "which fits neither with the bonus in each nor without"),
        (spec_bench([4, 0, 5, 1], 10), "expected at least 1, the bonus included, got 0"),
        (spec_bench([4, 3, 2, 1], 10, decoding_steps=[5]), "expected one for each of 5 steps, got 4"),
        ({"choices": []}, "expected a mapping, got None"),
    ],
)
def test_spec_bench_that_contradicts_itself(tmp_path: Path, answer: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r".*") as error:
        read_spec_bench([written(tmp_path / "answers.jsonl", answer)], Given())
    assert told in str(error.value)


def test_more_drafts_than_any_gamma_in_a_round_of_spec_bench_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "answers.jsonl", spec_bench([10**9, 3, 2, 1], 10**9 + 6))
    with pytest.raises(ValueError, match=r"expected at most 64 drafts accepted in a round, got 999999999$"):
        read_spec_bench([path], Given(gamma=(3,)))


GOLDEN = "big-model:\n  thinking_on: {1: 1.93, 2: 2.73}\n  thinking_off: {1: 1.8}\n"


def test_golden_lengths_have_the_bonus_in(tmp_path: Path) -> None:
    runs = read_golden([written(tmp_path / "golden.yaml", GOLDEN)], Given()).runs
    assert {run.pair for run in runs} == {"big-model"}
    assert [(run.sampling, run.gamma, run.counts[0].tokens_per_round) for run in runs] == [
        ("thinking_on", 1, 1.93),
        ("thinking_on", 2, 2.73),
        ("thinking_off", 1, 1.8),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "m:\n  thinking_on: {1: 0.93}\n",
            "gamma 1: expected tokens a round, the bonus included, from 1 to 2, got",
        ),
        ("m:\n  thinking_on: {2: 3.2}\n", "gamma 2: expected tokens a round, the bonus included, from 1 to 3, got 3.2"),
        ("m:\n  thinking_on: {1: 1.9, 2: 2.5, 3: 2.1}\n", "gamma 3: expected 2.5 to 3.5 tokens a round, after 2.5 at"),
        ("m:\n  thinking_on: {2: .nan}\n", "gamma 2: expected tokens a round"),
        ("m:\n  thinking_on: 2\n", "m: expected a gamma from 1 to 1000 as key, got 'thinking_on'"),
        ("", "got an empty file"),
        ("m: [\n", "golden.yaml"),
    ],
)
def test_golden_lengths_that_cannot_be(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r".*") as error:
        read_golden([written(tmp_path / "golden.yaml", text)], Given())
    assert told in str(error.value)


LLAMA = Path(__file__).parents[2] / "golden" / "engines" / "llama.cpp"


def llama_scrapes(name: str) -> list[Path]:
    return [LLAMA / f"{name}_metrics_{when}.txt" for when in ("before", "after")]


def test_real_metrics_of_llama_server() -> None:
    """128 tokens in 6.37 s plainly; at γ = 2 37 of 164 drafts accepted, 28 and 9 by position, of 83 rounds with any."""
    plain, drafting, wide = (
        read_llama_scrapes(llama_scrapes(name), Given()).runs[0] for name in ("plain", "draft2", "conc_draft2")
    )
    assert (plain.gamma, plain.batch_size, plain.counts) == (0, 1, ())
    assert plain.t_round_s == pytest.approx(6.37214 / 128, rel=1e-12)
    (counted,) = drafting.counts
    assert (drafting.gamma, counted.rounds, counted.tokens, counted.drafted) == (2, 91, 128, 164)
    assert (counted.accepted, counted.accepted_by_position) == (37, (28, 9))
    assert drafting.t_round_s == pytest.approx(17.4587 / 91, rel=1e-12)
    assert (wide.batch_size, wide.counts[0].rounds) == (2, 408)  # 193 steps of 2.11 sequences


def test_metrics_of_llama_server_say_what_was_taken() -> None:
    notes = read_llama_scrapes(llama_scrapes("draft2"), Given()).notes
    assert [note.code for note in notes] == ["gamma_derived", "first_tokens_in_rounds"]
    assert notes[0].message.endswith("γ is taken as 2, from 164 drafts in 83 rounds")
    (run,) = read_llama_scrapes(llama_scrapes("draft2"), Given(gamma=(4,))).runs
    assert run.counts[0].accepted_by_position == (28, 9, 0, 0)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("accepted_tokens_total 37", "accepted_tokens_total 165", "expected at most 164 accepted drafts, .* got 165"),
        ("num_drafts_total 83", "num_drafts_total 92", "and 91 rounds .* got 37 and 92"),
        ('position="1"', 'position="2000"', "expected a whole gamma from 0 to 64, got 2001; give --gamma"),
        ("tokens_predicted_total 128", "tokens_predicted_total 0", "to grow after .* nothing was generated"),
        ("n_decode_total 91", "n_decode_total nan", "expected finite numbers, got 0 and nan"),
    ],
)
def test_metrics_of_llama_server_that_contradict_themselves(tmp_path: Path, old: str, new: str, told: str) -> None:
    before, after = llama_scrapes("draft2")
    changed = tmp_path / "after.txt"
    text = after.read_text(encoding="utf-8")
    assert old in text
    changed.write_text(text.replace(f"{old}\n", f"{new}\n") if "_total" in old else text.replace(old, new))
    with pytest.raises(ValueError, match=told):
        read_llama_scrapes([before, changed], Given())


def test_a_gamma_below_the_positions_of_llama_server_is_refused() -> None:
    with pytest.raises(ValueError, match="expected positions 0 to 0 at gamma 1, got drafts accepted at 1"):
        read_llama_scrapes(llama_scrapes("draft2"), Given(gamma=(1,)))
    with pytest.raises(ValueError, match="expected two scrapes a run, BEFORE AFTER, got 1 files"):
        read_llama_scrapes(llama_scrapes("draft2")[:1], Given())
