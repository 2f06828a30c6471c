"""prompts.jsonl: the prompts of every pair, as text and as token ids, one strict-JSON line each.

keep_prompts(run, "embedded", prompts, token_ids)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specgauge.configs.canonical import canonical_json
from specgauge.sweeps.files import write_text_atomically
from specgauge.sweeps.opening import OpenRun
from specgauge.sweeps.records import SCHEMA
from specgauge.sweeps.rundir import PROMPTS

if TYPE_CHECKING:
    from specgauge.bench.prompts import Prompt


def keep_prompts(run: OpenRun, pair: str, prompts: Sequence[Prompt], encoded: Sequence[Sequence[int]]) -> None:
    """Write the prompts of a pair, text and token ids, into the run's prompts.jsonl; other pairs' lines stay.

    Raises:
        StorageError: the disk refused the write.
    """
    path = run.path / PROMPTS
    old = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    others = [line for line in old if f'"pair":{canonical_json(pair)}' not in line]
    lines = [
        canonical_json(
            {
                "schema": SCHEMA,
                "pair": pair,
                "prompt": number,
                "category": prompt.category,
                "text": prompt.text,
                "tokens": list(tokens),
            }
        )
        for number, (prompt, tokens) in enumerate(zip(prompts, encoded, strict=True))
    ]
    content = "".join(f"{line}\n" for line in [*others, *lines])
    if content != "".join(f"{line}\n" for line in old):
        write_text_atomically(path, content)
