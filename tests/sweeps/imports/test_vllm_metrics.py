"""Scrapes of vLLM: what a real server counted, and scrapes that do not fit together."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specgauge.sweeps.imports.engine_run import EngineRun, Given
from specgauge.sweeps.imports.formats import find_format, read
from specgauge.sweeps.imports.prometheus import read_scrape
from specgauge.sweeps.imports.vllm_metrics import read_scrapes
from specgauge.sweeps.imports.write import Names, write_import
from tests.sweeps.imports.engines import scrape, written

GOLDEN = Path(__file__).parents[2] / "golden" / "engines" / "vllm"


def real(name: str, **given: tuple[int, ...]) -> EngineRun:
    (run,) = read_scrapes([GOLDEN / f"{name}_before.txt", GOLDEN / f"{name}_after.txt"], Given(**given)).runs
    return run


def test_a_draft_model_is_counted_by_position() -> None:
    run = real("draft", batch_size=(2,))
    (counts,) = run.counts
    assert (run.gamma, run.batch_size, run.context) == (2, 2, round((1050 + 732 / 2) / 24))
    assert (counts.rounds, counts.drafted, counts.accepted, counts.accepted_by_position) == (513, 1026, 198, (144, 54))
    assert counts.tokens == 732 - 24  # 3 fewer than were accepted with a bonus each: a length limit cut them off
    assert run.t_round_s == pytest.approx(301.1363782819981 / 513)


def test_plain_decoding_is_gamma_0() -> None:
    run = real("live_g0")
    assert (run.gamma, run.counts) == (0, ())
    assert run.t_round_s == pytest.approx(202.07334116900165 / 552)
    assert (run.batch_size, run.is_mean_batch) == (2, True)  # 552 rounds of requests in 267 steps


def test_rounds_where_a_lookup_found_nothing_are_rounds() -> None:
    run = real("ngram1")
    (counts,) = run.counts
    assert (run.gamma, counts.rounds, counts.tokens) == (4, 1056, 1152 - 48)
    assert counts.accepted_by_position == (24, 18, 9, 0)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (scrape(4, 2, 2), scrape(4, 2, 1), "the scrapes are in the wrong order"),
        (scrape(4, 2, 1), scrape(4, 2, 1), "expected vllm:generation_tokens to grow"),
        (scrape(4, 2, 2), scrape(4, 2, 1).replace(" 1700000000.0", " 1700009999.0"), "the server restarted in between"),
        (scrape(4, 2, 1), "# HELP up x\nup 1\n", "expected the counter 'vllm:generation_tokens', it is missing"),
        (scrape(4, 2, 1), scrape(4, 2, 2).replace('"big"', '"other"'), "expected scrapes of one model, got big, other"),
        (scrape(4, 2, 1), scrape(4, 2, 2)[:-40] + '"', "line 14: expected `name{labels} value` as at /metrics"),
        (scrape(4, 2, 1), scrape(4, 2, 2).replace("_sum{", "_sum NaN {"), "expected `name"),
        ("", scrape(4, 2, 2), "got an empty file"),
    ],
)  # fmt: skip
def test_scrapes_that_do_not_fit_are_refused(tmp_path: Path, before: str, after: str, told: str) -> None:
    files = [written(tmp_path / "before.txt", before), written(tmp_path / "after.txt", after)]
    with pytest.raises(ValueError, match=r".*") as error:
        read_scrapes(files, Given())
    assert told in str(error.value)


def test_positions_that_are_not_told_are_unknown_and_not_none_accepted(tmp_path: Path) -> None:
    lines = [[line for line in scrape(4, 2, times).splitlines() if "per_pos" not in line] for times in (1, 2)]
    files = [written(tmp_path / f"{at}.txt", "\n".join(own)) for at, own in enumerate(lines)]
    ((counted,),) = [run.counts for run in read_scrapes(files, Given()).runs]
    assert counted.accepted is not None
    assert counted.accepted > 0
    assert counted.accepted_by_position is None


def test_a_counter_that_is_no_number_is_refused(tmp_path: Path) -> None:
    name = "vllm:time_to_first_token_seconds_count"
    broken = scrape(4, 2, 2).replace(f'{name}{{engine="0",model_name="big"}} 128', f"{name} NaN")
    files = [written(tmp_path / "before.txt", scrape(4, 2, 1)), written(tmp_path / "after.txt", broken)]
    with pytest.raises(ValueError, match="expected finite numbers, got 64 and nan"):
        read_scrapes(files, Given())


def test_a_gamma_that_changes_is_refused_unless_it_is_given(tmp_path: Path) -> None:
    name = "vllm:spec_decode_num_draft_tokens_total"
    after = scrape(4, 2, 2).replace(f'{name}{{engine="0",model_name="big"}} ', f"{name} 1")
    files = [written(tmp_path / "before.txt", scrape(4, 2, 1)), written(tmp_path / "after.txt", after)]
    with pytest.raises(ValueError, match="expected the same gamma in every round"):
        read_scrapes(files, Given())
    (run,) = read_scrapes(files, Given(gamma=(2,))).runs
    assert run.gamma == 2


def test_a_release_without_drafts_is_no_plain_decoding(tmp_path: Path) -> None:
    files = [
        written(tmp_path / f"{times}.txt", scrape(4, 2, times).replace("spec_decode_num_drafts", "spec_decode_other"))
        for times in (1, 2)
    ]
    with pytest.raises(ValueError, match="got none: a release of vLLM without"):
        read_scrapes(files, Given())


def test_an_odd_scrape_is_refused() -> None:
    with pytest.raises(ValueError, match="expected two scrapes a run, BEFORE AFTER, got 1 files"):
        read_scrapes([GOLDEN / "draft_before.txt"], Given())


def test_a_scrape_may_end_one_run_and_begin_the_next() -> None:
    names = ("live_g2_before", "live_g2_after", "live_g0_before", "live_g0_after")
    files = [GOLDEN / f"{name}.txt" for name in names]
    assert files[1].read_bytes() == files[2].read_bytes()
    drafting, plain = read(find_format("vllm-metrics"), files, Given()).runs
    assert (drafting.gamma, drafting.counts[0].accepted_by_position, plain.gamma) == (2, (255, 90), 0)


def test_the_same_pair_twice_is_refused(tmp_path: Path) -> None:
    form, files = find_format("vllm-metrics"), [GOLDEN / f"draft_{when}.txt" for when in ("before", "after")] * 2
    with pytest.raises(ValueError, match="expected every run once, got the same figures as"):
        write_import(tmp_path / "run", [form], files, read(form, files, Given()), Names())


@given(st.text(max_size=200))
def test_any_text_is_samples_or_one_line_of_error(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder) / "scrape.txt", "")
        path.write_text(text, encoding="utf-8")
        with suppress(ValueError):
            read_scrape(path)


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20))
def test_a_sample_comes_back(value: float, label: str) -> None:
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    line = f'vllm:x_total{{model_name="m",other="{escaped}"}} {value!r} 1700000000'
    assume("\r" not in label and len(line.splitlines()) == 1)
    with TemporaryDirectory() as folder:
        found = read_scrape(written(Path(folder) / "scrape.txt", line))
    assert found.total("vllm:x") == value
    assert found.models == ("m",)
