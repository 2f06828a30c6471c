"""Requests told one by one: vLLM's per-request metrics, SGLang's meta_info and llama-server's timings."""

import json
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.imports.engine_run import Given
from specgauge.sweeps.imports.files import Record
from specgauge.sweeps.imports.llama_cpp import read_answers as read_timings
from specgauge.sweeps.imports.requests import Request, counts_of, runs_of
from specgauge.sweeps.imports.sglang import read_meta_info
from specgauge.sweeps.imports.vllm_requests import read_answers
from tests.sweeps.imports.engines import (
    acceptance,
    counts,
    llama_answers,
    sglang_answers,
    t_round_s,
    vllm_answers,
    written,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "engines"


def record(**changes: Any) -> Record:
    """Four rounds of γ = 3 that accepted 3, 2, 1 and 0 drafts."""
    plain = {
        "mean_acceptance_length": 2.5,
        "acceptance_histogram": [1, 1, 1, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 6,
        "num_draft_tokens": 12,
        "num_spec_tokens": 3,
    }
    return Record(where="it", values={name: value for name, value in (plain | changes).items() if value is not None})


def test_marginal_counts_are_made_of_the_histogram() -> None:
    (counted,) = counts_of(record(), None).values()
    assert (counted.rounds, counted.drafted, counted.accepted) == (4, 12, 6)
    assert counted.accepted_by_position == (
        3,
        2,
        1,
    )  # .75, .5, .25, marginal; conditional: .75, .667, .5


def test_a_mapping_is_a_histogram_too() -> None:
    (counted,) = counts_of(record(acceptance_histogram={"3": 1, "2": 1, "1": 1, "0": 1}), None).values()
    assert counted.accepted_by_position == (3, 2, 1)


def test_gamma_is_given_or_of_the_steps_or_as_set_up_or_by_the_drafts() -> None:
    steps = {"per_step_drafted": [4, 0, 4, 4], "per_step_accepted": [3, 2, 1, 0]}
    for found in (
        counts_of(record(num_spec_tokens=8), 4),
        counts_of(record(num_spec_tokens=8, **steps), None),
        counts_of(record(num_spec_tokens=4), None),
        counts_of(record(num_spec_tokens=None, num_draft_tokens=16), None),
    ):
        assert list(found) == [4]


def test_a_gamma_that_changes_is_told_apart_by_steps() -> None:
    steps = {"per_step_drafted": [3, 2, 2, 0], "per_step_accepted": [3, 2, 1, 0]}
    found = counts_of(record(**steps), None)
    assert {gamma: (one.rounds, one.accepted_by_position) for gamma, one in found.items()} == {
        2: (2, (2, 1)),
        3: (1, (1, 1, 1)),
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"acceptance_histogram": [1, 1, 1]}, "expected counts that add up to 4 rounds, got 3"),
        ({"acceptance_histogram": [0, 1, 1, 1, 1]}, "got 10 (with a bonus each: its keys are tokens, not drafts?)"),
        ({"acceptance_histogram": [2, 0, 1, 1]}, "expected 6 accepted drafts in it, got 5"),
        ({"mean_acceptance_length": 0.9}, "expected at least 1, the bonus included, got 0.9"),
        ({"num_spec_tokens": 2}, "expected at most 2 drafts accepted in a round of gamma 2, got 3"),
        ({"num_spec_tokens": None, "num_draft_tokens": 10}, "expected a whole gamma from 0 to 64, got 2.5"),
        ({"num_spec_tokens": None, "num_draft_tokens": None}, "expected num_spec_tokens or num_draft_tokens, got"),
        ({"acceptance_histogram": {"one": 4}}, "expected counts by accepted drafts 0, 1, …, got the key 'one'"),
        ({"per_step_drafted": [3, 2]}, "it, per_step_drafted: expected one for each of 4 rounds, got 2"),
        ({"per_step_accepted": [3, 2, 2, 0]}, "it, per_step_accepted: expected 6 in all, got 7"),
        ({"num_draft_tokens": 5}, "expected at most 5 accepted drafts, as many as drafted, got 6"),
        ({"num_spec_steps": -1}, "expected a number of at least 0, got -1"),
        ({"acceptance_histogram": "many"}, "expected a list, got 'many'"),
    ],
)  # fmt: skip
def test_requests_that_contradict_themselves_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r"^it") as error:
        counts_of(record(**changes), None)
    assert told in str(error.value)


def test_what_is_in_flight_is_the_batch_size() -> None:
    spans = [(0.0, 2.0), (0.0, 3.0), (2.0, 4.0), (3.0, 4.0)]
    requests = [Request(output_tokens=5, decode_s=2.0, start_s=start, end_s=end) for start, end in spans]
    (run,) = runs_of("it", requests)
    assert (run.gamma, run.batch_size, run.is_mean_batch, run.t_round_s, run.context) == (0, 2, True, 0.5, None)


def test_real_answers_of_vllm() -> None:
    files = [GOLDEN / "vllm" / "request_completion.json", GOLDEN / "vllm" / "request_stream.txt"]
    imported = read_answers(files, Given(batch_size=(1,)))
    completion, stream = imported.runs
    assert (imported.target, imported.release) == ("target", "0.32.0")
    assert (completion.gamma, completion.counts[0].rounds, completion.counts[0].accepted_by_position) == (2, 15, (0, 0))
    assert completion.t_round_s == pytest.approx(5.1649908409999625 / 15)
    assert (stream.gamma, stream.counts[0].rounds, stream.counts[0].tokens) == (2, 20, 31)
    assert stream.counts[0].accepted_by_position == (7, 4)
    assert stream.context == 42 + 16


def test_what_was_drafted_goes_before_what_was_set_up() -> None:
    (run,) = read_answers([GOLDEN / "vllm" / "request_gamma_below.json"], Given()).runs
    assert run.gamma == 2


def test_answers_without_metrics_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "plain.json", {"choices": [], "usage": {"completion_tokens": 3}})
    with pytest.raises(ValueError, match="start vLLM with --per-request-spec-decode-metrics detailed"):
        read_answers([path], Given())


def test_a_run_of_accepted_drafts_that_no_gamma_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected at most \d+ drafts accepted in a round, got 99999999999$"):
        counts_of(record(acceptance_histogram={"99999999999": 1}), None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("spec_num_correct_drafts", "spec_accepted_drafts"),
        ("spec_num_correct_drafts", "spec_accept_token_num"),
        ("spec_num_proposed_drafts", "spec_draft_token_num"),
        ("spec_correct_drafts_histogram", "spec_accept_histogram"),
    ],
)
def test_sglang_names_by_release(tmp_path: Path, old: str, new: str) -> None:
    text = json.dumps(sglang_answers(3)).replace(old, new)
    (run,) = read_meta_info([written(tmp_path / "answers.json", text)], Given(batch_size=(4,))).runs
    assert (run.gamma, run.batch_size, run.t_round_s) == (3, 4, None)
    totals = [sum(one.accepted_by_position[i] for one in run.counts if one.accepted_by_position) for i in range(3)]
    assert tuple(totals) == counts(3).accepted_by_position


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"spec_accept_length": 0.5}, "expected at least 1, the bonus included, got 0.5"),
        ({"spec_num_proposed_drafts": 7}, "expected a whole gamma of drafts a round, got 7 in"),
        ({"spec_correct_drafts_histogram": [1]}, "expected counts that add up to"),
        ({"completion_tokens": 0}, "expected a number of at least 1, got 0"),
    ],
)
def test_sglang_answers_that_contradict_themselves(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    answer = sglang_answers(3)[0]
    answer["meta_info"] |= changes
    with pytest.raises(ValueError, match=r".*") as error:
        read_meta_info([written(tmp_path / "answer.json", answer)], Given())
    assert told in str(error.value)


def test_real_timings_of_llama_server() -> None:
    files = [GOLDEN / "llama.cpp" / name for name in ("plain.json", "draft2.json", "synth3.json")]
    imported = read_timings(files, Given(batch_size=(1,)))
    plain, draft, forced = imported.runs
    assert (plain.gamma, draft.gamma, forced.gamma) == (0, 2, 3)
    assert [one.code for one in imported.notes] == ["gamma_derived", "gamma_derived"]
    rounds = sum(one.rounds or 0 for one in draft.counts)
    assert rounds == 128 - 4 - 37  # predicted, less the first of each of 4 answers, less the drafts accepted
    assert sum(one.tokens or 0 for one in draft.counts) == 124
    assert draft.t_round_s == pytest.approx(17.4587 / rounds, rel=1e-4)


def test_a_gamma_given_goes_before_one_derived(tmp_path: Path) -> None:
    path = written(tmp_path / "answers.json", llama_answers(1, 3, 1.0))
    imported = read_timings([path], Given(gamma=(5,)))
    assert (imported.runs[0].gamma, imported.notes) == (5, ())


def test_more_accepted_than_drafted_is_refused(tmp_path: Path) -> None:
    answer = llama_answers(1, 3, 1.0)[0]
    answer["timings"] |= {"draft_n": 3}
    with pytest.raises(ValueError, match="expected at most draft_n = 3 accepted drafts"):
        read_timings([written(tmp_path / "answer.json", answer)], Given())


def test_plain_answers_of_vllm_are_gamma_0(tmp_path: Path) -> None:
    (run,) = read_answers([written(tmp_path / "plain.json", vllm_answers(8, 0, 1.0))], Given()).runs
    assert (run.gamma, run.counts) == (0, ())
    assert run.t_round_s == pytest.approx(t_round_s(8, 0), rel=1e-9)


def test_the_engine_tells_the_same_both_ways() -> None:
    mapping = acceptance(3, counts(3))
    (counted,) = counts_of(Record(where="it", values=mapping), None).values()
    assert counted.accepted_by_position == counts(3).accepted_by_position


@pytest.mark.parametrize(
    ("read", "answers", "old", "new", "told"),
    [
        (read_meta_info, sglang_answers(2), "spec_verify_ct", "spec_rounds", "expected the field 'spec_verify_ct', it"),
        (
            read_answers,
            vllm_answers(1, 2, 1.0),
            "speculative_decoding",
            "speculative_decode",
            "expected the field 'speculative_decoding', got 'speculative_decode'; other releases may",
        ),
        (
            read_timings,
            llama_answers(1, 2, 1.0),
            "draft_n_accepted",
            "draft_n_passed",
            "expected the field 'draft_n_accepted', got 'draft_n_passed'; other releases may write it otherwise",
        ),
    ],
)
def test_another_name_for_what_tells_speculation_is_no_plain_decoding(
    tmp_path: Path, read: Any, answers: list[dict[str, Any]], old: str, new: str, told: str
) -> None:
    path = written(tmp_path / "answers.json", json.dumps(answers).replace(f'"{old}"', f'"{new}"'))
    with pytest.raises(ValueError, match=told):
        read([path], Given())
