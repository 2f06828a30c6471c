"""How fast the model is, against what it promises: seconds taken beside seconds allowed.

    python -m tests.benchmarks.model_speed

prints a line for the import, for S of a million cells at 16 gammas with their best gamma, for the renewal pass over
1,000 texts of 1,000 tokens at 16 gammas, and for `specgauge plan` from its start to its end; exit code 1 where one is
over.  The best of three runs counts, as the machine's noise only ever adds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from specgauge.model.acceptance.renewal import renewal
from specgauge.model.checks import IntArray
from specgauge.model.speedup import best_gamma, round_time_s, speedup, tokens_per_round_iid
from specgauge.sweeps.text_table import text_table

RUNS = 3
_IMPORT = "import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"


Promises = Mapping[str, tuple[float, Callable[[], float]]]
"""By what is done: the seconds allowed, and what does it once and returns the seconds it took."""


def import_s(module: str) -> float:
    """Seconds a new interpreter takes to import `module`, its own start left out."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT.format(module=module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def best_gammas_of_a_million_cells(alphas: int = 1600) -> IntArray:
    """S of 25 batches x 25 contexts x 1,600 alphas at 16 gammas, and the best gamma of each: (25, 25, 1600)."""
    batch = np.arange(1, 26).reshape(25, 1, 1, 1)
    context = np.linspace(100, 32_000, 25).reshape(1, 25, 1, 1)
    alpha = np.linspace(0.0, 1.0, alphas).reshape(1, 1, alphas, 1)
    gammas = np.arange(1, 17)
    t_decode = 0.01 + 1e-8 * batch * context
    t_round = round_time_s(
        t_draft_total_s=gammas * (0.001 + 1e-9 * batch * context),
        t_verify_s=t_decode + 1e-4 * batch * gammas,
        t_draft_catch_up_s=1e-4,
        full_acceptance=alpha**gammas,
        batch_size=batch,
        t_overhead_s=0.001,
    )
    return best_gamma(speedup(tokens_per_round_iid(alpha, gammas), t_decode_s=t_decode, t_round_s=t_round), gammas)


def renew() -> object:
    """The renewal pass over 1,000 texts."""
    acceptance = np.random.default_rng(0).uniform(0.2, 1.0, size=(1000, 1000))
    return renewal(acceptance, acceptance, np.full(1000, 1000), np.zeros(1000), np.arange(1, 17), 16)


def seconds(work: Callable[[], object]) -> float:
    """What one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plan_s() -> float:
    """Processor seconds of a whole `specgauge plan`, the interpreter's start and all imports in them."""
    contexts = ",".join(f"{k}k" for k in range(1, 17))
    pair = ("--target", "llama-3.1-70b", "--draft", "llama-3.2-1b", "--hardware", "h100-sxm", "--tensor-parallel=4")
    grid = ("--alpha", ".8", "--batch-size", "1:128", "--context", contexts, "--gamma", "1:8")
    command = [sys.executable, "-m", "specgauge", "plan", *pair, *grid]
    before = os.times()
    subprocess.run(command, capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


PROMISES: Promises = {
    "import specgauge.model": (0.3, partial(import_s, "specgauge.model")),
    "import specgauge.model.decision": (0.3, partial(import_s, "specgauge.model.decision")),
    "S of 1,000,000 cells x 16 gammas, and the best": (1.0, partial(seconds, best_gammas_of_a_million_cells)),
    "renewal, 1,000 texts x 1,000 tokens x 16 gammas": (5.0, partial(seconds, renew)),
    "plan of 8 x 16 points x 8 gammas, all in": (1.0, plan_s),
}


def main(promises: Promises = PROMISES) -> int:
    """Print the table; 1 where a promise is not kept."""
    rows = []
    for what, (allowed_s, run) in promises.items():
        took_s = min(run() for _ in range(RUNS))
        rows.append([what, took_s, allowed_s, "kept" if took_s <= allowed_s else "NOT KEPT"])
    print(text_table(["what", "took (s)", "allowed (s)", ""], rows))
    return int(any(row[-1] == "NOT KEPT" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
