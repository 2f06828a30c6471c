from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from specgauge.bench.prompts import read_prompts
from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import load_config
from specgauge.configs.pairs import ModelConfig
from specgauge.configs.reading import MIB, check_regular, expanded, read_text
from specgauge.configs.schema import WorkloadConfig
from specgauge.sweeps.model_sizes import read_model_size


def test_a_text_comes_without_mark_and_with_line_feeds(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(path, MIB) == "a\nb\nc\n"
    path.write_bytes(b"a\nb\xff")
    with pytest.raises(ValueError, match=r"text:2: expected UTF-8 text, got other bytes \(byte 3\)$"):
        read_text(path, MIB)


def test_what_is_no_file_or_too_large_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", MIB + 1)  # no byte of it is on the disk
    found = {
        "fifo": "a FIFO", "link": "a FIFO", "socket": "a socket", "/dev/zero": "a device", "/dev/random": "a device",
        ".": "a directory",
    }  # fmt: skip
    for name, kind in found.items():
        with pytest.raises(ValueError, match=rf"{re.escape(name)}: expected a regular file, got {kind}$"):
            read_text(Path(name), MIB)
    with pytest.raises(ValueError, match=r"large: expected at most 1 MiB, got a larger file$"):
        check_regular(Path("large"), MIB)
    with pytest.raises(FileNotFoundError):
        read_text(Path("absent"), MIB)


def test_the_home_of_nobody_is_told_wherever_a_path_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert expanded("~/x") == Path("/somewhere/x")
    line = r"^[^\n]*~nosuchuser/x: expected a path, got the home of a user who is not known here$"
    with pytest.raises(ConfigError, match=line):
        load_config("~nosuchuser/x")
    with pytest.raises(ConfigError, match=line):
        load_config("quickstart", ["workload.prompts=~nosuchuser/x"])
    with pytest.raises(ValueError, match=line):
        read_prompts(WorkloadConfig(prompts="~nosuchuser/x"))
    with pytest.raises(ValueError, match=line):
        read_model_size(ModelConfig(model="~nosuchuser/x"), role="target")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/random"])
def test_devices_are_no_prompts_and_no_configuration(path: str) -> None:
    line = f"^{path}: expected a regular file, got a device"
    with pytest.raises(ValueError, match=line):
        read_prompts(WorkloadConfig(prompts=path))
    with pytest.raises(ConfigError, match=line):
        load_config(path)
