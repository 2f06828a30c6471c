"""Runs command lines in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgauge.cli.main import main
from specgauge.exits import DEBUG_VARIABLE

Run = Callable[..., tuple[int, str, str]]
Document = Callable[..., dict[str, Any]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command line in an empty folder; gives its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def document(command: Run) -> Document:
    """Runs a command line with --json; gives its one strict JSON document."""

    def run(*arguments: str) -> dict[str, Any]:
        code, out, err = command(*arguments, "--json")
        assert (code, err) == (0, "")
        parsed: dict[str, Any] = json.loads(out, parse_constant=pytest.fail)
        return parsed

    return run
