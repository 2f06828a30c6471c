"""What is met in models and prompts reaches the answer of a run, with its remedy, each once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from specgauge.bench.notes import Note
from specgauge.sweeps.answer_table import answer_text
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.run import runner
from specgauge.sweeps.store.rundir import Run, prompt_rows
from tests.sweeps import decoded, made
from tests.sweeps.apart import pairs
from tests.sweeps.fake_bench import PROMPTS, FakeBench


def note(code: str) -> Note:
    return Note(code=code, message=f"{code} met", remedy=f"mend {code}")


@pytest.mark.parametrize(("standing", "codes"), [("same", []), ("differs", ["generate_differs"])])
def test_texts_decoded_end_to_end_are_held_against_generate(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch, standing: str, codes: list[str]
) -> None:
    plain = decoded.Batch.requests

    def requests(self: decoded.Batch, arm: str) -> list[dict[str, Any]]:
        found = plain(self, arm)
        changes = {"against_plain": standing, "leaves_plain_at": 3 if codes else None} if arm == "generate" else {}
        return [row | changes for row in found]

    monkeypatch.setattr(decoded.Batch, "requests", requests)
    config = made.config(validate={"gamma": 2})
    for _ in ("decoded now", "decoded before"):
        outcome = bench.measure_pair(tmp_path / "run", config)
        assert [row.code for row in outcome.warnings] == codes
    assert not codes or "10 of 10 greedy texts" in outcome.warnings[0].message
    assert not codes or outcome.warnings[0].message.endswith("first at context 64, token 3")


def replace(monkeypatch: pytest.MonkeyPatch, where: str, work: Any) -> None:
    module, _, name = f"specgauge.bench.{where}".rpartition(".")
    monkeypatch.setattr(sys.modules[module], name, work)


def test_notes_are_warnings_of_the_run(tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(workload: Any, tell: Any = None, *, seed: int = 0) -> Any:
        assert seed == 3
        tell(note("rows"))
        return PROMPTS

    def encode(prompts: Any, tokenizer: Any, workload: Any, tell: Any) -> Any:
        tell(note("encoded"))
        return [[number] for number in range(len(prompts))]

    checked = []

    def check(model: Any, prompts: Any, *, context: int, new_tokens: int) -> list[Note]:
        checked.append((model.name, len(prompts), context, new_tokens))
        return [note("generated")]

    replace(monkeypatch, "prompts.read_prompts", read)
    replace(monkeypatch, "prompts.encode_prompts", encode)
    replace(monkeypatch, "prompts.fitting_prompts", lambda *_: ([1, 3], [note("left_out")]))
    replace(monkeypatch, "models.generation.generation_notes", lambda *_: [note("settings")])
    replace(monkeypatch, "end_to_end.generate_check.generate_notes", check)
    monkeypatch.setattr(bench, "notes", (note("loaded"),))
    config = made.config(pairs=pairs("p", "q"), seed=3, grid={"context": [64, 65]})
    assert runner.run(config, out=tmp_path / "run") == 0
    met = [row for row in Run.open(tmp_path / "run").warnings if row["message"].endswith(" met")]
    codes = ["rows", "loaded", "settings", "generated", "encoded", "left_out"]
    assert met == [{"code": code, "message": f"{code} met", "remedy": f"mend {code}"} for code in codes]
    assert checked == [
        (f"{pair} {role}", 2, 65, config.workload.max_new_tokens) for pair in "pq" for role in ("target", "draft")
    ]
    assert [(row.pair, row.prompt, row.text) for row in prompt_rows(tmp_path / "run")] == [
        (pair, number, PROMPTS[kept].text) for pair in "pq" for number, kept in enumerate((1, 3))
    ]
    told = answer_text(recommend(Run.open(tmp_path / "run")), every_warning=True)
    assert "warning: generated met → mend generated" in told
