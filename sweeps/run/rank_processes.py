"""The processes of a pair whose target is split over ranks: started, watched and ended by torchrun's launcher.

    outcome = work_on_ranks(work, pair, (run, "p", [], None, WHOLE))      # in the worker of the pair

Rank 0 does the worker's work and returns its outcome; the others follow its forwards (`specgauge.bench.ranks`). When
one dies the launcher ends the others, and the pair's worker has died, as far as the run goes.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from specgauge.configs.reading import CONFIG_BYTES, read_text
from specgauge.sweeps.model_sizes import model_folder
from specgauge.sweeps.store.outcomes import PairOutcome

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config
    from specgauge.sweeps.run.pair_process import Work


class RankDiedError(RuntimeError):
    """A rank ended before its work was done; the message says which and how, in one line."""


def check_ranks(config: Config) -> None:
    """Refuse ranks that a target's heads cannot be shared out to, where its files are here.

    Raises:
        ValueError: a model directory is missing or damaged, or its heads are not divided; the pair is named.
    """
    for pair in config.pairs:
        folder = model_folder(pair.target, "target") if pair.has_ranks else None
        if folder is None or pair.target.parallel is None or not (folder / "config.json").is_file():
            continue
        shape = json.loads(read_text(folder / "config.json", CONFIG_BYTES))
        text = shape.get("text_config") or shape
        heads = (text.get(name) for name in ("num_attention_heads", "num_key_value_heads"))
        fault = pair.target.parallel.heads_fault(*heads)
        if fault is not None:
            raise ValueError(f"pair '{pair.name}' target: parallel.tensor: {fault}")


def is_a_rank() -> bool:
    """Whether this process was started as a rank already."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def work_on_ranks(work: Work, pair: PairConfig, task: tuple[Any, ...]) -> PairOutcome | Exception:
    """What `work` returns of a task on rank 0, or how a rank died.

    Raises:
        ValueError: fewer CUDA devices than ranks.
        KeyboardInterrupt: it was interrupted.
    """
    from specgauge.bench.launching import on_ranks

    assert pair.target.parallel is not None
    name, count = f"pair '{pair.name}' target", pair.target.parallel.tensor
    found, death = on_ranks(work, task, count=count, name=name, device=pair.target.device)
    return found if death is None else RankDiedError(death)
