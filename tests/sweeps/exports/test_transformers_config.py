"""transformers' generation_config, read back by transformers itself."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from specgauge.sweeps.exports.answers import DraftSource
from specgauge.sweeps.exports.engine import Request
from specgauge.sweeps.exports.transformers_config import generation_config
from tests.sweeps.exports.made_answers import LAYERS, NGRAM, answers, single

ASSISTANT = {
    "num_assistant_tokens": 4,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.0,
}


@pytest.mark.parametrize(
    ("draft", "fields", "whose"),
    [
        (DraftSource(kind="model", model="org/draft"), ASSISTANT, "the assistant's"),
        (NGRAM, {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 4}, "the target's"),
        (LAYERS, {"assistant_early_exit": 6, **ASSISTANT}, "the target's"),
    ],
)
def test_transformers_reads_the_fields_back(
    tmp_path: Path, draft: DraftSource, fields: dict[str, Any], whose: str
) -> None:
    export = generation_config(single(draft=draft), Request())
    (tmp_path / "generation_config.json").write_text(export.content, encoding="utf-8")
    read = GenerationConfig.from_pretrained(tmp_path)
    known = vars(GenerationConfig())
    assert json.loads(export.content) == fields
    assert all(name in known and getattr(read, name) == value for name, value in fields.items())
    read.validate(strict=True)
    assert f"put these into {whose} generation_config.json" in export.notes


@pytest.mark.parametrize("draft", [DraftSource(kind="model", model="org/draft"), NGRAM, LAYERS])
def test_the_command_that_checks_it_is_python(draft: DraftSource) -> None:
    _, command, _ = generation_config(single(draft=draft), Request()).check.split("`")
    program, flag, code = shlex.split(command)
    assert (program, flag) == ("python", "-c")
    ast.parse(code)


def test_one_row_alone() -> None:
    with pytest.raises(ValueError, match="batch size: expected 1, all that transformers speculates for, got 8"):
        generation_config(single(), Request(batch_size=8))
    with pytest.raises(ValueError, match="batch size: expected one that runs/a knows, 4, 8, 32, got 1"):
        generation_config(answers(), Request())
