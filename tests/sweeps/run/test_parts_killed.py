"""Deaths in parts that the rest of a pair can be measured without: what is left out, why, and for how long."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from specgauge.sweeps.run import isolation, runner, worker
from specgauge.sweeps.run.isolation import measure_apart
from specgauge.sweeps.run.worker import WorkerOutcome
from specgauge.sweeps.store.checkpoint import MARK, Checkpoint, Kind, names_of, part_name, read_checkpoint, reasons_of
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.tables import read_decoded
from tests.sweeps import made, odd_workers
from tests.sweeps.apart import KILLED
from tests.sweeps.fake_bench import Decoding, FakeBench
from tests.sweeps.run.test_isolation_loop import Script, dies, ends

CONFIG = made.config(
    grid={"batch_size": [1, 2], "context": [64, 65], "gamma": "1:2"},
    validate={"gamma": 2, "prompts": 2, "max_new_tokens": 6},
)
TWO = made.config(sampling=[{"name": "a", "temperature": 0}, {"name": "b"}], acceptance={"rollouts": 2})
FATAL = "greedy, batch size 1, context 65"
DECODING = f"decoding: {FATAL}"
CHAINS = pd.DataFrame(
    {"prompt": 0, "repetition": 0, "start": 3, "depth": [1], "token": 5, "top_prob": [0.5], "entropy_nats": [1.0]}
)

Step = Callable[[Path], tuple[int, WorkerOutcome | None]]


def dies_in(code: int, kind: Kind, name: str, stage: str) -> Step:
    """A death in a part."""

    def step(run: Path) -> tuple[int, WorkerOutcome | None]:
        with Checkpoint(run).part(kind, name, stage=stage):
            content = (run / MARK).read_bytes()
        (run / MARK).write_bytes(content)
        return code, None

    return step


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    return FakeBench().take_over(monkeypatch)


def test_names_of_parts() -> None:
    parts = [DECODING, "0f3a", part_name("decoding", "b: c")]
    assert names_of("decoding", parts) == [FATAL, "b: c"]
    assert reasons_of("decoding", {DECODING: "killed: so"}) == {FATAL: "killed: so"}


def test_a_mark_names_the_part_until_it_is_left(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as mark:
        with mark.part("decoding", FATAL, stage="decoding"):
            assert _marked(tmp_path) == {"stage": "decoding", "part": DECODING}
            mark.stage("a stage of it")
            assert _marked(tmp_path) == {"stage": "a stage of it", "part": DECODING}
        assert _marked(tmp_path) == {"stage": "decoding"}
    assert list(tmp_path.iterdir()) == []


def _marked(folder: Path) -> dict[str, Any]:
    mark = read_checkpoint(folder)
    assert mark is not None
    return {name: value for name, value in mark.items() if name != "pid"}


class TestTheLoop:
    """`measure_apart` over workers that are no processes."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        made.write_run(tmp_path / "run", CONFIG, {"greedy": made.acceptance_frame(8, 16)})
        return tmp_path / "run"

    @pytest.fixture
    def script(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
        def use(*steps: Step) -> Script:
            found = Script(list(steps))
            monkeypatch.setattr(isolation, "_start", found)
            return found

        return use

    def test_a_cell_it_died_decoding_is_left_out_and_the_rest_goes_on(
        self, path: Path, script: Callable[..., Script], capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = (path / "cells.jsonl").read_bytes()
        stage = f"decoding end to end, {FATAL}"
        steps = script(dies_in(-9, "decoding", FATAL, stage), ends(verify_reasons={"another": "oom: full"}))
        assert measure_apart(path, CONFIG, "p", say=print) == WorkerOutcome(
            failed=True, verify_reasons={FATAL: f"killed: {KILLED}", "another": "oom: full"}
        )
        assert steps.left_alone == [[], [DECODING]]
        assert (path / "cells.jsonl").read_bytes() == before
        assert capsys.readouterr().out == f"pair p: killed: {KILLED}, while {stage}\n"
        assert not (path / MARK).exists()

    def test_a_sampling_setting_it_died_at_has_no_acceptance_and_the_rest_goes_on(
        self, tmp_path: Path, script: Callable[..., Script]
    ) -> None:
        made.begin(tmp_path / "new", TWO).close()
        steps = script(
            dies_in(-9, "acceptance", "a", "writing texts, p, a"),
            dies_in(-11, "rejected drafts", "b", "rejected drafts, p, b"),
            ends(acceptance_reasons={"a": "left out: limits.run_seconds is spent"}),
        )
        assert measure_apart(tmp_path / "new", TWO, "p", say=print) == WorkerOutcome(
            failed=True, acceptance_reasons={"a": f"killed: {KILLED}, while writing texts, p, a"}
        )
        assert steps.left_alone == [[], ["acceptance: a"], ["acceptance: a", "rejected drafts: b"]]
        assert Run.open(tmp_path / "new").journal() == ()

    def test_a_death_while_loading_again_ends_the_pair_and_keeps_the_reason(
        self, path: Path, script: Callable[..., Script]
    ) -> None:
        script(dies_in(-11, "decoding", FATAL, "decoding"), dies(-9, stage="loading p"))
        words = f"killed: {KILLED}, while loading p"
        assert measure_apart(path, CONFIG, "p", say=print) == WorkerOutcome(
            failed=True,
            died=words,
            verify_reasons={FATAL: "killed: its process got SIGSEGV", "every cell": words},
        )

    def test_a_death_in_a_part_that_is_left_alone_ends_the_pair(
        self, path: Path, script: Callable[..., Script]
    ) -> None:
        steps = script(*[dies_in(-9, "decoding", FATAL, "decoding")] * 2)
        assert measure_apart(path, CONFIG, "p", say=print).died == f"killed: {KILLED}, while decoding"
        assert steps.steps == []


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path, str]:
    """The exit code, the run and what it answered."""
    path, out = tmp_path_factory.mktemp("decoding") / "run", io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(io.StringIO()):
        patched.setenv("PYTHONPATH", odd_workers.PATHS)
        patched.setattr(isolation, "WORKER", odd_workers.worker("fake decoding dies in 1x65"))
        return runner.run(CONFIG, out=path, apart=True), path, out.getvalue()


class TestDecoding:
    """A real process that is killed whenever it decodes one cell of four."""

    def test_the_other_cells_are_decoded(self, ended: tuple[int, Path, str]) -> None:
        code, path, _ = ended
        assert code == 1
        places = Counter((row["batch_size"], row["context"], row["blocks"]) for row in Run.open(path).validation())
        assert places == {(1, 64, 2): 1, (2, 64, 1): 1, (2, 65, 1): 1}
        assert {row["status"] for row in Run.open(path).predictions().to_dict("records")} == {"ok"}
        assert not (path / MARK).exists()

    def test_the_warning_says_why(self, ended: tuple[int, Path, str]) -> None:
        _, path, out = ended
        (message,) = [one["message"] for one in Run.open(path).warnings if one["code"] == "not_decoded"]
        assert message == f"pair p: 1 cell was decoded in part or not at all, first {FATAL}: killed: {KILLED}"
        assert message in out

    def test_the_next_run_decodes_that_cell_only(self, ended: tuple[int, Path, str], bench: FakeBench) -> None:
        _, path, _ = ended
        assert worker.work(path, "p", [DECODING]) == WorkerOutcome()
        assert bench.decoded == []
        assert worker.work(path, "p", []) == WorkerOutcome()
        assert {one.place for one in bench.decoded} == {(1, 65)}
        requests, _ = read_decoded(path)
        assert not requests.duplicated(["batch_size", "start_context", "arm", "prompt", "repetition"]).any()


@pytest.fixture
def seen(tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What was called while texts were recorded, and the mark at that time."""
    found: list[tuple[str, dict[str, Any]]] = []

    def telling(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def told(*rest: Any, **options: Any) -> Any:
            found.append((name, _marked(tmp_path / "run")))
            return call(*rest, **options)

        return told

    rollouts = ModuleType("specgauge.bench.acceptance.rollouts")
    rollouts.__dict__["measure_rollouts"] = lambda *rest, **options: CHAINS
    monkeypatch.setitem(sys.modules, rollouts.__name__, rollouts)
    for module, name in (
        ("models.pair", "load_model"),
        ("models.pair", "load_pair"),
        ("decoding.plain", "generate_plain"),
        ("acceptance.teacher_forced", "measure_acceptance"),
        ("acceptance.lookups", "pair_acceptance"),
        ("acceptance.rollouts", "measure_rollouts"),
        ("timing.cell_timer", "measure_cells"),
    ):
        where = sys.modules[f"specgauge.bench.{module}"]
        monkeypatch.setattr(where, name, telling(name, getattr(where, name)))
    return found


class TestAcceptance:
    """With the fake bench, in this process: marks, and what is left alone."""

    def test_sampling_settings_are_marked(
        self, tmp_path: Path, seen: list[tuple[str, dict[str, Any]]], bench: FakeBench
    ) -> None:
        made.begin(tmp_path / "run", TWO).close()
        assert worker.work(tmp_path / "run", "p", []) == WorkerOutcome()
        assert seen == [
            ("load_pair", {"stage": "loading p"}),
            ("generate_plain", {"stage": "writing texts, p, a", "part": "acceptance: a"}),
            ("generate_plain", {"stage": "writing texts, p, a", "part": "acceptance: a"}),
            ("pair_acceptance", {"stage": "acceptance, p, a", "part": "acceptance: a"}),
            ("generate_plain", {"stage": "writing texts, p, b", "part": "acceptance: b"}),
            ("generate_plain", {"stage": "writing texts, p, b", "part": "acceptance: b"}),
            ("pair_acceptance", {"stage": "acceptance, p, b", "part": "acceptance: b"}),
            ("measure_rollouts", {"stage": "rejected drafts, p, a", "part": "rejected drafts: a"}),
            ("measure_rollouts", {"stage": "rejected drafts, p, b", "part": "rejected drafts: b"}),
            ("measure_cells", {"stage": "timing p"}),
        ]

    def test_so_they_are_with_one_model_after_the_other(
        self, tmp_path: Path, seen: list[tuple[str, dict[str, Any]]], bench: FakeBench
    ) -> None:
        made.begin(tmp_path / "run", made.config(acceptance={"sequential": True})).close()
        assert worker.work(tmp_path / "run", "p", []) == WorkerOutcome()
        judging = {"stage": "acceptance, p, greedy", "part": "acceptance: greedy"}
        assert seen == [
            ("load_model", {"stage": "loading p"}),
            ("load_model", {"stage": "loading p"}),
            ("generate_plain", {"stage": "writing texts, p, greedy", "part": "acceptance: greedy"}),
            ("generate_plain", {"stage": "writing texts, p, greedy", "part": "acceptance: greedy"}),
            ("measure_acceptance", judging),
            ("load_model", judging),
            ("load_model", judging),
            ("load_pair", {"stage": "loading p"}),
            ("measure_cells", {"stage": "timing p"}),
        ]

    def test_what_is_left_alone_is_not_tried(
        self, tmp_path: Path, seen: list[tuple[str, dict[str, Any]]], bench: FakeBench
    ) -> None:
        path = tmp_path / "run"
        made.begin(path, TWO).close()
        assert worker.work(path, "p", ["acceptance: a", "rejected drafts: b"]) == WorkerOutcome()
        assert [Run.open(path).has_acceptance("p", name) for name in ("a", "b")] == [False, True]
        assert [name for name, _ in seen].count("measure_rollouts") == 0
        assert bench.measured != []
        bench.measured.clear()
        assert worker.work(path, "p", []) == WorkerOutcome()
        assert Run.open(path).has_acceptance("p", "a")
        assert [name for name, _ in seen].count("measure_rollouts") == 2
        assert bench.measured == []

    def test_with_one_model_after_the_other_nothing_is_loaded_for_it(
        self, tmp_path: Path, seen: list[tuple[str, dict[str, Any]]], bench: FakeBench
    ) -> None:
        made.begin(tmp_path / "run", made.config(acceptance={"sequential": True})).close()
        assert worker.work(tmp_path / "run", "p", ["acceptance: greedy"]) == WorkerOutcome()
        assert [name for name, _ in seen] == ["load_pair", "measure_cells"]


def test_every_cell_is_marked_while_it_is_decoded(tmp_path: Path, bench: FakeBench) -> None:
    made.begin(tmp_path / "run", CONFIG).close()
    seen: set[tuple[int, int]] = set()

    def look(decoding: Decoding) -> None:
        words = f"greedy, batch size {decoding.batch_size}, context {decoding.context}"
        assert _marked(tmp_path / "run") == {"stage": f"decoding end to end, {words}", "part": f"decoding: {words}"}
        seen.add(decoding.place)

    bench.before_decoding = look
    assert worker.work(tmp_path / "run", "p", []) == WorkerOutcome()
    assert len(seen) == 4
