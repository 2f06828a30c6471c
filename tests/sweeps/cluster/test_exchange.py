"""What travels between a run directory and a node: the files of a part, what is new in them, and what is kept."""

from __future__ import annotations

from pathlib import Path

from specgauge.model.settings import Setting
from specgauge.sweeps.cluster.exchange import MACHINE, Changes, packed, settle, take_in, unpack
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run.session import Part
from specgauge.sweeps.run.worker import work
from specgauge.sweeps.store.rundir import CELLS, POLICIES, PROMPTS, REQUESTS, ROLLOUTS, ROUNDS, Run, prompt_rows
from specgauge.sweeps.store.tables import (
    add_missing_rollouts,
    add_rollouts,
    has_rollouts,
    read_decoded,
    read_rollouts,
    read_tuned,
)
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made
from tests.sweeps.fake_bench import FakeBench
from tests.sweeps.store.test_tables import chains

CONFIG = made.config(
    grid={"batch_size": [1, 2], "context": [64, 65], "gamma": "1:2"},
    validate={"gamma": 2, "prompts": 4, "max_new_tokens": 6, "policies": ["heuristic"], "max_seconds": None},
)
SETTING = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")
PARTS = {
    size: Part(acceptance=False, cells=tuple(one.id for one in plan_cells(CONFIG) if one.batch_size == size))
    for size in (1, 2)
}


def measured_by(folder: Path, source: Path, part: Part) -> Changes:
    """A node's folder with that part measured, and its changes since it was made."""
    with made.begin(source, CONFIG) as opened:
        unpack(packed(opened, "p", part), folder)
    changes = Changes(folder)
    assert changes.new() == {}
    outcome = work(folder, "p", part=part)
    assert not isinstance(outcome, Exception)
    assert outcome.bad_input is None
    return changes


def test_parts_measured_apart_make_the_run_that_one_process_makes(tmp_path: Path, bench: FakeBench) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    made.begin(whole, CONFIG).close()
    work(whole, "p")
    for name, part in (("a", Part(cells=())), ("b", PARTS[1]), ("c", PARTS[2])):
        changes = measured_by(tmp_path / name, run, part)
        with made.begin(run, CONFIG) as opened:
            files = changes.new()
            assert take_in(opened, files, machine=name) == (2 * 7 * 3 if part.cells else 0)
            again = {key: content for key, content in files.items() if key != CELLS}
            assert take_in(opened, again, machine=name) == 0, "tables are kept once"
    lines, alone = (Run.open(path).journal() for path in (run, whole))
    assert sorted(line.key for line in lines) == sorted(line.key for line in alone)
    assert {line.notes[MACHINE] for line in lines} == {"b", "c"}
    for own, other in zip(read_decoded(run), read_decoded(whole), strict=True):
        keys = ["batch_size", "start_context", "block", "arm", "prompt"]
        columns = [name for name in keys if name in own.columns]
        assert own.sort_values(columns)[columns].values.tolist() == other.sort_values(columns)[columns].values.tolist()
    assert read_tuned(run).keys() == read_tuned(whole).keys()
    assert prompt_rows(run) == prompt_rows(whole)
    assert Run.open(run).acceptance_of("p", "greedy").equals(Run.open(whole).acceptance_of("p", "greedy"))


def test_a_node_is_given_its_own_part_and_goes_on_from_it(tmp_path: Path, bench: FakeBench) -> None:
    made.begin(tmp_path / "run", CONFIG).close()
    work(tmp_path / "run", "p")
    bench.measured.clear()
    bench.decoded.clear()
    with made.begin(tmp_path / "run", CONFIG) as opened:
        files = packed(opened, "p", PARTS[2])
    assert {POLICIES, PROMPTS, REQUESTS, ROUNDS} <= files.keys()
    unpack(files, tmp_path / "node")
    assert {line.cell for line in Run.open(tmp_path / "node").journal()} == set(PARTS[2].cells or ())
    requests, rounds = read_decoded(tmp_path / "node")
    assert set(requests["batch_size"]) == set(rounds["batch_size"]) == {2}
    work(tmp_path / "node", "p", part=PARTS[2])
    assert (bench.measured, bench.decoded) == ([], [])


def test_what_a_node_calls_its_models_is_no_other_configuration(tmp_path: Path) -> None:
    """Its lines are those of a run of its own there, and of the run again once they are back."""
    folder = tmp_path / "model"
    folder.mkdir()
    here = made.config(pairs=[{"name": "p", "target": str(folder), "draft": "ngram"}])
    sent = made.config(pairs=[{"name": "p", "target": "./model", "draft": "ngram"}])
    cell, *_ = plan_cells(here)
    line = {"axes": cell.axes, "arm": "decode", "status": "ok", "samples_s": [[1.0]]}
    with made.begin(tmp_path / "run", sent) as opened:
        opened.journal.append({**line, "block": 0})
        unpack(packed(opened, "p", Part()), tmp_path / "node")
        (tmp_path / "node" / "model").mkdir()
        config = settle(tmp_path / "node")
        assert config.pairs[0].target.label == str(tmp_path / "node" / "model")
        changes = Changes(tmp_path / "node")
        with OpenRun(tmp_path / "node", config, fresh=False) as node:
            assert node.journal.done(cell.id, "decode", 0)
            node.journal.append({**line, "block": 1})
        assert take_in(opened, changes.new(), machine="a") == 1
        assert [one.block for one in opened.journal.lines] == [0, 1]
    assert len(Run.open(tmp_path / "run").journal()) == 2


def test_a_line_that_is_torn_or_has_a_result_already_is_not_kept(tmp_path: Path) -> None:
    first, *_ = plan_cells(CONFIG)
    line = {"axes": first.axes, "arm": "decode", "block": 0}
    made.begin(tmp_path / "node", CONFIG).close()
    changes = Changes(tmp_path / "node")
    with made.begin(tmp_path / "node", CONFIG) as node:
        node.journal.append({**line, "status": "failed", "reason": "loading", "samples_s": []})
    with (tmp_path / "node" / CELLS).open("ab") as file:
        file.write(b'{"torn')
    with made.begin(tmp_path / "run", CONFIG) as opened:
        opened.journal.append({**line, "status": "ok", "samples_s": [[1.0]]})
        files = changes.new()
        assert files[CELLS].endswith(b"}\n")
        assert take_in(opened, files, machine="a") == 0
        assert [one.status for one in opened.journal.lines] == ["ok"]


def test_chains_of_a_setting_are_kept_once(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.parquet", tmp_path / ROLLOUTS
    add_rollouts(theirs, SETTING, chains(3))
    for _ in range(2):
        add_missing_rollouts(ours, theirs)
        assert has_rollouts(ours, SETTING)
        assert len(read_rollouts(ours)) == len(read_rollouts(theirs))
