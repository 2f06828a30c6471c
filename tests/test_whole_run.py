"""One small run of the shipped pair from the configuration to the report, with everything real: `specgauge run`.

Two cells, greedy and drawn, are timed, decoded end to end at two γ and under two policies, with rollouts; lookups as
the draft take the same way without them.
"""

import json
from pathlib import Path

import pandas as pd
import pytest

from specgauge.bench.models.pair import EMBEDDED
from specgauge.cli.main import main
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import ValidationRow

if not (EMBEDDED / "target" / "config.json").exists():
    pytest.skip("the embedded weights are not in this checkout", allow_module_level=True)

SMALL = (
    "pairs[0].threads=1",
    "limits.run_seconds=null",
    "sampling=[{name: greedy, temperature: 0}, {name: t1, temperature: 1}]",
    "workload.limit=2",
    "workload.prompt_tokens=[32]",
    "workload.max_new_tokens=10",
    "grid.batch_size=[2]",
    "grid.context=[32]",
    "grid.gamma=1:3",
    "precision.min_blocks=2",
    "precision.max_blocks=2",
    "precision.block_samples=1",
    "acceptance.rollouts=2",
    "validate.gamma=[1,3]",
    "validate.policies=[heuristic,renewal]",
)
ARMS = {"plain", "loop", "generate", "speculate:1", "speculate:3", "adaptive:heuristic", "adaptive:renewal"}


def run(path: Path, *settings: str) -> Path:
    words = [word for setting in (*SMALL, *settings) for word in ("--set", setting)]
    assert main(["run", "quickstart", "--out", str(path), *words]) == 0
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("whole") / "run")


def test_everything_is_measured_and_decoded(whole: Path) -> None:
    finished = Run.open(whole)
    assert {line.status for line in finished.journal()} == {"ok"}
    requests = pd.read_parquet(whole / "requests.parquet")
    assert set(requests["arm"]) == ARMS
    assert set(requests["sampling"]) == {"greedy", "t1"}
    assert (requests["tokens"].map(len) <= 10).all()
    rows = finished.validation()
    assert {(row["sampling"], row["gamma"]) for row in rows} == {(s, g) for s in ("greedy", "t1") for g in (1, 3)}
    assert all(row["lossless"] and row["speedup_measured"] > 0 for row in rows)
    assert all(row["t_overhead_s"] is not None and row["cost_error"] is not None for row in rows)
    from_counts = [row["speedup_measured"] * (1 + row["cost_error"]) for row in rows]
    assert [row["speedup_from_counts"] for row in rows] == pytest.approx(from_counts), "the figures shown add up"
    greedy = [row for row in rows if row["sampling"] == "greedy"]
    assert [(row["texts_same"] + row["texts_tied"], row["texts_differ"]) for row in greedy] == [(4, 0)] * 2
    assert {row["texts_same"] for row in rows if row["sampling"] == "t1"} == {None}


def test_rejected_drafts_are_followed(whole: Path) -> None:
    """At most two starts of every text of nine positions, each with the draft's next steps, up to γ."""
    rollouts = pd.read_parquet(whole / "rollouts.parquet")
    starts = rollouts.groupby(["sampling", "prompt", "repetition"])["start"].nunique()
    assert set(starts.index.get_level_values("sampling")) == {"greedy", "t1"}
    assert (starts <= 2).all()
    assert starts.sum() > 0
    assert set(rollouts["depth"]) == {1, 2, 3}


def test_policies_are_tuned_decoded_and_replayed(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = json.loads((whole / "policies.json").read_text())
    assert [cell["left_out"] for cell in tuned["cells"]] == [{}, {}]
    assert all({*half["policies"]} == {"heuristic", "renewal"} for cell in tuned["cells"] for half in cell["halves"])
    assert main(["replay", str(whole), "--replicates", "2", "--json"]) == 0
    replays = json.loads(capsys.readouterr().out)["replays"]
    assert [entry["off_path"] for entry in replays] == ["measured", "measured"]
    assert all(entry["policies"]["renewal"]["speedup"]["value"] > 0 for entry in replays)


def test_the_report_and_the_answers_are_written(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert "Decoded end to end in 2 cells" in page
    assert main(["recommend", str(whole)]) == 0
    out = capsys.readouterr().out
    assert "embedded, greedy" in out
    assert "TRUST: " in out


def test_lookups_are_measured_alike(tmp_path: Path) -> None:
    greedy = "sampling=[{name: greedy, temperature: 0}]"
    path = run(tmp_path / "run", "pairs[0].draft=ngram", greedy, "acceptance.rollouts=0", "validate.policies=[renewal]")
    rows = Run.open(path).rows(ValidationRow)
    assert [(row.gamma, row.policy) for row in rows] == [(1, None), (3, None), (None, "renewal")]
    assert all(row.speedup_measured is not None for row in rows)
