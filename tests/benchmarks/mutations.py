"""Mutates every file of a run and lets every command that reads it do so: nothing hangs, breaks or changes unsaid.

    python -m tests.benchmarks.mutations made [N] [FILE …]     # a small run made up here, with every file of a pair
    python -m tests.benchmarks.mutations served [N] [FILE …]   # a small run of simulated servers
    python -m tests.benchmarks.mutations RUN [N] [FILE …]      # N mutations of each file, 20 without; needs Linux

Every mutation is read in a process of its own, forked from this one, under an alarm a command. Counted are: `bug`, a
line that calls itself one, a traceback or a death; `hang`, a command over 10 s of processor time, twice; `silent`, an
answer that changed with code 0 and without a word. A count above 0 ends with code 1; a mutation can be repeated by its
number.

500 mutations of 12 files are 42,000 commands. A process derives what it derives of a run once for all commands; a
command that does not read what is in a mutated file, but for its hash, answers all mutations of it alike: it is run on
the first, and counted for the others (`Reading`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import multiprocessing
import os
import random
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from specgauge.cli.errors import tell
from specgauge.cli.main import app
from specgauge.cli.main import main as command_line
from specgauge.exits import DONE
from specgauge.model.policies.stopping import SvipPolicy
from specgauge.reports import records
from specgauge.sweeps.analysis import predictions
from specgauge.sweeps.analysis.predictions import AnalysedRun, predict_run, recommended_gammas
from specgauge.sweeps.run.runner import tell_altered
from specgauge.sweeps.store import derived
from specgauge.sweeps.store.exported import ExportedRow, keep_exports
from specgauge.sweeps.store.outcomes import PairOutcome, keep_outcomes
from specgauge.sweeps.store.rows import json_line
from specgauge.sweeps.store.rundir import ACCEPTANCE, PROMPTS, REPORT, ROLLOUTS, Run, prompt_rows
from specgauge.sweeps.store.schema import PromptRow, WarningRow
from specgauge.sweeps.store.served import ServedLog
from specgauge.sweeps.store.tables import DecodedLog, add_rollouts
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps.analysis.test_decoded import POLICIES, policy_run
from tests.sweeps.served.simulated import measure, served_config
from tests.sweeps.served.test_measure import engines
from tests.sweeps.store.test_tables import GREEDY, chains

ALARM_S = 10
"""Of processor time."""
BLOCKED_S = 100
"""On the clock: what waits for ever takes no processor time."""
TOLD = ("derived anew", "not as written")
"""What a changed answer says of itself, on either stream or on its page."""
BUG = re.compile(r"a bug in specgauge|Traceback")
FAULTS = ("bug", "hang", "silent")
VALUES = (
    *(
        "0",
        "-1",
        "999999",
        "1" + "0" * 30,
        "9" * 5000,
        "1e308",
        "1e999",
        "NaN",
        "-Infinity",
        ".inf",
        "null",
        "true",
        "~",
    ),
    *('""', "'x'", "[]", "{}", "[1, 2]", "[" * 3000, "2026-01-01", "!!set {a, b}", "!!binary aGk=", "&a [*a]", "\x00"),
    *("\u2028", "\ud7ff", "-0.0", "0.5", "eager", "greedy", "speculate", "ok", "١", "1_000", "0x10"),
)
"""What takes the place of a number or word."""


RESUME = "run, resumed"
Line = tuple[list[str], Sequence[Path]]
"""A command line, and the pages it writes; RESUME is `resume`."""
Lines = Mapping[str, Line]


class Answer(NamedTuple):
    """What a command gave: its code, and what a person reads of it."""

    code: int
    shown: str
    told: bool
    """Whether it says that files were altered."""
    fault: str
    seconds: float
    """Of processor time."""
    reads: bool = True
    """Whether what is in the mutated file was read, not its hash alone; of the first mutation."""


def made_run(path: Path) -> Path:
    """A small run with every kind of file: one cell at two contexts, decoded end to end, a policy, rollouts."""
    run = policy_run(path, {**POLICIES, "svip": SvipPolicy(threshold=1.0, cap=3)})
    add_rollouts(path / ROLLOUTS, GREEDY, chains(3))
    rows = [PromptRow(pair="p", prompt=one, category="qa", text=f"text {one}", tokens=(1, one)) for one in range(4)]
    (path / PROMPTS).write_bytes(b"".join(map(json_line, rows)))
    met = WarningRow(code="chat_without_template", message="2 of 4 prompts are chats", remedy="give plain ones")
    keep_outcomes(path, {"p": PairOutcome(validation_reasons={"batch 9": "failed"}, left_out=["ε"], warnings=[met])})
    predict_run(run)
    return path


def served_run(path: Path) -> Path:
    """A small run of simulated servers: two γ and plain decoding at two batch sizes, what was exported from it too."""
    measure(path, served_config((0, 1, 3)), engines(0, 1, 3))
    keep_exports(path, [ExportedRow(pair="a", sampling="greedy", context=64, ranges=((1, 1, 3), (2, 4, 1)))])
    predict_run(Run.open(path))
    return path


MADE: Mapping[str, Callable[[Path], Path]] = {"made": made_run, "served": served_run}


def commands(run: Path, whole: Path, out: Path) -> Lines:
    """Every command that reads a run, by name."""
    page = out / "report.html"
    found: dict[str, Line] = {
        "recommend": (["recommend", str(run)], ()),
        "recommend --json": (["recommend", str(run), "--json", "--max-itl", "1s"], ()),
        "report": (["report", str(run), "--out", str(page)], (page,)),
        "compare": (["compare", str(whole), str(run), "--json"], ()),
        "compare, first": (["compare", str(run), str(whole)], ()),
        "replay": (["replay", str(run), "--replicates", "1", *_first_point(run)], ()),
        RESUME: ([RESUME, str(run), str(whole)], ()),
    }
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()) as help_text:
        command_line(["predict", "--help"])
    if "--from-run" in help_text.getvalue():
        times = ["--t-decode", "10ms", "--t-draft", "1ms", "--t-verify", "11ms"]
        found["predict --from-run"] = (["predict", "--from-run", str(run), *_first_point(run)[:2], *times], ())
    return found


def _first_point(run: Path) -> list[str]:
    """The smallest of one sampling setting alone: replays take longest."""
    config = Run.open(run).config
    point = ["--batch-size", str(min(config.grid.batch_size)), "--context", str(min(config.grid.context))]
    return ["--sampling", config.sampling[0].name, *point]


def resume(copy: Path, whole: Path) -> int:
    """What `run` reads and writes of a run, whose user's configuration and machine are those of `whole`, but for
    measuring."""
    config, environment = Run.open(whole).config, Run.open(whole).environment
    try:
        tell_altered(copy, print)
        with OpenRun(copy, config, fresh=False) as opened:
            opened.check_environment(environment)
            opened.journal.done("cell", "decode", 0)
            DecodedLog(copy)
            ServedLog(copy)
            prompt_rows(copy)
            recommended_gammas(Run.open(copy), config.pairs[0].name)
        print(predict_run(Run.open(copy)).recommendations)
    except BaseException as error:
        return tell(error, debug=False)
    return DONE


class Reading:
    """Whether a file is opened by this process; of Linux."""

    _OPENED = 0x20
    _EVENT = struct.Struct("iIII")

    def __init__(self, file: Path) -> None:
        """Begin to listen, once the file is hashed."""
        derived._hash_of(file)
        self._name = os.fsencode(file.name)
        library = ctypes.CDLL(None, use_errno=True)
        self._queue = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._queue < 0 or library.inotify_add_watch(self._queue, os.fsencode(file.parent), self._OPENED) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def end(self) -> bool:
        """Whether it was opened."""
        found = set()
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self._queue, 1 << 16):
                while events:
                    *_, length = self._EVENT.unpack_from(events)
                    found.add(events[self._EVENT.size :][:length].rstrip(b"\0"))
                    events = events[self._EVENT.size + length :]
        os.close(self._queue)
        return self._name in found


Listen = Callable[[Path | None], Reading]
"""Forgets what was derived and listens to whether the mutated file is read, of the run or of the copy given."""


def answer(arguments: list[str], pages: Sequence[Path], listen: Listen | None = None) -> Answer:
    """Run a command line in this process, which ends after ALARM_S or BLOCKED_S."""
    if arguments[0] != RESUME:
        return _answer(lambda: command_line(arguments), pages, None if listen is None else listen(None))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(arguments[1], Path(folder) / "run"))
        return _answer(lambda: resume(copy, Path(arguments[2])), pages, None if listen is None else listen(copy))


def _answer(command: Callable[[], int], pages: Sequence[Path], reading: Reading | None) -> Answer:
    for page in pages:
        page.unlink(missing_ok=True)
    fault, code = "", -1
    for alarm in (signal.SIGALRM, signal.SIGPROF):  # they end this process, whatever it is in
        signal.signal(alarm, signal.SIG_DFL)
    began_s = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, ALARM_S)
    signal.setitimer(signal.ITIMER_REAL, BLOCKED_S)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = command()
    for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
        signal.setitimer(timer, 0)
    seconds = time.process_time() - began_s
    shown = out.getvalue() + "".join(page.read_text(encoding="utf-8") for page in pages if page.is_file())
    everything = shown + errors.getvalue()
    if (found := BUG.search(errors.getvalue())) is not None:
        fault = errors.getvalue()[found.start() :].partition("\n")[0][:300]
    told = any(word in everything for word in TOLD)
    return Answer(code, shown, told, fault, seconds, reading is None or reading.end())


@contextlib.contextmanager
def derived_once() -> Iterator[Callable[[Path], None]]:
    """Runs are derived, files hashed, and the command line is made once in a process; gives what forgets a run."""
    kept: dict[Any, Any] = {}

    def once(derive: Callable[..., Any]) -> Callable[..., Any]:
        def found(run: Any, reasons: Any = None, **options: Any) -> Any:
            key = run if isinstance(run, Path) else run.path, derive, repr(options)
            if reasons is not None:
                return derive(run, reasons, **options)
            if key not in kept:
                kept[key] = derive(run, **options)
            return kept[key]

        return found

    def forget(path: Path) -> None:
        for key in [key for key in kept if path in (key[0], *key[0].parents)]:
            del kept[key]

    group = typer.main.get_command(app)
    with pytest.MonkeyPatch.context() as patch:
        derive = once(predictions.predict)
        patch.setattr(predictions, "predict", derive)
        patch.setattr(records, "predict", derive)
        patch.setattr(AnalysedRun, "read", once(AnalysedRun.read))
        patch.setattr(derived, "_hash_of", once(derived._hash_of))
        patch.setattr(typer.main, "get_command", lambda _: group)
        yield forget


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    """One to eight bits."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    """Truncate, or leave a piece out."""
    begin = rng.randrange(len(data))
    return data[:begin] + (b"" if rng.random() < 0.5 else data[begin + rng.randrange(1, 200) :])


def repeat(data: bytes, rng: random.Random) -> bytes:
    """A piece twice, or one over another."""
    begin, other, length = rng.randrange(len(data)), rng.randrange(len(data)), rng.randrange(1, 400)
    return data[:other] + data[begin : begin + length] + data[other + (length if rng.random() < 0.5 else 0) :]


def swap_lines(data: bytes, rng: random.Random) -> bytes:
    """Two lines in each other's place, or one left out."""
    lines = data.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    if rng.random() < 0.3:
        del lines[one]
    return b"\n".join(lines)


def other_value(data: bytes, rng: random.Random) -> bytes:
    """Another value, of another type perhaps, in place of a number or a word."""
    found = list(re.finditer(rb"[-+.\w]+", data))
    place = rng.choice(found)
    value = rng.choice(VALUES).encode("utf-8", "surrogatepass")
    return data[: place.start()] + value + data[place.end() :]


def slightly_other(data: bytes, rng: random.Random) -> bytes:
    """Another digit: what looks as before."""
    digits = [place.start() for place in re.finditer(rb"\d", data)]
    changed, at = bytearray(data), rng.choice(digits)
    changed[at] = ord(str((int(chr(changed[at])) + rng.randrange(1, 10)) % 10))
    return bytes(changed)


def other_cell(data: bytes, rng: random.Random) -> bytes:
    """A whole table with another value, or none, in a row of a column, or another type of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(data))
    at = rng.randrange(table.num_columns)
    name, values = table.column_names[at], table.column(at).to_pylist()
    value = rng.choice([None, 0, -1, 999_999, 2**31 - 1, 1e308, 0.5, "x", True, [], [None], [1, None]])
    row = rng.randrange(len(values))
    values[row] = value
    if rng.random() < 0.2:
        values = [value] * len(values)
    try:
        column = pa.array(values, type=table.column(at).type if rng.random() < 0.7 else None)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        column = pa.array([str(one) for one in values])
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(at, name, column), sink)
    return bytes(sink.getvalue().to_pybytes())


MUTATIONS: Sequence[Callable[[bytes, random.Random], bytes]] = (flip_bits, cut, repeat, swap_lines)
OF_TEXT = (other_value, other_value, slightly_other, slightly_other)
OF_TABLES = (other_cell, other_cell, other_cell)


def mutated(name: str, data: bytes, number: int) -> tuple[str, bytes]:
    """The mutation of that number: its kind, and the file."""
    rng = random.Random(f"{name} {number}")
    kinds = [*MUTATIONS, *(OF_TABLES if name.endswith(".parquet") else OF_TEXT)]
    while True:
        kind = rng.choice(kinds)
        changed = kind(data, rng)
        if changed != data:
            return kind.__name__, changed


def read_all(lines: Lines, listen: Listen | None, pipe: Connection) -> None:
    """What the process of one mutation does: every command, each sent as begun and as ended."""
    gc.disable()  # what is collected is copied first
    for name, (arguments, pages) in lines.items():
        pipe.send((name, None))
        pipe.send((name, answer(arguments, pages, listen)))
    pipe.close()
    os._exit(0)


def answers(lines: Lines, listen: Listen | None = None) -> Iterator[tuple[str, Answer]]:
    """Every command's answer; one that dies or hangs ends its process, and the next begins in another."""
    left = dict(lines)
    context = multiprocessing.get_context("fork")
    while left:
        ours, theirs = context.Pipe(duplex=False)
        reader = context.Process(target=read_all, args=(left, listen, theirs))
        reader.start()
        theirs.close()
        running = ""
        with contextlib.suppress(EOFError):
            while True:
                name, found = ours.recv()
                running = name
                if found is not None:
                    yield name, found
                    del left[name]
                    running = ""
        reader.join()
        if running:
            is_late = reader.exitcode in (-signal.SIGALRM, -signal.SIGPROF)
            yield running, Answer(-1, "", False, "hang" if is_late else f"died with {reader.exitcode}", ALARM_S)
            del left[running]


def fault_of(found: Answer, usual: Answer) -> str:
    """Which fault an answer is, of `FAULTS`; "" for none."""
    if found.fault == "hang" or found.seconds > ALARM_S:
        return "hang"
    if found.fault:
        return "bug"
    return "silent" if found.code == DONE and found.shown != usual.shown and not found.told else ""


def count_mutations(lines: Lines, usual: Mapping[str, Answer], file: Path, count: int, listen: Listen) -> Counter[str]:
    """Mutate a file of a run that many times, and count what the commands make of it."""
    name, kept, counts = _name(file), file.read_bytes(), Counter[str]()
    alike: dict[str, Answer] = {}
    for number in range(count):
        kind, changed = mutated(name, kept, number)
        file.write_bytes(changed)
        left = {command: line for command, line in lines.items() if command not in alike}
        for command, found in [*answers(left, None if number else listen), *alike.items()]:
            fault = fault_of(found, usual[command])
            if fault == "hang":  # twice: a lock that the fork found taken is none
                ((_, found),) = answers({command: lines[command]})
                fault = fault_of(found, usual[command])
            if not found.reads:
                alike[command] = found
            counts[fault or ("refused" if found.code else "answered")] += 1
            if fault:
                print(f"{name} {number}, {kind}, {command}: {fault} {found.fault}", flush=True)
    file.write_bytes(kept)
    print(f"{name}: {count} mutations, {_text(counts)}; not read by {', '.join(alike) or 'none'}", flush=True)
    return counts


def _name(file: Path) -> str:
    return file.name if file.parent.name != ACCEPTANCE else f"{ACCEPTANCE}/{file.name}"


def main(arguments: Sequence[str]) -> int:
    """Mutate the files of the run named and print what was found."""
    count = int(arguments[1]) if len(arguments) > 1 else 20
    with tempfile.TemporaryDirectory() as folder, derived_once() as forget:
        whole, run = Path(folder) / "whole", Path(folder) / "run"
        make = MADE.get(arguments[0])
        shutil.copytree(Path(arguments[0]) if make is None else make(Path(folder) / "made"), whole)
        shutil.copytree(whole, run)
        lines = commands(run, whole, Path(folder))
        for line in lines.values():
            answer(*line)  # what is imported here is not imported in every process
        forget(run)
        gc.collect()
        gc.freeze()
        usual = dict(answers(lines))
        for name, found in usual.items():
            print(f"{name}: code {found.code}, {found.seconds:.1f} s {found.fault}", flush=True)
            assert not found.fault, name
        files = sorted(_name(path) for path in run.rglob("*") if path.is_file())
        wanted = arguments[2:] or [one for one in files if one != REPORT]

        def listener(name: str) -> Listen:
            def listen(copy: Path | None) -> Reading:
                forget(run)
                return Reading((copy or run) / name)

            return listen

        found_counts = [count_mutations(lines, usual, run / name, count, listener(name)) for name in wanted]
    total: Counter[str] = sum(found_counts, Counter())
    print(f"all: {count * len(wanted)} mutations, {_text(total)}")
    return int(any(total[fault] for fault in FAULTS))


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in ("answered", "refused", *FAULTS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
