"""vLLM's scheduler as far as ours builds on it, and an engine that runs its steps: no model, tokens by rule.

A step verifies the drafts that the one before it proposed. With `depth` 2 a step is scheduled while the one before it
runs, as under asynchronous scheduling: a request that ends in that one still has a row in it.
"""

import importlib.util
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from specgauge.bench.serving.live_gamma import MODULES

VERSION = "0.32.0"
ACCEPTS = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2}
"""How many of so many drafts are accepted."""


@dataclass
class Request:
    request_id: str
    prompt: int = 5
    longest: int = 100
    num_output_tokens: int = 0
    drafts: int = 0
    is_prompt_done: bool = False


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]
    num_spec_tokens_to_schedule: int
    preempted_req_ids: set[str] = field(default_factory=set)


class Scheduler:
    def __init__(self, vllm_config: Any, kv_cache_config: Any = None) -> None:
        config = vllm_config.speculative_config
        schedule = config.schedule
        self.num_spec_tokens = config.num_speculative_tokens
        self.dynamic_sd_lookup: list[int] | None = None if schedule is None else [0, *schedule]
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.most = vllm_config.scheduler_config.max_num_seqs

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        while self.waiting and len(self.running) < self.most:
            self.running.append(self.waiting.popleft())
        tokens = {one.request_id: 1 + one.drafts if one.is_prompt_done else one.prompt for one in self.running}
        drafts = {one.request_id: [-1] * one.drafts for one in self.running if one.drafts}
        lookup = self.dynamic_sd_lookup
        gamma = self.num_spec_tokens if lookup is None else lookup[len(tokens)]
        for one in self.running:
            one.is_prompt_done, one.drafts = True, gamma
        return SchedulerOutput(tokens, sum(tokens.values()), drafts, gamma)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> dict[int, Any]:
        for name, index in model_runner_output.req_id_to_index.items():
            request = self.requests.get(name)
            if request is not None:
                tokens = model_runner_output.sampled_token_ids[index]
                del tokens[request.longest - request.num_output_tokens :]
                request.num_output_tokens += len(tokens)
                if request.num_output_tokens == request.longest:
                    self.running.remove(self.requests.pop(name))
        return {}


class AsyncScheduler(Scheduler):
    pass


def config_of(
    gamma: int = 4, schedule: tuple[int, ...] | None = (4,) * 8, *, is_async: bool = False, ranks: int = 1
) -> SimpleNamespace:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=is_async, max_num_seqs=8),
        parallel_config=SimpleNamespace(data_parallel_size=ranks, pipeline_parallel_size=1),
        speculative_config=SimpleNamespace(num_speculative_tokens=gamma, schedule=schedule, method="draft_model"),
    )


def scheduler_module(*, without: str | None = None) -> Any:
    """Our scheduler module, loaded beside this engine; ``without`` is a module that this vLLM does not have."""
    homes: dict[str, dict[str, type]] = {
        "async_scheduler": {"AsyncScheduler": AsyncScheduler},
        "scheduler": {"Scheduler": Scheduler},
    }
    homes["output"] = {"SchedulerOutput": SchedulerOutput}
    made = {name: ModuleType(name) for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched")}
    made["vllm"].__dict__["__version__"] = VERSION
    for home, names in homes.items():
        if home != without:
            name = f"vllm.v1.core.sched.{home}"
            made[name] = ModuleType(name)
            made[name].__dict__.update(names)
    spec = importlib.util.spec_from_file_location("specgauge_gamma_scheduler", MODULES / "specgauge_gamma_scheduler.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.update(made)
    try:
        spec.loader.exec_module(module)
    finally:
        for name in made:
            del sys.modules[name]
    return module


class Engine:
    """Runs steps; `depth` of them are scheduled before the output of the first is taken."""

    def __init__(self, scheduler: Any, *, depth: int = 1, graph: tuple[str, int] | None = None) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.graph = graph
        self.queue: deque[SchedulerOutput] = deque()

    def run(self, steps: int, before: Callable[[int], None] = lambda step: None) -> None:
        """Take so many outputs; ``before`` is called before each step that is scheduled, with its number from 0."""
        scheduled = 0
        for _ in range(steps):
            while len(self.queue) < self.depth:
                before(scheduled)
                self.queue.append(self.scheduler.schedule())
                scheduled += 1
            output = self.queue.popleft()
            names = list(output.num_scheduled_tokens)
            sampled = [[7] * (1 + ACCEPTS[len(output.scheduled_spec_decode_tokens.get(name, ()))]) for name in names]
            graph = self.graph and SimpleNamespace(runtime_mode=self.graph[0], num_padded_tokens=self.graph[1])
            result = SimpleNamespace(
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=sampled,
                cudagraph_stats=graph,
            )
            self.scheduler.update_from_output(output, result)


def write_as(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
