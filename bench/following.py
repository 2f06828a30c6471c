"""What ranks other than 0 do: follow what rank 0 says, forward by forward (`specgauge.bench.ranks`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from specgauge.bench.cache.cache import RowCache, new_cache, prefill
from specgauge.bench.end_to_end.baselines import generate_with_transformers
from specgauge.bench.models.pair import LoadedModel, load_model
from specgauge.bench.ranks import DROP, FORWARD, GENERATE, LOAD, STOP, Ranks, die


def follow(ranks: Ranks) -> None:
    """Follow rank 0 until it says stop; what fails here alone ends the process."""
    try:
        _Follower(ranks).run()
    except Exception as error:
        die(error)


class _Follower:
    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.loaded: LoadedModel | None = None
        self.caches: dict[int, RowCache] = {}

    def run(self) -> None:
        while True:
            what, cache, capacity, rows, new, keep = self.ranks.told()
            if what == STOP:
                return
            if what == LOAD:
                self._load()
            elif what == FORWARD:
                self._forward(cache, capacity, rows, new, keep)
            elif what == DROP:
                self.caches.pop(cache, None)
            elif what == GENERATE:
                assert self.loaded is not None
                generate_with_transformers(self.loaded, **self.ranks.share())
            else:
                if self.loaded is not None and self.loaded.device.type == "cuda":
                    torch.cuda.synchronize(self.loaded.device)
                dist.barrier(group=self.ranks.on_host)

    def _load(self) -> None:
        told: dict[str, Any] = self.ranks.share()
        torch.set_num_threads(told.pop("threads"))
        self.caches, self.loaded = {}, None
        try:
            self.loaded = load_model(**told)
        except ValueError:  # rank 0 refuses the same, and says so
            return

    @torch.inference_mode()
    def _forward(self, number: int, capacity: int, rows: int, new: int, keep: int) -> None:
        assert self.loaded is not None
        lengths, tokens = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, new, dtype=torch.long)
        dist.broadcast(lengths, src=0, group=self.ranks.on_host)
        tokens = tokens.to(self.loaded.device)
        dist.broadcast(tokens, src=0)
        model = self.loaded.model
        if number not in self.caches:
            self.caches[number] = new_cache(model, batch_size=rows, tokens=capacity)
        cache = self.caches[number]
        cache.set_lengths(lengths.tolist())
        prefill(model, cache, tokens, keep=keep)
