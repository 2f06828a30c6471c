"""The engine as a vLLM whose scheduler is ours: γ from the directory it is given, and a line for every step."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path


class LiveLog:
    def __init__(self, folder: Path, largest_gamma: int) -> None:
        self.folder, self.gamma, self.serial, self.step = folder, largest_gamma, 0, 0
        header = {"format": 1, "vllm": "0.32.0", "largest_gamma": largest_gamma, "planned_gammas": [0, largest_gamma]}
        header |= {"is_async": False, "method": "draft_model", "several_modules": False, "model_runner": 1}
        self._write({**header, "pipeline": 1, "max_num_seqs": 8})

    def follow(self) -> int:
        """γ that is set now, whatever the batch size."""
        path = self.folder / "gamma.json"
        if path.exists():
            setting = json.loads(path.read_text(encoding="utf-8"))
            self.serial, self.gamma = setting["serial"], setting["ranges"][-1][-1]
        return self.gamma

    def add(self, begun_s: float, accepted: Sequence[int], prompts: int) -> None:
        """A step whose rows accepted so many drafts, beside prompts."""
        rows = len(accepted) + prompts
        step = {"step": self.step, "serial": self.serial, "gamma": self.gamma, "t": begun_s, "done": time.monotonic()}
        step |= {"rows": rows, "tokens": rows, "running": rows, "waiting": 0, "preempted": 0, "prompts": prompts}
        self._write({**step, "rounds": [[self.gamma, one, 1] for one in accepted], "cut": 0})
        self.step += 1

    def _write(self, line: dict[str, object]) -> None:
        with (self.folder / "steps.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
