"""A target split over two ranks on gloo: the texts of the whole model, and what happens when a rank dies.

Every launch imports torch in two processes, so there are few of them and each does much.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specgauge.bench.launching import death, refuse_few_devices
from specgauge.configs.pairs import ModelConfig, PairConfig
from specgauge.configs.schema import Config
from specgauge.model.sampling import SamplingSettings
from specgauge.sweeps.run import worker
from specgauge.sweeps.run.rank_processes import (
    RankDiedError,
    check_ranks,
    work_on_ranks,
)
from specgauge.sweeps.run.session import WHOLE
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer

GREEDY, DRAWN = SamplingSettings(temperature=0.0), SamplingSettings(temperature=0.9, top_p=0.9)
PROMPTS = [[5, 6, 7, 8], [9, 3, 4, 11, 12]]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A target with 4 attention and 2 key/value heads, and its draft."""
    path = tmp_path_factory.mktemp("ranks")
    return {
        "target": str(save(path / "target", llama(seed=1), word_tokenizer())),
        "draft": str(save(path / "draft", llama(seed=1, num_hidden_layers=1), word_tokenizer())),
    }


def pair(folders: dict[str, str], parallel: Any = None) -> PairConfig:
    own = {"device": "cpu", "dtype": "float32"}
    target = {"model": folders["target"], **own, **({} if parallel is None else {"parallel": parallel})}
    return PairConfig.model_validate({"name": "p", "target": target, "draft": {"model": folders["draft"], **own}})


def texts_of(config: PairConfig) -> dict[str, Any]:
    """What a pair writes: greedily and drawn, speculatively, plainly and by transformers' own generate."""
    from specgauge.bench.decoding.records import PromptBatch
    from specgauge.bench.end_to_end.baselines import generate_with_transformers
    from specgauge.bench.models.pair import load_pair
    from specgauge.bench.timing.clock import clock_for, timed_marks
    from tests.bench.decoded import decode, plain

    loaded = load_pair(config)
    found: dict[str, Any] = {"placement": loaded.placement, "ranks": loaded.target.ranks}
    for name, settings in (("greedy", GREEDY), ("drawn", DRAWN)):
        found[name] = decode(loaded.target, loaded.draft_model, settings, PROMPTS, gamma=2, new=6).texts
        found[f"plain, {name}"] = plain(loaded.target, settings, PROMPTS, new=6)
        batch = PromptBatch(prompts=PROMPTS[:1], numbers=[0], max_new_tokens=6)
        found[f"generate, {name}"] = generate_with_transformers(loaded.target, batch, settings, seed=0).texts
    found["clock"] = type(clock_for(*loaded.devices)).__name__
    found["marks"] = len(timed_marks(clock_for(*loaded.devices), [lambda: None] * 3))
    return found


def write(config: PairConfig) -> Any:
    return texts_of(config)


def fail_as_rank_1(config: PairConfig) -> Any:
    """A forward before any model: the follower fails, rank 0 waits for it until the launcher ends both."""
    from specgauge.bench.ranks import FORWARD, current_ranks

    ranks = current_ranks()
    assert ranks is not None
    ranks.tell(FORWARD, 0, 64, 1, 1, 1)
    ranks.wait()
    return config


def test_two_ranks_write_what_the_whole_model_writes(folders: dict[str, str]) -> None:
    split = pair(folders, {"tensor": 2})
    found: Any = work_on_ranks(write, split, (split,))
    whole = texts_of(pair(folders))
    layout = "target float32 split by tensors over 2 ranks on cpu, draft float32 on cpu"
    own = {"placement": layout, "ranks": 2, "clock": "RanksClock"}
    assert found == whole | own
    assert (whole["ranks"], whole["clock"], whole["marks"]) == (1, "HostClock", 3)


def test_a_rank_that_fails_ends_the_others(folders: dict[str, str]) -> None:
    split = pair(folders, {"tensor": 2})
    found = work_on_ranks(fail_as_rank_1, split, (split,))
    assert isinstance(found, RankDiedError)
    assert str(found) == "rank 1 of 2: AssertionError"


@pytest.mark.parametrize(
    ("exitcode", "message", "told"),
    [
        (-9, "Signal 9 (SIGKILL) received", "got SIGKILL, as the system does when memory runs out"),
        (-11, "Signal 11 (SIGSEGV) received", "got SIGSEGV"),
        (1, "RuntimeError: rank 1 of 2: OutOfMemoryError: full\nTraceback", ": OutOfMemoryError: full"),
        (1, {"message": "RuntimeError: rank 1 of 2: ValueError: bad", "extraInfo": {}}, ": ValueError: bad"),
        (1, "ImportError: no torch", ": ImportError: no torch"),
        (3, "", ": ended with code 3"),
    ],
)
def test_how_a_rank_died_in_one_line(exitcode: int, message: Any, told: str) -> None:
    line = death(1, 2, SimpleNamespace(exitcode=exitcode, message=message))
    assert line == f"rank 1 of 2{told if told.startswith(':') else f' {told}'}"


class Died:
    """A worker whose rank died."""

    is_free = True

    def __init__(self, **_: Any) -> None: ...

    def measure(self, *_: Any, **__: Any) -> tuple[int, Exception]:
        return 0, RankDiedError("rank 1 of 2 got SIGKILL")


def config_of(one: PairConfig, **changes: Any) -> Config:
    plain = {"name": "made", "pairs": [one], "grid": {"batch_size": 1, "context": 16, "gamma": 1}}
    return Config.model_validate({**plain, "workload": {"max_new_tokens": 4}, **changes})


def test_a_dead_rank_is_a_dead_worker(folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.sweeps import made

    said: list[str] = []
    config = config_of(pair(folders, {"tensor": 2}))
    made.begin(tmp_path / "run", config).close()
    monkeypatch.setattr(worker, "PairProcess", Died)
    outcome = worker.measure_apart(tmp_path / "run", config, "p", say=said.append, part=WHOLE)
    assert outcome.died == "killed: rank 1 of 2 got SIGKILL, while starting"
    assert said == ["pair p: killed: rank 1 of 2 got SIGKILL, while starting"]


@pytest.mark.parametrize(
    ("tensor", "fault"),
    [
        (3, "expected a divisor of its 4 attention heads, got 3; use 2 or 4"),
        (4, "expected a divisor of its 2 key/value heads, got 4; use 2"),
        (2, None),
    ],
)
def test_heads_are_shared_out_evenly_or_refused_before(folders: dict[str, str], tensor: int, fault: str | None) -> None:
    config = config_of(pair(folders, {"tensor": tensor}))
    if fault is None:
        check_ranks(config)
        return
    with pytest.raises(ValueError, match=f"^pair 'p' target: parallel.tensor: {fault}$"):
        check_ranks(config)


def test_fewer_devices_than_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^m: parallel.tensor: expected at most 2, .*, got 4; .*cpu$"):
        refuse_few_devices("m", 4, 2)
    for devices in (0, 4, 8):
        refuse_few_devices("m", 4, devices)


def test_an_architecture_without_a_plan_and_a_model_outside_its_ranks(folders: dict[str, str]) -> None:
    from transformers import GPT2Config, LlamaConfig

    from specgauge.bench.models.pair import load_model
    from specgauge.bench.ranks import shard_fault

    assert "no tensor-parallel plan for the architecture 'gpt2'; spread it by" in str(shard_fault(GPT2Config(), 2))
    assert shard_fault(LlamaConfig(num_attention_heads=4, num_key_value_heads=2), 2) is None
    assert "2 key/value heads" in str(shard_fault(LlamaConfig(num_attention_heads=4, num_key_value_heads=2), 4))
    spec = ModelConfig.model_validate({"model": folders["target"], "parallel": {"tensor": 2}})
    with pytest.raises(ValueError, match=r"^m: parallel: its ranks are started by"):
        load_model(spec, role="target", name="m")
