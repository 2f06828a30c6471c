import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.loader import load_config
from specgauge.sweeps.store import writer as opening
from specgauge.sweeps.store.files import StorageError, write_text_atomically
from specgauge.sweeps.store.journal import read_journal
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def measured(path: Path) -> Path:
    with made.begin(path) as run:
        run.journal.append(made.line("decode", [[0.5]]))
    return path


def test_a_new_run_is_made_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "made"
    with made.begin(path):
        assert names(path) == ["acceptance", "cells.jsonl", "config.yaml", "environment.json"]
    assert load_config(path / "config.yaml") == made.config()
    environment = json.loads((path / "environment.json").read_text())
    assert environment == {"schema": 1, **made.ENVIRONMENT}


def test_the_same_config_takes_the_run_up(tmp_path: Path) -> None:
    path = measured(tmp_path / "made")
    (path / "notes.txt").write_text("mine")
    with made.begin(path) as run:
        assert [entry.arm for entry in run.journal.lines] == ["decode"]


def test_the_name_alone_changes_nothing(tmp_path: Path) -> None:
    path = measured(tmp_path / "made")
    with made.begin(path, made.config(name="renamed")) as run:
        assert len(run.journal.lines) == 1


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"seed": 7}, "seed was 0, is now 7"),
        ({"grid": {"batch_size": 1, "context": 64, "gamma": "1:2"}}, r"grid.gamma was \[1, 2, 3\], is now \[1, 2\]"),
        (
            {"pairs": [{"name": "p", "target": "embedded", "draft": "org/other"}]},
            r'pairs\[0\].draft.model was "embedded", is now "org/other"',
        ),
        (
            {"sampling": [{"name": "greedy", "temperature": 0}, {"name": "t1"}]},
            r'sampling was \[\{"name": "greedy".*…, is now ',
        ),
    ],
)
def test_another_config_is_refused_and_the_field_named(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    path = measured(tmp_path / "made")
    before = {name: (path / name).read_bytes() for name in ("config.yaml", "cells.jsonl", "environment.json")}
    with pytest.raises(ValueError, match=found) as error:
        OpenRun.open(path, made.config(**changes), fresh=False)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{path}: holds a run of another config: ")
    assert "--fresh" in str(error.value)
    assert "--out" in str(error.value)
    assert {name: (path / name).read_bytes() for name in before} == before


def effort(**changes: Any) -> dict[str, Any]:
    return {"bootstrap_replicates": 50, **changes}


def test_other_effort_is_taken_over(tmp_path: Path) -> None:
    """The blocks stay, and whoever reads the run sees what it was measured with last."""
    path = measured(tmp_path / "made")
    more = made.config(precision=effort(max_seconds=999.0, max_blocks=77, relative_ci=0.001))
    with made.begin(path, more) as run:
        assert len(run.journal.lines) == 1
    kept = load_config(path / "config.yaml").precision
    assert (kept.max_seconds, kept.max_blocks, kept.relative_ci) == (999.0, 77, 0.001)
    with pytest.raises(ValueError, match=r"precision.block_samples was 5, is now 9"):
        OpenRun.open(path, made.config(precision=effort(max_seconds=1.0, block_samples=9)), fresh=False)
    assert load_config(path / "config.yaml").precision.max_seconds == 999.0


def test_a_run_of_a_release_without_a_field_is_taken_up(tmp_path: Path) -> None:
    """Its config.yaml lacks `validate.baseline_blocks`, which is as good as null, and no other."""
    config = made.config(validate={"gamma": 2})
    with made.begin(tmp_path / "made", config) as run:
        run.journal.append(made.line("decode", [[0.5]]))
    path = tmp_path / "made" / "config.yaml"
    whole = path.read_text(encoding="utf-8")
    older = re.sub(r"(, )?baseline_blocks: null|^ *baseline_blocks: null\n", "", whole, flags=re.MULTILINE)
    assert len(older) < len(whole)
    path.write_text(older, encoding="utf-8")
    with made.begin(tmp_path / "made", config) as run:
        assert len(run.journal.lines) == 1
    with pytest.raises(ValueError, match=r"validate\.baseline_blocks was absent, is now 1"):
        OpenRun.open(tmp_path / "made", made.config(validate={"gamma": 2, "baseline_blocks": 1}), fresh=False)


def test_a_run_without_results_takes_a_corrected_config(tmp_path: Path) -> None:
    made.begin(tmp_path / "made").close()
    made.begin(tmp_path / "made", made.config(seed=7)).close()
    assert load_config(tmp_path / "made" / "config.yaml").seed == 7


def test_recorded_acceptance_counts_as_results(tmp_path: Path) -> None:
    made.begin(tmp_path / "made").close()
    (tmp_path / "made" / "acceptance" / "p--greedy.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="seed was 0, is now 7"):
        OpenRun.open(tmp_path / "made", made.config(seed=7), fresh=False)


def test_fresh_renames_the_old_run(tmp_path: Path) -> None:
    path = measured(tmp_path / "made")
    made.begin(path, made.config(seed=7), fresh=True).close()
    assert read_journal(path / "cells.jsonl").lines == ()
    assert load_config(path / "config.yaml").seed == 7
    assert len(read_journal(tmp_path / "made.old-1" / "cells.jsonl").lines) == 1
    made.begin(path, fresh=True).close()
    assert names(tmp_path) == ["made", "made.old-1", "made.old-2"]


def test_fresh_where_nothing_is_makes_no_old_run(tmp_path: Path) -> None:
    made.begin(tmp_path / "made", fresh=True).close()
    assert names(tmp_path) == ["made"]


@pytest.mark.parametrize("damage", ["config.yaml", "cells.jsonl", "environment.json"])
def test_a_damaged_run_is_refused_and_can_be_put_aside(tmp_path: Path, damage: str) -> None:
    path = measured(tmp_path / "made")
    (path / damage).write_text("{: \n")
    with pytest.raises(ValueError, match=r"--fresh") as error:
        made.begin(path)
    assert "\n" not in str(error.value)
    assert str(path / damage) in str(error.value)
    made.begin(path, fresh=True).close()


def test_results_without_a_config_are_refused(tmp_path: Path) -> None:
    path = measured(tmp_path / "made")
    (path / "config.yaml").unlink()
    with pytest.raises(ValueError, match=r"there are results but config.yaml is missing; start anew with --fresh"):
        made.begin(path)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_in_the_place_is_refused(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "made").write_text("mine")
    with pytest.raises(ValueError, match="made: is a file, a run needs a directory; give another --out"):
        OpenRun.open(tmp_path / "made", made.config(), fresh=fresh)
    assert (tmp_path / "made").read_text() == "mine"
    with pytest.raises(ValueError, match=r"made/below: cannot write there: .*; give another --out"):
        OpenRun.open(tmp_path / "made" / "below", made.config(), fresh=fresh)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(("name", "shown"), [("thesis.tex", "thesis.tex"), ("config.yaml", "config.yaml")])
def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path, fresh: bool, name: str, shown: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=rf"holds files that are no run of specgauge \({shown}\); give another --out"):
        OpenRun.open(tmp_path, made.config(), fresh=fresh)
    assert names(tmp_path) == [name]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("this user can write anywhere")
    with pytest.raises(ValueError, match="this directory is not writable; change its permissions, or give another"):
        OpenRun.open(folder, made.config(), fresh=False)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_an_impossible_name_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        OpenRun.open(tmp_path / name, made.config(), fresh=False)


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    path = tmp_path / "made"
    with made.begin(path):
        for fresh in (False, True):
            with pytest.raises(ValueError, match="another specgauge process is writing this run"):
                made.begin(path, fresh=fresh)
        assert names(tmp_path) == ["made"]
    made.begin(path).close()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"device": "H200"}, "device 'cpu', here it is 'H200'"),
        ({"cpu": None}, "cpu 'Some CPU', here it is None"),
        ({"threads": 4}, "threads 2, here it is 4"),
        ({"packages": {**made.ENVIRONMENT["packages"], "torch": "3"}}, "packages.torch '2.13.0', here it is '3'"),  # type: ignore[dict-item]
    ],
)
def test_another_machine_is_refused(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    path = measured(tmp_path / "made")
    with OpenRun.open(path, made.config(), fresh=False) as run:
        run.check_environment({**made.ENVIRONMENT, "commit": "another", "temperature_c": 50})
        with pytest.raises(ValueError, match=f"measured with {found}; start anew with --fresh"):
            run.check_environment({**made.ENVIRONMENT, **changes})


def test_a_machine_may_change_before_anything_is_measured(tmp_path: Path) -> None:
    made.begin(tmp_path / "made").close()
    with OpenRun.open(tmp_path / "made", made.config(), fresh=False) as run:
        run.check_environment({**made.ENVIRONMENT, "device": "H200"})
    assert json.loads((tmp_path / "made" / "environment.json").read_text())["device"] == "H200"


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "predictions.csv"
    write_text_atomically(path, "old\n")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"predictions.csv: cannot write, No space left on device: .* run the same"):
        write_text_atomically(path, "new\n")
    assert path.read_text() == "old\n"
    assert names(tmp_path) == ["predictions.csv"]


def test_a_full_disk_at_the_start_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise StorageError(f"{path}: cannot write, No space left on device")

    monkeypatch.setattr(opening, "write_text_atomically", full)
    with pytest.raises(StorageError, match=r"config.yaml: cannot write, No space left on device$"):
        made.begin(tmp_path / "made")
