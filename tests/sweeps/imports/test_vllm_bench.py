"""`vllm bench serve` and `vllm bench sweep serve`: real results, and what looks alike in them."""

from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.imports.engine_run import Given
from specgauge.sweeps.imports.vllm_bench import read_bench
from tests.sweeps.imports.engines import PROMPT_TOKENS, REQUESTS, bench_result, counts, t_round_s, written

GOLDEN = Path(__file__).parents[2] / "golden" / "engines" / "vllm"
RATES = "spec_decode_per_position_acceptance_rates"


def test_a_real_result_counts_chunks_not_tokens() -> None:
    imported = read_bench([GOLDEN / "bench_serve.json"], Given())
    (run,) = imported.runs
    (counted,) = run.counts
    assert (imported.target, run.gamma, run.batch_size, run.context) == ("target", 2, 4, round((590 + 96) / 8))
    assert (counted.rounds, counted.tokens, counted.drafted, counted.accepted) == (122, 184, 244, 63)
    assert counted.accepted_by_position == (45, 18)
    assert run.t_round_s == pytest.approx(8 * (7.372846088749952 - 1.4534829805000982) / 122)


def test_a_sweep_is_a_run_for_each_file() -> None:
    imported = read_bench([GOLDEN / "sweep"], Given())
    assert [(run.gamma, run.batch_size) for run in imported.runs] == [(1, 2), (1, 4), (2, 2), (2, 4)]
    assert imported.draft == "models/draft"


def test_plain_decoding_takes_a_step_a_token(tmp_path: Path) -> None:
    (run,) = read_bench([written(tmp_path / "plain.json", bench_result(8, 0))], Given()).runs
    assert (run.gamma, run.counts, run.batch_size) == (0, (), 8)
    assert run.t_round_s == pytest.approx(t_round_s(8, 0))
    assert run.context == round(PROMPT_TOKENS + (counts(0).tokens / REQUESTS + 1) / 2)


def test_rounds_without_drafts_are_counted_by_their_chunks(tmp_path: Path) -> None:
    rounds = counts(2).rounds
    drafts = rounds // 2
    result = bench_result(8, 2) | {
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": rounds,
        "spec_decode_accepted_tokens": drafts + 3,
        RATES: [1.0, 3 / drafts],
    }
    (run,) = read_bench([written(tmp_path / "lookup.json", result)], Given()).runs
    assert (run.counts[0].rounds, run.counts[0].accepted_by_position) == (rounds, (drafts, 3))


def test_the_concurrency_of_a_rate_is_what_was_in_flight(tmp_path: Path) -> None:
    result = bench_result(8, 2, max_concurrency=None, request_rate=4.0)
    (run,) = read_bench([written(tmp_path / "rate.json", result)], Given()).runs
    assert (run.batch_size, run.is_mean_batch) == (8, True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({RATES: [70.0, 49.0]}, "expected fractions of the drafts, got 70: percent?"),
        ({RATES: [4122 / 5888, 2885 / 4122]}, "a rate given that the draft before was accepted?"),
        ({RATES: [4122 / 5888, 2900 / 5888]}, "expected rates that add up to the 7007 drafts accepted, got 7022"),
        ({"spec_decode_acceptance_length": 0.9}, "expected at least 1, the bonus included, got 0.9"),
        ({"spec_decode_num_drafts": None}, "expected the field 'spec_decode_num_drafts', got"),
        ({"completed": 0}, "expected requests that completed, got 0"),
        ({"mean_e2el_ms": 40.0}, "expected mean_e2el_ms above mean_ttft_ms"),
        ({"completed": 1.5}, "expected a whole number, got 1.5"),
        ({"total_output_tokens": "many"}, "expected a number of at least 0, got 'many'"),
        ({RATES: None}, "expected the counts beside spec_decode_acceptance_rate"),
        ({"speculative_config": {"num_speculative_tokens": 65}}, "expected a whole gamma from 0 to 64, got 65"),
    ],
)
def test_results_that_contradict_themselves_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = written(tmp_path / "bad.json", bench_result(8, 2, **changes))
    with pytest.raises(ValueError, match=r".*") as error:
        read_bench([path], Given())
    assert told in str(error.value)
    assert str(error.value).startswith(str(path))


def test_speculation_without_counts_is_no_plain_decoding(tmp_path: Path) -> None:
    result = {key: value for key, value in bench_result(8, 2).items() if not key.startswith("spec_decode")}
    path = written(tmp_path / "old.json", result)
    with pytest.raises(ValueError, match="expected a chunk a token of plain decoding, or the counts of speculation"):
        read_bench([path], Given())
    (run,) = read_bench([path], Given(gamma=(0,))).runs
    assert run.gamma == 0


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected folders with run=0\.json"):
        read_bench([tmp_path], Given())
