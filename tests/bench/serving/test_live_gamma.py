import asyncio
import json
import re
import stat
from pathlib import Path

import pytest

from specgauge.bench.serving.live_gamma import (
    DIRECTORY,
    MODULES,
    SCHEDULER,
    LiveEngine,
    LiveGamma,
    engine_arguments,
    for_all,
)
from specgauge.bench.serving.presets import Served
from tests.bench.serving.fake_vllm import Engine, Request, config_of, scheduler_module, write_as

VLLM = Served(kind="vllm", target="org/model", draft="org/small", options=("--max-model-len", "2048"))
SCHEDULE = [[1, 1, 0], [2, 2, 1], [3, 3, 2], [4, 1024, 4]]


def test_the_directory_is_made_for_its_owner_and_an_open_one_is_refused(tmp_path: Path) -> None:
    live = LiveGamma(tmp_path / "a" / "live")
    assert stat.S_IMODE(live.folder.stat().st_mode) == 0o700
    live.set(2)
    assert stat.S_IMODE((live.folder / "gamma.json").stat().st_mode) == 0o600
    live.folder.chmod(0o750)
    with pytest.raises(ValueError, match=r"expected a directory of this user with mode 0700, got .* mode 0750; chmod"):
        LiveGamma(live.folder)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match="expected a directory of this user"):
        LiveGamma(tmp_path / "link")


def test_one_server_for_all_gammas(tmp_path: Path) -> None:
    live = LiveGamma(tmp_path / "live")
    made = live.command(VLLM, (4, 1, 2), port=8001, base={"PYTHONPATH": "mine", "PATH": "/bin"})
    assert made.env == {"PYTHONPATH": f"{MODULES}:mine", DIRECTORY: str(live.folder)}
    *start, option, config = made.words[: made.words.index("--max-model-len")]
    assert start[:3] == ["vllm", "serve", "org/model"]
    told = ("--enable-per-request-metrics", "--per-request-spec-decode-metrics", "detailed")
    assert tuple(start[-3:]) == told
    assert option == "--speculative-config"
    assert json.loads(config) == {
        "method": "draft_model",
        "model": "org/small",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": SCHEDULE,
    }
    tail = ("--max-model-len", "2048", "--scheduler-cls", SCHEDULER, "--cudagraph-metrics")
    assert made.words[-5:] == tail
    own = live.command(VLLM, (4, 1, 2), port=8001, base={}, command=["serve", "-p", "{port}", "{speculative}"])
    assert own.words == ("serve", "-p", "8001", *told, option, config, *tail)
    assert own.env["PYTHONPATH"] == str(MODULES)
    with pytest.raises(ValueError, match=r"^launch\.live: expected \{speculative\} in launch\.command"):
        live.command(VLLM, (4,), port=8001, command=["serve", "{port}", "{gamma}"])


def test_the_arguments_in_process_are_those_of_the_command() -> None:
    assert engine_arguments(VLLM, (1, 2, 4)) == {
        "model": "org/model",
        "speculative_config": {
            "method": "draft_model",
            "model": "org/small",
            "num_speculative_tokens": 4,
            "num_speculative_tokens_per_batch_size": SCHEDULE,
        },
        "scheduler_cls": SCHEDULER,
        "cudagraph_metrics": True,
    }


@pytest.mark.parametrize(
    ("served", "gammas", "words"),
    [
        (Served(kind="llama_cpp", target="t", draft="d"), (1,), "expected engine.kind vllm, whose γ can be set while"),
        (VLLM, (), "expected a γ above 0, got none"),
        (VLLM, (0,), "expected a γ above 0, got 0"),
    ],
)
def test_what_cannot_be_set_live_is_refused(served: Served, gammas: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"launch.live: {words}")):
        for_all(served, gammas)


def test_a_setting_is_taken_once_drafts_of_it_were_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveGamma(tmp_path / "live")
    monkeypatch.setenv(DIRECTORY, str(live.folder))
    scheduler = scheduler_module().GammaScheduler(vllm_config=config_of())
    engine = Engine(scheduler)
    scheduler.add_request(Request("a"))
    live.set(1)
    engine.run(3)
    serial = live.set(3)
    engine.run(1)
    with pytest.raises(ValueError, match=r"expected two steps with setting 2 within 0 s, got 1 \(steps so far: 4\)"):
        asyncio.run(live.taken(serial, timeout_s=0))
    engine.run(1)
    first = asyncio.run(live.taken(serial, timeout_s=0))
    assert (first.step, first.rounds) == (4, ((3, 2, 1),))
    assert [step.gamma for step in live.steps()] == [1, 1, 1, 3, 3]
    with pytest.raises(ValueError, match="expected 0 to 4, which the server was started with, got 5"):
        live.set(5)
    with pytest.raises(ValueError, match="gamma: expected 0 to 4, which the server was started with, got -1"):
        live.set(-1)


def test_steps_are_read_as_they_come_and_a_new_start_begins_anew(tmp_path: Path) -> None:
    live = LiveGamma(tmp_path / "live")
    path = live.folder / "steps.jsonl"
    assert live.engine is None
    assert live.steps() == []
    header = {"format": 1, "vllm": "0.32.0", "largest_gamma": 4, "planned_gammas": [0, 4], "is_async": True}
    header |= {"method": "eagle3", "several_modules": False, "model_runner": 2, "pipeline": 1, "max_num_seqs": 8}
    step: dict[str, object] = {
        "step": 0,
        "serial": 1,
        "gamma": 2,
        "t": 1.0,
        "done": 2.0,
        "rows": 1,
        "tokens": 3,
        "running": 1,
    }
    step |= {"waiting": 0, "preempted": 0, "prompts": 0, "cut": 0, "rounds": [[2, 1, 1]], "graph": ["FULL", 8]}
    text = json.dumps(header) + "\n" + json.dumps(step) + "\n"
    write_as(path, text + json.dumps(step)[:20])
    assert [one.done_s for one in live.steps()] == [2.0]
    write_as(path, text + json.dumps({**step, "step": 1, "done": 3.0}) + "\n")
    assert [one.done_s for one in live.steps()] == [2.0, 3.0]
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    assert [one.done_s for one in live.steps()] == [2.0]
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**header, "format": 2}) + "\n")
    with pytest.raises(ValueError, match=r"steps\.jsonl: expected format 1, got 2"):
        live.steps()


@pytest.mark.parametrize(
    ("method", "runner", "several_modules", "drafts_fewer"),
    [
        ("draft_model", 1, False, True),
        ("draft_model", 2, False, False),
        ("eagle3", 2, False, True),
        ("mtp", 2, False, True),
        ("mtp", 2, True, False),
        ("mtp", 1, True, True),
        ("ngram", 1, False, True),
        ("ngram", 2, False, True),
        ("medusa", 1, False, False),
    ],
)
def test_what_a_gamma_costs_in_a_running_engine(
    method: str, runner: int, several_modules: bool, drafts_fewer: bool
) -> None:
    engine = LiveEngine(
        version="0.32.0",
        largest_gamma=4,
        planned_gammas=(0, 4),
        is_async=True,
        method=method,
        several_modules=several_modules,
        model_runner=runner,
        pipeline=1,
        max_num_seqs=8,
    )
    assert engine.drafts_fewer == drafts_fewer
