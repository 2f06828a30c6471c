"""A scheduler for vLLM whose γ is set while the engine runs, and that logs every step.

    SPECGAUGE_GAMMA_DIR=DIR PYTHONPATH=<this folder> vllm serve … \
        --scheduler-cls specgauge_gamma_scheduler.GammaScheduler \
        --speculative-config '{…, "num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1, 256, 4]]}'

It stands alone, in the engine's process: vLLM and the standard library, nothing else.  DIR belongs to the user who runs
the engine, mode 0700.  Before every step `gamma.json` in it is read where it changed:

    {"serial": 7, "ranges": [[1, 1, 4], [2, 256, 2]]}        # γ = 4 for one request in a step, 2 for more

and every step that had tokens appends a line to `steps.jsonl`, once its output is there (`specgauge.bench.serving.
live_gamma` reads both sides).  Times are those of the monotonic clock, in seconds.

A step verifies the drafts that the step before it proposed, then proposes the next ones.  So a γ that is set before a
step is the number it proposes; it is verified one step later, and only a step that both verifies and proposes γ is a
round of γ.  Under asynchronous scheduling a step is scheduled while the one before still runs; the order is the same.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import vllm

FORMAT = 1
DIRECTORY = "SPECGAUGE_GAMMA_DIR"
GAMMA_FILE, STEP_FILE = "gamma.json", "steps.jsonl"
LARGEST_BYTES = 65536
"""Of the file that sets γ."""
_RESTART = "restart the server for each gamma instead (launch.live: false)"


def _refusal(found: str) -> str:
    version = getattr(vllm, "__version__", "of an unknown version")
    return f"specgauge: vLLM {version} {found}, so gamma cannot be set while it runs; {_RESTART}"


_ATTRIBUTES = ("dynamic_sd_lookup", "num_spec_tokens", "requests", "get_request_counts")
_FIELDS = (
    "num_scheduled_tokens",
    "total_num_scheduled_tokens",
    "scheduled_spec_decode_tokens",
    "num_spec_tokens_to_schedule",
)
"""What the scheduler and its outputs must have."""


class RefusedError(RuntimeError):
    """The engine, its directory or what is written in it cannot be used; the message is one line."""


def checked_directory(path: str | None) -> Path:
    """The directory, where it is one that only its owner, who runs this process, can use.

    Raises:
        RefusedError: it is not named, is none, or is open to others.
    """
    if not path:
        raise RefusedError(f"specgauge: expected the directory that sets gamma in {DIRECTORY}, got nothing")
    try:
        found = Path(path).lstat()
    except OSError as error:
        raise RefusedError(f"specgauge: {DIRECTORY}: {path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise RefusedError(f"specgauge: {DIRECTORY}: expected a directory, got {path}")
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise RefusedError(
            f"specgauge: {DIRECTORY}: expected a directory of user {os.geteuid()} with mode 0700, got one of user "
            f"{found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}: {path}"
        )
    return Path(path)


def owned_file(path: Path, flags: int) -> int:
    """A descriptor of a plain file that belongs to the user of this process, and that nobody else may write.

    Raises:
        OSError: it cannot be opened, or is a link.
        RefusedError: it is another's, or others may write it.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o022:
        return descriptor
    os.close(descriptor)
    raise RefusedError(
        f"specgauge: {path}: expected a file of user {os.geteuid()} that no other may write, got one of user "
        f"{found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}"
    )


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line of JSON to a file that is made where it is not there; as `owned_file`."""
    descriptor = owned_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")
    os.close(descriptor)


try:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
except ImportError as error:
    told = _refusal(f"has no scheduler to build on ({error})")
    append_line(checked_directory(os.environ.get(DIRECTORY)) / STEP_FILE, {"error": told})
    raise ImportError(told) from None


def read_setting(path: Path, largest: int) -> tuple[int, list[list[int]]]:
    """Serial number and ranges [first, last, γ] of a file that sets γ.

    Raises:
        OSError: it cannot be read.
        RefusedError: it is another's, or holds something else.
    """
    descriptor = owned_file(path, os.O_RDONLY)
    try:
        text = os.read(descriptor, LARGEST_BYTES)
    finally:
        os.close(descriptor)
    try:
        setting = json.loads(text)
        serial, ranges = setting["serial"], setting["ranges"]
        numbers = [serial, *(number for one in ranges for number in one)]
        triples = [tuple(one) for one in ranges]
        starts = [1, *(last + 1 for _, last, _ in triples)]
        if (
            not triples
            or not all(type(number) is int for number in numbers)
            or any(first != start or last < first for start, (first, last, _) in zip(starts, triples, strict=False))
            or not all(0 <= gamma <= largest for *_, gamma in triples)
        ):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise RefusedError(
            f"specgauge: {path}: expected a serial number and ranges [first, last, gamma] from 1 on without gaps, "
            f"gamma from 0 to {largest}, got {text[:80]!r}"
        ) from None
    return serial, ranges


def lookup_of(ranges: list[list[int]], size: int) -> list[int]:
    """γ by requests in a step, from 0 (unused) to ``size`` - 1; the last range goes on."""
    found = [0] * size
    for first, last, gamma in ranges:
        for batch_size in range(first, min(last, size - 1) + 1):
            found[batch_size] = gamma
    _, last, gamma = ranges[-1]
    found[last + 1 :] = [gamma] * len(found[last + 1 :])
    return found


def _tokens(result: Any) -> int:
    """Tokens of a step; vLLM takes away those past a request's end while it works on them."""
    return sum(len(tokens) for tokens in result.sampled_token_ids)


class GammaScheduler(Scheduler):
    """vLLM's scheduler with a γ that is set from outside; the asynchronous one where the engine schedules so."""

    def __new__(cls, vllm_config: Any, *_: Any, **__: Any) -> GammaScheduler:
        """Of the class that fits the engine's own choice: with asynchronous scheduling, or without."""
        is_async = bool(getattr(vllm_config.scheduler_config, "async_scheduling", False))
        made: GammaScheduler = super().__new__(AsyncGammaScheduler if is_async and cls is GammaScheduler else cls)
        return made

    def __init__(self, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(vllm_config, *arguments, **named)
        directory = checked_directory(os.environ.get(DIRECTORY))
        self._gamma_path = directory / GAMMA_FILE
        self._gamma_log = owned_file(directory / STEP_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._gamma_seen: tuple[int, int, int] | None = None
        self._gamma_serial = 0
        self._gamma_steps = 0
        self._gamma_running: deque[tuple[Any, dict[str, Any]]] = deque()
        try:
            self._gamma_check_interface(vllm_config)
        except RefusedError as refused:
            self._gamma_write({"error": str(refused)})
            raise
        self._gamma_write(self._gamma_header(vllm_config))
        self._gamma_follow()

    def _gamma_check_interface(self, vllm_config: Any) -> None:
        missing = [name for name in _ATTRIBUTES if not hasattr(self, name)]
        missing += [name for name in _FIELDS if name not in getattr(SchedulerOutput, "__annotations__", {})]
        if missing:
            raise RefusedError(_refusal(f"has another scheduler (without {', '.join(missing)})"))
        lookup = self.dynamic_sd_lookup
        if lookup is None:
            ranks = getattr(vllm_config.parallel_config, "data_parallel_size", 1)
            reason = "drops the schedule under data parallelism" if ranks > 1 else "was started without a schedule"
            raise RefusedError(_refusal(f"{reason} (num_speculative_tokens_per_batch_size)"))
        if not isinstance(lookup, list) or not all(type(gamma) is int for gamma in lookup):
            raise RefusedError(_refusal("keeps its drafts by batch size in another form"))

    def _gamma_header(self, vllm_config: Any) -> dict[str, Any]:
        speculative = vllm_config.speculative_config
        return {
            "format": FORMAT,
            "vllm": str(getattr(vllm, "__version__", "")),
            "pid": os.getpid(),
            "t": time.monotonic(),
            "largest_gamma": self.num_spec_tokens,
            "planned_gammas": sorted(set(self.dynamic_sd_lookup[1:])),
            "is_async": isinstance(self, AsyncScheduler),
            "method": str(getattr(speculative, "method", "")),
            "pipeline": getattr(vllm_config.parallel_config, "pipeline_parallel_size", 1),
            "several_modules": bool(getattr(speculative, "use_multi_module_mtp", bool)()),
            "model_runner": 2 if getattr(self, "use_v2_model_runner", False) else 1,
            "max_num_seqs": len(self.dynamic_sd_lookup) - 1,
        }

    def _gamma_write(self, line: dict[str, Any]) -> None:
        os.write(self._gamma_log, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def _gamma_follow(self) -> None:
        """Take what the file says where it changed; a file that is refused is told in the log, and γ stays."""
        try:
            found = self._gamma_path.lstat()
        except OSError:
            return
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._gamma_seen:
            return
        self._gamma_seen = seen
        try:
            serial, ranges = read_setting(self._gamma_path, self.num_spec_tokens)
        except (OSError, RefusedError) as error:
            self._gamma_write({"error": str(error)})
            return
        size = len(self.dynamic_sd_lookup)
        self.dynamic_sd_lookup: list[int] = lookup_of(ranges, size)
        self._gamma_serial = serial

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """One step as vLLM plans it, with the γ that is set now."""
        self._gamma_follow()
        started = time.monotonic()
        output = super().schedule(*arguments, **named)
        if output.total_num_scheduled_tokens:
            running, waiting = self.get_request_counts()
            step = {
                "step": self._gamma_steps,
                "serial": self._gamma_serial,
                "gamma": output.num_spec_tokens_to_schedule,
                "t": started,
                "rows": len(output.num_scheduled_tokens),
                "tokens": output.total_num_scheduled_tokens,
                "running": running,
                "waiting": waiting,
                "preempted": len(getattr(output, "preempted_req_ids", None) or ()),
            }
            self._gamma_steps += 1
            self._gamma_running.append((output, step))
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """What vLLM does with a step's output; then the step is logged."""
        done = time.monotonic()
        found = None
        while self._gamma_running and found is None:
            output, step = self._gamma_running.popleft()
            if output is scheduler_output:
                found = {**step, "done": done, **self._gamma_results(output, model_runner_output)}
        sampled = _tokens(model_runner_output)
        answers = super().update_from_output(scheduler_output, model_runner_output)
        if found is not None:
            self._gamma_write({**found, "cut": sampled - _tokens(model_runner_output)})
        return answers

    def _gamma_results(self, output: Any, result: Any) -> dict[str, Any]:
        """How many rows were prompts, and [drafted, accepted, rows] of the others.

        A row that has written nothing yet, or has more tokens than its drafts and one, is a prompt or a part of one.
        """
        rounds: Counter[tuple[int, int]] = Counter()
        prompts = 0
        sampled = result.sampled_token_ids
        for request_id, tokens in output.num_scheduled_tokens.items():
            drafted = len(output.scheduled_spec_decode_tokens.get(request_id) or ())
            request = self.requests.get(request_id)
            if tokens > drafted + 1 or (request is not None and not request.num_output_tokens):
                prompts += 1
            elif request is not None and sampled:
                committed = len(sampled[result.req_id_to_index[request_id]])
                rounds[drafted, max(committed - 1, 0)] += 1
        found: dict[str, Any] = {"prompts": prompts, "rounds": [[*key, rows] for key, rows in sorted(rounds.items())]}
        graph = getattr(result, "cudagraph_stats", None)
        if graph is not None:
            found["graph"] = [graph.runtime_mode, graph.num_padded_tokens]
        return found


class AsyncGammaScheduler(GammaScheduler, AsyncScheduler):
    """The same for an engine that schedules a step while the one before still runs."""
