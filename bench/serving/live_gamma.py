"""γ set in a running vLLM, and what each of its steps did: our side of the scheduler in `vllm_gamma/`.

live = LiveGamma(folder)                       # made with mode 0700, or the user's own
command = live.command(served, (1, 2, 4), port=8000)    # one server for γ = 0, 1, 2, 4
serial = live.set(2)                           # before the next step
await live.taken(serial)                       # a step has verified drafts of that γ
rounds_of(live.steps(serial))                  # T_round(B, γ) and Ω at the batch sizes that the steps had
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specgauge.bench.serving.live_steps import LiveStep, step_of
from specgauge.bench.serving.presets import Command, Served, filled, preset, vllm_config
from specgauge.configs.engines import SPECULATIVE

FORMAT = 1
MODULES = Path(__file__).parent / "vllm_gamma"
SCHEDULER = "specgauge_gamma_scheduler.GammaScheduler"
DIRECTORY = "SPECGAUGE_GAMMA_DIR"
GAMMA_FILE, STEP_FILE = "gamma.json", "steps.jsonl"
LAST_BATCH_SIZE = 1024
"""Where the last range of a schedule ends; vLLM carries it on."""
POLL_S = 0.02
_WITHOUT_FORWARD = {"ngram", "ngram_gpu", "suffix"}
"""Methods that run no model to draft."""
_FEWER = {1: {"draft_model", "eagle", "eagle3", "mtp"}, 2: {"eagle", "eagle3", "mtp"}}
"""Methods that run their model fewer times at a smaller γ, by vLLM's model runner; a draft model of its own under the
second runner drafts the largest γ each time (read in 0.32)."""


@dataclass(frozen=True, kw_only=True)
class LiveEngine:
    """The engine that logs, as it told at its start."""

    version: str
    largest_gamma: int
    planned_gammas: tuple[int, ...]
    """γ that its own schedule has: CUDA graphs are captured for these."""
    is_async: bool
    method: str
    several_modules: bool
    """Whether MTP has a module for each draft: under the second runner all of them run each time."""
    model_runner: int
    pipeline: int
    """Stages that work on steps at once; over 1, the time between steps is no round."""
    max_num_seqs: int

    @property
    def drafts_fewer(self) -> bool:
        """Whether a smaller γ costs fewer drafts. Where not, T_round of γ below the largest is not a fixed server's."""
        if self.method in _WITHOUT_FORWARD:
            return True
        all_modules = self.model_runner == 2 and self.several_modules
        return self.method in _FEWER.get(self.model_runner, ()) and not all_modules


class LiveGamma:
    """The directory through which one engine takes γ and tells its steps; only its owner can use it."""

    def __init__(self, folder: Path) -> None:
        """ValueError where the directory is not this user's alone; OSError where it cannot be made."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not folder.is_dir() or folder.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ValueError(
                f"{folder}: expected a directory of this user with mode 0700, got one of user {found.st_uid} with mode "
                f"{found.st_mode & 0o7777:04o}; chmod 700 it, or name another"
            )
        self.folder = folder.resolve()
        self._serial = 0
        self._read = 0
        self._engine: LiveEngine | None = None
        self._steps: list[LiveStep] = []
        self._error: str | None = None
        for name in (STEP_FILE, GAMMA_FILE):
            (self.folder / name).unlink(missing_ok=True)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The variables that the engine needs, its PYTHONPATH before that of ``base``."""
        paths = [str(MODULES), *filter(None, [base.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths), DIRECTORY: str(self.folder)}

    def command(
        self,
        served: Served,
        gammas: Sequence[int],
        *,
        port: int,
        base: Mapping[str, str] = os.environ,
        command: Sequence[str] | None = None,
    ) -> Command:
        """One server for all these γ and for 0: the preset of vLLM, or a user's command with {speculative} in it.

        Raises:
            ValueError: another engine than vLLM; no γ above 0; a command without {speculative}; as `filled`.
        """
        live = for_all(served, gammas)
        if command is not None and not any(SPECULATIVE in word for word in command):
            raise ValueError(
                f"launch.live: expected {SPECULATIVE} in launch.command, which starts it for every γ, got none"
            )
        largest = max(gammas)
        if command is None:
            made = preset(live, gamma=largest, port=port, folder=self.folder)
        else:
            made = filled(command, gamma=largest, port=port, folder=self.folder, served=live)
            made = replace(made, words=(*made.words, *live.options))
        return replace(made, env={**made.env, **self.environment(base)})

    def set(self, gamma: int) -> int:
        """Set γ from the next step on, whatever its batch size; the serial number of the setting.

        Raises:
            ValueError: γ below 0, or above the largest of the engine.
        """
        return self.set_schedule([(1, LAST_BATCH_SIZE, gamma)])

    def set_schedule(self, ranges: Sequence[tuple[int, int, int]]) -> int:
        """Set γ by batch size, (first, last, γ) from 1 on without gaps; as `set`."""
        largest = self._engine.largest_gamma if self._engine else None
        for *_, gamma in ranges:
            if gamma < 0 or (largest is not None and gamma > largest):
                upper = "" if largest is None else f" to {largest}, which the server was started with"
                raise ValueError(f"gamma: expected 0{upper or ' or more'}, got {gamma}")
        self._serial += 1
        setting = {"serial": self._serial, "ranges": [list(one) for one in ranges]}
        path = self.folder / GAMMA_FILE
        part = path.with_suffix(".part")
        part.touch(mode=0o600)
        part.write_text(json.dumps(setting), encoding="utf-8")
        part.replace(path)
        return self._serial

    async def taken(self, serial: int, *, timeout_s: float = 60.0) -> LiveStep:
        """The first step whose drafts were verified under a setting: from it on rounds are all of it.

        Raises:
            ValueError: none within the time, in which requests must be running; or the engine refused.
        """
        until = time.monotonic() + timeout_s
        while True:
            found = self.steps(serial)
            if len(found) > 1:
                return found[1]
            if time.monotonic() > until:
                done = self._steps[-1].step + 1 if self._steps else 0
                raise ValueError(
                    f"{self.folder}: expected two steps with setting {serial} within {timeout_s:g} s, got {len(found)} "
                    f"(steps so far: {done}); γ is taken only while requests run"
                )
            await asyncio.sleep(POLL_S)

    @property
    def engine(self) -> LiveEngine | None:
        """The engine, once it has started; ValueError where it refused."""
        self._follow()
        return self._engine

    @property
    def refusal(self) -> str | None:
        """Why the engine refused to start with this scheduler, or to take a setting; None where it did not."""
        try:
            self._follow()
        except ValueError as error:
            return str(error)
        return None

    def steps(self, serial: int | None = None) -> list[LiveStep]:
        """The steps of this engine so far, or those of one setting; ValueError where the engine refused a setting."""
        self._follow()
        return [step for step in self._steps if serial is None or step.serial == serial]

    def _follow(self) -> None:
        path = self.folder / STEP_FILE
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            for line in whole.splitlines():
                self._take(json.loads(line))
        if self._error is not None:
            raise ValueError(self._error)

    def _take(self, line: dict[str, Any]) -> None:
        if "error" in line:
            self._error = line["error"]
        elif "format" in line:
            if line["format"] != FORMAT:
                self._error = f"{self.folder / STEP_FILE}: expected format {FORMAT}, got {line['format']!r}"
                return
            self._engine, self._steps = _engine(line), []
        else:
            self._steps.append(step_of(line))


def _engine(line: Mapping[str, Any]) -> LiveEngine:
    return LiveEngine(
        version=line["vllm"],
        largest_gamma=line["largest_gamma"],
        planned_gammas=tuple(line["planned_gammas"]),
        is_async=line["is_async"],
        method=line["method"],
        several_modules=line["several_modules"],
        model_runner=line["model_runner"],
        pipeline=line["pipeline"],
        max_num_seqs=line["max_num_seqs"],
    )


def for_all(served: Served, gammas: Sequence[int]) -> Served:
    """A served pair whose server takes all these γ and 0.

    Its schedule has a batch size for each of them, and the largest beyond: vLLM captures CUDA graphs for the γ that its
    schedule has.  What it says is replaced by what is set.

    Raises:
        ValueError: another engine than vLLM, or no γ above 0.
    """
    if served.kind != "vllm":
        raise ValueError(f"launch.live: expected engine.kind vllm, whose γ can be set while it runs, got {served.kind}")
    largest = max(gammas, default=0)
    if largest < 1:
        raise ValueError(f"launch.live: expected a γ above 0, got {', '.join(map(str, gammas)) or 'none'}")
    smaller = sorted({0, *gammas} - {largest})
    first = [(size, size, gamma) for size, gamma in enumerate(smaller, start=1)]
    schedule = (*first, (len(first) + 1, LAST_BATCH_SIZE, largest))
    options = (*served.options, "--scheduler-cls", SCHEDULER, "--cudagraph-metrics")
    return replace(served, schedule=schedule, options=options)


def engine_arguments(served: Served, gammas: Sequence[int]) -> dict[str, Any]:
    """Arguments of vLLM's `LLM(…)` for all these γ in this process, whose environment has `LiveGamma.environment`.

    Raises:
        ValueError: as `for_all`.
    """
    return {
        "model": served.target,
        "speculative_config": vllm_config(for_all(served, gammas), max(gammas)),
        "scheduler_cls": SCHEDULER,
        "cudagraph_metrics": True,
    }
