import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from specgauge.bench.serving.live_gamma import DIRECTORY, MODULES, LiveGamma
from tests.bench.serving.fake_vllm import VERSION, Engine, Request, config_of, scheduler_module, write_as

ANSWER = "so gamma cannot be set while it runs; restart the server for each gamma instead (launch.live: false)"


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveGamma:
    found = LiveGamma(tmp_path / "live")
    monkeypatch.setenv(DIRECTORY, str(found.folder))
    return found


@pytest.fixture(scope="module")
def ours() -> Any:
    return scheduler_module()


def steps_of(live: LiveGamma) -> list[tuple[int, int, tuple[tuple[int, int, int], ...]]]:
    return [(step.gamma, step.prompts, step.rounds) for step in live.steps()]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_gamma_is_proposed_at_once_and_verified_a_step_later(live: LiveGamma, ours: Any, depth: int) -> None:
    scheduler = ours.GammaScheduler(vllm_config=config_of(is_async=depth == 2))
    for name in "ab":
        scheduler.add_request(Request(name))
    gammas = {0: 4, 2: 0, 4: 2}

    def before(step: int) -> None:
        if step in gammas:
            live.set(gammas[step])

    Engine(scheduler, depth=depth).run(7, before)
    assert steps_of(live) == [
        (4, 2, ()),
        (4, 0, ((4, 2, 2),)),
        (0, 0, ((4, 2, 2),)),
        (0, 0, ((0, 0, 2),)),
        (2, 0, ((0, 0, 2),)),
        (2, 0, ((2, 1, 2),)),
        (2, 0, ((2, 1, 2),)),
    ]
    assert [step.serial for step in live.steps()] == [1, 1, 2, 2, 3, 3, 3]
    assert [step.tokens for step in live.steps()] == [10, 10, 10, 2, 2, 6, 6]


def test_what_a_step_tells(live: LiveGamma, ours: Any) -> None:
    scheduler = ours.GammaScheduler(vllm_config=config_of())
    scheduler.most = 1
    for name in "ab":
        scheduler.add_request(Request(name))
    Engine(scheduler, graph=("FULL", 8)).run(2)
    first, second = live.steps()
    assert (first.step, first.serial, first.rows, first.tokens, first.running, first.waiting) == (0, 0, 1, 5, 1, 1)
    assert (second.step, second.rows, second.tokens, second.preempted, second.graph) == (1, 1, 5, 0, ("FULL", 8))
    assert first.scheduled_s <= first.done_s <= second.scheduled_s <= second.done_s


def test_a_request_that_ended_in_the_step_before_has_no_round(live: LiveGamma, ours: Any) -> None:
    scheduler = ours.GammaScheduler(vllm_config=config_of(is_async=True))
    scheduler.add_request(Request("a", longest=3))
    scheduler.add_request(Request("b"))
    Engine(scheduler, depth=2).run(4)
    assert [(step.rows, step.rounds, step.cut, step.is_decode) for step in live.steps()] == [
        (2, (), 0, False),
        (2, ((4, 2, 2),), 1, True),
        (2, ((4, 2, 1),), 0, False),
        (1, ((4, 2, 1),), 0, True),
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_class_is_the_one_of_the_engines_own_scheduling(live: LiveGamma, ours: Any, is_async: bool) -> None:
    scheduler = ours.GammaScheduler(vllm_config=config_of(is_async=is_async))
    assert type(scheduler) is (ours.AsyncGammaScheduler if is_async else ours.GammaScheduler)
    engine = live.engine
    assert engine is not None
    assert (engine.is_async, engine.version, engine.largest_gamma, engine.max_num_seqs) == (is_async, VERSION, 4, 8)


def test_a_schedule_is_followed_by_the_rows_of_a_step(live: LiveGamma, ours: Any) -> None:
    scheduler = ours.GammaScheduler(vllm_config=config_of(schedule=(0, 1, 2, 4, 4, 4, 4, 4)))
    engine = live.engine
    assert engine is not None
    assert engine.planned_gammas == (0, 1, 2, 4)
    assert scheduler.dynamic_sd_lookup == [0, 0, 1, 2, 4, 4, 4, 4, 4]
    live.set_schedule([(1, 1, 4), (2, 3, 2), (4, 6, 0)])
    Engine(scheduler).run(1)
    assert scheduler.dynamic_sd_lookup == [0, 4, 2, 2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ('{"serial": 9, "ranges": [[1, 8, 2]]}', 0o666, "expected a file of user"),
        ('{"serial": 9, "ranges": [[1, 8, 5]]}', 0o600, "gamma from 0 to 4, got"),
        ('{"serial": 9, "ranges": [[1, 8, true]]}', 0o600, "gamma from 0 to 4, got"),
        ('{"serial": 9, "ranges": [[2, 8, 2]]}', 0o600, "from 1 on without gaps"),
        ('{"serial": 9, "ranges": [[1, 3, 2], [5, 8, 1]]}', 0o600, "from 1 on without gaps"),
        ('{"serial": 9, "ranges": [[1, 0, 2]]}', 0o600, "from 1 on without gaps"),
        ('{"serial": 9, "ranges": []}', 0o600, "from 1 on without gaps"),
        ("[]", 0o600, "expected a serial number"),
        ("no JSON", 0o600, "expected a serial number"),
        ("LINK", 0o600, "Too many levels of symbolic links"),
    ],
)
def test_a_setting_that_is_refused_is_told_and_gamma_stays(
    live: LiveGamma, ours: Any, tmp_path: Path, text: str, mode: int, words: str
) -> None:
    scheduler = ours.GammaScheduler(vllm_config=config_of())
    engine = Engine(scheduler)
    scheduler.add_request(Request("a"))
    live.set(1)
    engine.run(1)
    assert live.steps()[-1].gamma == 1
    (live.folder / "gamma.json").unlink()
    if text == "LINK":
        write_as(tmp_path / "elsewhere", '{"serial": 9, "ranges": [[1, 8, 2]]}')
        (live.folder / "gamma.json").symlink_to(tmp_path / "elsewhere")
    else:
        write_as(live.folder / "gamma.json", text, mode)
    engine.run(1)
    assert scheduler.dynamic_sd_lookup == [0, *[1] * 8]
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        live.steps()
    assert "gamma.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_of(schedule=None), "was started without a schedule (num_speculative_tokens_per_batch_size)"),
        (config_of(schedule=None, ranks=2), "drops the schedule under data parallelism"),
    ],
)
def test_an_engine_without_a_schedule_is_refused(live: LiveGamma, ours: Any, config: Any, words: str) -> None:
    with pytest.raises(ours.RefusedError) as error:
        ours.GammaScheduler(vllm_config=config)
    assert str(error.value).startswith(f"specgauge: vLLM {VERSION} {words}")
    assert str(error.value).endswith(ANSWER)
    assert live.refusal == str(error.value)
    with pytest.raises(ValueError, match=re.escape(str(error.value))):
        _ = live.engine


def test_another_interface_is_refused(live: LiveGamma, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_FIELDS", (*ours._FIELDS, "gamma_of_tomorrow"))
    monkeypatch.setattr(ours, "_ATTRIBUTES", (*ours._ATTRIBUTES, "another"))
    with pytest.raises(ours.RefusedError, match=r"another scheduler \(without another, gamma_of_tomorrow\), so gamma"):
        ours.GammaScheduler(vllm_config=config_of())


def test_a_vllm_without_such_a_scheduler_is_refused(live: LiveGamma) -> None:
    with pytest.raises(
        ImportError, match=re.escape(f"specgauge: vLLM {VERSION} has no scheduler to build on")
    ) as error:
        scheduler_module(without="async_scheduler")
    assert live.refusal == str(error.value)


def test_the_directory_is_its_owners_alone(ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    with pytest.raises(ours.RefusedError, match=f"in {DIRECTORY}, got nothing"):
        ours.GammaScheduler(vllm_config=config_of())
    for name, words in (("absent", "No such file"), ("file", "expected a directory"), ("open", "with mode 0755")):
        path = tmp_path / name
        if name == "open":
            path.mkdir()
            path.chmod(0o755)
        elif name == "file":
            path.touch()
        monkeypatch.setenv(DIRECTORY, str(path))
        with pytest.raises(ours.RefusedError, match=words):
            ours.GammaScheduler(vllm_config=config_of())


def test_another_users_directory_is_refused(live: LiveGamma, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = live.folder.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    words = f"expected a directory of user {owner + 1} with mode 0700, got one of user {owner} with mode 0700"
    with pytest.raises(ours.RefusedError, match=words):
        ours.GammaScheduler(vllm_config=config_of())


def test_the_module_stands_alone() -> None:
    tree = ast.parse((MODULES / "specgauge_gamma_scheduler.py").read_text(encoding="utf-8"))
    names = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert {str(name).split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"vllm"}
