from __future__ import annotations

from pathlib import Path

import pytest

from specgauge.configs.errors import ConfigError

from specgauge.configs.loader import load_config, shipped_configs
from specgauge.configs.loader import shipped_text
from tests.configs.texts import MINIMAL, error_of, write

SHIPPED = "gpu, proof, quickstart, wide"
ALLOWED = f"allowed: the path of a YAML file, or a shipped name: {SHIPPED}"


def error(source: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    return str(caught.value)


def test_the_shipped_names() -> None:
    assert shipped_configs() == ["gpu", "proof", "quickstart", "wide"]
    assert [load_config(name).name for name in shipped_configs()] == ["gpu", "proof", "quickstart", "wide"]


def test_shipped_text_keeps_its_comments() -> None:
    assert shipped_text("quickstart").startswith("# ")
    with pytest.raises(ConfigError) as caught:
        shipped_text("quick")
    assert str(caught.value) == f"no shipped config 'quick'; did you mean 'quickstart'? shipped: {SHIPPED}"


def test_the_quickstart_is_small_enough_to_try() -> None:
    config = load_config("quickstart")
    assert [pair.target.model for pair in config.pairs] == ["embedded"]
    assert [(one.name, one.temperature) for one in config.sampling] == [("greedy", 0.0), ("t1", 1.0)]
    assert config.grid.batch_size == (1, 4)
    assert config.grid.context == (128, 256)
    assert config.grid.gamma == (1, 2, 3, 4, 5, 6)
    assert config.precision.max_seconds is not None
    assert config.precision.max_seconds * len(config.grid.batch_size) <= 120


def test_a_missing_file_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert error("quikstart") == f"quikstart: no such file; did you mean 'quickstart'? {ALLOWED}"
    assert error("configs/quickstart.yaml") == (
        f"configs/quickstart.yaml: no such file; did you mean 'quickstart'? {ALLOWED}"
    )
    assert error("zzz.yaml") == f"zzz.yaml: no such file, {ALLOWED}"
    write(tmp_path, MINIMAL, "mine.yaml")
    assert error("mime.yaml") == f"mime.yaml: no such file; did you mean 'mine.yaml'? {ALLOWED}"


def test_a_directory_is_told_apart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert error(run) == f"{run}: found a directory, {ALLOWED}"
    write(run, MINIMAL, "config.yaml")
    assert error(run) == f"{run}: found a directory; did you mean '{run}/config.yaml'? {ALLOWED}"


def test_a_directory_does_not_hide_a_shipped_name_but_a_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_config("quickstart").name == "quickstart"
    write(tmp_path, MINIMAL, "wide")
    assert load_config("wide").name == "x"


def test_a_fault_in_a_shipped_file_names_the_file() -> None:
    with pytest.raises(ConfigError, match=r"^--set grid.gama=1: unknown key 'gama' in grid; did you mean 'gamma'\?"):
        load_config("quickstart", ["grid.gama=1"])


def test_an_unreadable_file_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(OSError, match="too long"):
        load_config(path)
    assert error_of(write(tmp_path, "")).startswith("file.yaml:1: the file is empty")
