"""The ranks of a model that is split by tensors: rank 0 measures, the others follow every forward of it.

Before a forward rank 0 tells the others which cache it is on, how many tokens each row holds, and the tokens; they run
the same one on their shard, and transformers' tensor-parallel plan adds the parts up. What is told costs a few
messages on the host, as it does in an engine whose scheduler tells its workers, and is in the times. A clock of rank 0
waits for all ranks at both ends of what it times: it starts when every rank is idle, and ends with the slowest.

    with joined() as ranks:                       # in each process that the launcher started
        …                                         # rank 0: load_model, forwards; the others: `bench.following.follow`

A rank that fails alone ends its process, and with it the launcher all others: they would wait for it for ever.

Shapes: B rows, N new tokens.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from transformers import PreTrainedModel

from specgauge.bench.cache.cache import FOLLOWED, RowCache
from specgauge.bench.timing.blocks import first_line
from specgauge.configs.pairs import ParallelConfig

STOP, LOAD, FORWARD, DROP, WAIT, GENERATE = range(6)
_HEADER = 6
"""Whole numbers of a message: what to do, cache, capacity, rows, new tokens, logits kept."""
_TIMEOUT = timedelta(days=7)
"""A rank may measure for days while the draft alone works; a rank that died is noticed by the launcher."""


class Ranks:
    """This process among those that hold a shard each."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.on_host = dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self.caches: weakref.WeakKeyDictionary[RowCache, int] = weakref.WeakKeyDictionary()
        """Numbers of rank 0's caches."""
        self._dropped: list[int] = []
        self._number = 0

    @property
    def is_leader(self) -> bool:
        """Whether it is rank 0, which measures."""
        return self.rank == 0

    def tell(self, what: int, *numbers: int) -> None:
        """Say what follows."""
        header = torch.tensor([what, *numbers, *[0] * (_HEADER - 1 - len(numbers))], dtype=torch.long)
        dist.broadcast(header, src=0, group=self.on_host)

    def told(self) -> list[int]:
        """What rank 0 says next."""
        header = torch.zeros(_HEADER, dtype=torch.long)
        dist.broadcast(header, src=0, group=self.on_host)
        found: list[int] = header.tolist()
        return found

    def share(self, what: object = None) -> Any:
        """An object of rank 0 on every rank."""
        shared = [what]
        dist.broadcast_object_list(shared, src=0, group=self.on_host)
        return shared[0]

    def wait(self) -> None:
        """Rank 0: until every rank has ended its work."""
        self.tell(WAIT)
        dist.barrier(group=self.on_host)

    def lead(self, cache: RowCache, tokens: Tensor, keep: int) -> None:
        """Rank 0: tell the others of a forward of (B, N) tokens, which is run next."""
        if cache not in self.caches:
            self._open(cache)
        rows, new = tokens.shape
        self.tell(FORWARD, self.caches[cache], cache.capacity, rows, new, keep)
        dist.broadcast(torch.tensor(cache.lengths, dtype=torch.long), src=0, group=self.on_host)
        dist.broadcast(tokens.contiguous(), src=0)

    def _open(self, cache: RowCache) -> None:
        while self._dropped:
            self.tell(DROP, self._dropped.pop())
        self.caches[cache] = self._number
        weakref.finalize(cache, self._dropped.append, self._number).atexit = False
        self._number += 1

    def stop(self) -> None:
        """Rank 0: let the others end."""
        self.tell(STOP)


_CURRENT: list[Ranks] = []


def current_ranks() -> Ranks | None:
    """This process's ranks; None where its models are whole."""
    return _CURRENT[0] if _CURRENT else None


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the ranks that a launcher started; in its environment are this one's number and how many there are."""
    get_error_handler().initialize()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT)
    _CURRENT.append(Ranks())
    try:
        yield _CURRENT[0]
    finally:
        _CURRENT.clear()
        dist.destroy_process_group()


def die(error: BaseException) -> NoReturn:
    """End this process at once, the launcher told why: the other ranks are in a forward that it is not."""
    ranks = current_ranks()
    who = "" if ranks is None else f"rank {ranks.rank} of {ranks.count}: "
    get_error_handler().record_exception(RuntimeError(f"{who}{first_line(error)}"))
    os._exit(1)


@contextmanager
def in_step() -> Iterator[None]:
    """What every rank does alike: a ValueError is every rank's, anything else ends the process."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        die(error)


def sharding_options(count: int) -> dict[str, Any]:
    """What `from_pretrained` takes to split a model by its own plan over ``count`` ranks."""
    try:
        from transformers.distributed.configuration_utils import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_size=count)}
    except (ImportError, TypeError):  # releases before it had sizes
        return {"tp_plan": "auto"}


def follow_model(model: PreTrainedModel, ranks: Ranks) -> None:
    """Rank 0: let the others follow every forward of a model from now on."""

    def led(cache: RowCache, tokens: Tensor, keep: int, run: Callable[[], Tensor]) -> Tensor:
        ranks.lead(cache, tokens, keep)
        with in_step():
            return run()

    FOLLOWED[model] = led


def shard_fault(config: Any, ranks: int) -> str | None:
    """Why a model cannot be split over ``ranks`` by tensors, by its configuration."""
    text = config.get_text_config()
    if not (getattr(text, "base_model_tp_plan", None) or getattr(config, "base_model_tp_plan", None)):
        return (
            f"transformers has no tensor-parallel plan for the architecture '{config.model_type}'; spread it by "
            "device_map, or use one device"
        )
    heads = (getattr(text, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    return ParallelConfig(tensor=ranks).heads_fault(*heads)
