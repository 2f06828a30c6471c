"""AIPerf: records of requests, and sums over a run, as its 0.13 writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.imports.aiperf import read_aiperf
from specgauge.sweeps.imports.engine_run import Given
from tests.sweeps.imports.engines import (
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    aiperf_records,
    aiperf_sums,
    counts,
    shares,
    t_round_s,
    written,
)


def test_aiperf_leaves_out_what_was_not_served(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in aiperf_records(8, 2, 1.0).splitlines()]
    warm_up, failed, cancelled = (json.loads(json.dumps(lines[0])) for _ in range(3))
    warm_up["metadata"]["benchmark_phase"] = "warmup"
    failed["error"] = {"code": 503}
    cancelled["metadata"]["was_cancelled"] = True
    text = "\n".join(map(json.dumps, [warm_up, failed, cancelled, *lines]))
    (run,) = read_aiperf([written(tmp_path / "records.jsonl", text)], Given()).runs
    assert (run.gamma, run.batch_size, len(run.counts)) == (2, 8, 128)
    assert sum(one.rounds or 0 for one in run.counts) == counts(2).rounds
    assert run.t_round_s == pytest.approx(t_round_s(8, 2), rel=1e-9)


def test_a_request_of_aiperf_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = aiperf_records(8, 2, 1.0)
    with pytest.raises(ValueError, match="expected every request once, got x_request_id '0' 2 times"):
        read_aiperf([written(tmp_path / "records.jsonl", text + text.splitlines()[0])], Given())


def test_aiperf_records_without_acceptance_are_told_to_be_taken_as_plain(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", aiperf_records(8, 0, 1.0))
    found = read_aiperf([path], Given())
    assert [run.gamma for run in found.runs] == [0]
    assert [(note.code, note.message) for note in found.notes] == [
        (
            "gamma_derived",
            f"{path}: γ is taken as 0 (plain decoding), since no acceptance is told",
        )
    ]
    assert read_aiperf([path], Given(gamma=(0,))).notes == ()
    assert read_aiperf([written(tmp_path / "two.jsonl", aiperf_records(8, 2, 1.0))], Given()).notes == ()
    with pytest.raises(ValueError, match=r"records\.jsonl: expected spec_decode_acceptance at gamma 2"):
        read_aiperf([path], Given(gamma=(2,)))


def test_aiperf_records_that_contradict_themselves(tmp_path: Path) -> None:
    (line, *_) = aiperf_records(8, 2, 1.0).splitlines()
    late, other = json.loads(line), json.loads(line)
    late["metrics"]["time_to_first_token"]["value"] = 1e6
    other["spec_decode_acceptance"] = "none"
    for changed, told in (
        (late, r"expected the first token within the [0-9.]+ s of the request, got it after 1000 s"),
        (other, r"spec_decode_acceptance: expected a mapping, got 'none'"),
    ):
        with pytest.raises(ValueError, match=told):
            read_aiperf([written(tmp_path / "one.jsonl", json.dumps(changed) + "\n")], Given())
    warm_up = json.loads(line)
    warm_up["metadata"]["benchmark_phase"] = "warmup"
    with pytest.raises(ValueError, match=r"\(profile_export_aiperf.json\), got none"):
        read_aiperf([written(tmp_path / "warm.jsonl", warm_up)], Given())


def test_another_name_for_the_acceptance_is_no_plain_decoding(tmp_path: Path) -> None:
    text = aiperf_records(8, 2, 1.0).replace('"spec_decode_acceptance"', '"spec_decoding_acceptance"')
    with pytest.raises(ValueError, match="expected the field 'spec_decode_acceptance', got 'spec_decoding_acceptance'"):
        read_aiperf([written(tmp_path / "records.jsonl", text)], Given())


def test_aiperf_may_wrap_what_it_tells(tmp_path: Path) -> None:
    (line, *_) = aiperf_records(8, 2, 1.0).splitlines()
    content = json.loads(line)
    content["metrics"]["spec_decode_acceptance"] = {"value": content.pop("spec_decode_acceptance"), "unit": ""}
    (run,) = read_aiperf([written(tmp_path / "record.jsonl", content)], Given()).runs
    assert run.counts[0].rounds == shares(2)[0].rounds


def test_aiperf_seconds_have_a_unit(tmp_path: Path) -> None:
    (line, *_) = aiperf_records(8, 2, 1.0).splitlines()
    content = json.loads(line)
    content["metrics"]["request_latency"] = {
        "value": content["metrics"]["request_latency"]["value"] * 1e6,
        "unit": "ns",
    }
    (run,) = read_aiperf([written(tmp_path / "record.jsonl", content)], Given()).runs
    assert run.t_round_s == pytest.approx(t_round_s(8, 2), rel=1e-9)
    content["metrics"]["request_latency"]["unit"] = "fortnights"
    with pytest.raises(ValueError, match="expected one of ns, us, ms, s"):
        read_aiperf([written(tmp_path / "record.jsonl", content)], Given())


def sums(**changes: Any) -> dict[str, Any]:
    """Of batch size 8 at γ 2, some of it changed; None leaves a field out."""
    found = aiperf_sums(8, 2, 1.0) | changes
    return {name: value for name, value in found.items() if value is not None}


def test_sums_over_a_run_are_its_rounds(tmp_path: Path) -> None:
    (run,) = read_aiperf([written(tmp_path / "profile_export_aiperf.json", sums())], Given()).runs
    (counted,) = run.counts
    assert (run.gamma, run.batch_size, run.is_mean_batch) == (2, 8, True)
    assert run.t_round_s == pytest.approx(t_round_s(8, 2), rel=1e-9)
    assert (counted.rounds, counted.drafted, counted.tokens) == (counts(2).rounds, 2 * counts(2).rounds, None)
    assert (counted.accepted, counted.accepted_by_position) == (counts(2).accepted, counts(2).accepted_by_position)
    assert run.context == pytest.approx(PROMPT_TOKENS + OUTPUT_TOKENS / 4, rel=0.01)


def test_sums_without_acceptance_are_plain_decoding(tmp_path: Path) -> None:
    path = written(tmp_path / "sums.json", aiperf_sums(8, 0, 1.0))
    found = read_aiperf([path], Given())
    (run,) = found.runs
    assert (run.gamma, run.counts, run.batch_size) == (0, (), 8)
    assert run.t_round_s == pytest.approx(t_round_s(8, 0), rel=1e-9)
    assert [note.code for note in found.notes] == ["gamma_derived"]
    (together,) = read_aiperf([path, written(tmp_path / "records.jsonl", aiperf_records(8, 0, 1.0))], Given()).notes
    assert together.message.startswith(f"{path} and 1 more: γ is taken as 0")
    assert read_aiperf([path], Given(gamma=(0,))).notes == ()
    with pytest.raises(ValueError, match="expected pooled_spec_decode_acceptance_histogram at gamma 2, got none"):
        read_aiperf([path], Given(gamma=(2,)))


def test_the_histogram_alone_tells_acceptance_once_gamma_is_given(tmp_path: Path) -> None:
    content = {"pooled_spec_decode_acceptance_histogram": {"0": 1, "1": 1, "2": 1, "3": 1}}
    path = written(tmp_path / "sums.json", content)
    with pytest.raises(ValueError, match="expected total_draft_tokens, it is missing; give --gamma"):
        read_aiperf([path], Given())
    (run,) = read_aiperf([path], Given(gamma=(3,))).runs
    assert (run.t_round_s, run.batch_size, run.counts[0].rounds, run.counts[0].accepted) == (None, None, 4, 6)
    assert run.counts[0].accepted_by_position == (3, 2, 1)


def test_sums_of_answers_that_were_not_streamed_have_no_times(tmp_path: Path) -> None:
    (run,) = read_aiperf([written(tmp_path / "sums.json", sums(time_to_first_token=None))], Given()).runs
    assert run.t_round_s is None
    assert run.counts


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"total_spec_decode_steps": {"avg": 9.0}}, "expected counts that add up to 9 rounds, got"),
        ({"total_accepted_draft_tokens": {"avg": 9.0}}, "expected 9 accepted drafts in it, got"),
        ({"spec_decode_token_weighted_acceptance_length": {"avg": 0.7}}, "expected at least 1, the bonus included"),
        (
            {"spec_decode_token_weighted_acceptance_length": {"avg": 1.19}},
            "expected 1 + total_accepted_draft_tokens / total_spec_decode_steps, 2.19, got 1.19",
        ),
        ({"total_draft_tokens": {"avg": 9.0}}, "over total_spec_decode_steps: expected a whole gamma from 0"),
        ({"spec_decode_steps": {"avg": 46.0, "count": 100}}, "expected the acceptance of all 128 requests, got that"),
        ({"is_complete": False, "incomplete_reason": "it stalled"}, "a run that ended, got is_complete false: it stal"),
        ({"time_to_first_token": {"unit": "ms", "avg": 1e9}}, "expected the first token within the"),
        ({"request_latency": {"unit": "fortnights", "avg": 1.0}}, "unit: expected one of ns, us, ms, s"),
        ({"request_latency": {"unit": "ms", "avg": "quick"}}, "avg: expected a number of at least 0, got 'quick'"),
        ({"pooled_spec_decode_acceptance_histogram": {"one": 1}}, "expected counts by accepted drafts 0, 1, …"),
        ({"pooled_spec_decode_acceptance_histogram": {"0": 0}, "total_spec_decode_steps": None}, "drafts in it, got 0"),
        ({"total_draft_tokens": {"avg": float(counts(2).rounds)}}, "expected at most 1 drafts accepted in a round of"),
    ],
)  # fmt: skip
def test_sums_that_contradict_themselves_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = written(tmp_path / "sums.json", sums(**changes))
    with pytest.raises(ValueError, match=r".*") as error:
        read_aiperf([path], Given())
    assert told in str(error.value)
    assert str(error.value).startswith(str(path))
