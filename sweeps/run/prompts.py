"""The prompts of a pair as token ids, brought to lengths, and prompts.jsonl, which keeps them.

    prompts = PairPrompts(run, "embedded", read_prompts(config.workload))
    prompts.encoded(tokenizer)      # as the workload wants them; they are in prompts.jsonl from then on
    prompts.at(256)                 # their numbers, and ids of exactly 256 tokens each

They are encoded once, whoever asks first.

prompts.jsonl: the prompts of every pair, as text and as token ids, one strict-JSON line each.

keep_prompts(run, "embedded", prompts, token_ids)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specgauge.sweeps.store.files import write_text_atomically
from specgauge.sweeps.store.rows import json_line, read_jsonl
from specgauge.sweeps.store.rundir import PROMPTS
from specgauge.sweeps.store.schema import PromptRow
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.bench.prompts import Prompt


def keep_prompts(run: OpenRun, pair: str, prompts: Sequence[Prompt], encoded: Sequence[Sequence[int]]) -> None:
    """Write the prompts of a pair, text and token ids, into the run's prompts.jsonl; other pairs' lines stay.

    Raises:
        StorageError: the disk refused the write.
    """
    path = run.path / PROMPTS
    old = path.read_bytes() if path.is_file() else b""
    others = [row for row in read_jsonl(path, PromptRow, old, "start anew with --fresh") if row.pair != pair]
    rows = [
        PromptRow(pair=pair, prompt=number, category=prompt.category, text=prompt.text, tokens=tuple(tokens))
        for number, (prompt, tokens) in enumerate(zip(prompts, encoded, strict=True))
    ]
    content = b"".join(map(json_line, [*others, *rows]))
    if content != old:
        write_text_atomically(path, content.decode("ascii"))


Numbered = tuple[list[int], list[list[int]]]
"""Numbers of prompts, and their token ids."""


class PairPrompts:
    """The prompts of one pair of an open run."""

    def __init__(self, run: OpenRun, pair: str, prompts: Sequence[Prompt]) -> None:
        """Nothing is encoded before `encoded`."""
        self.run, self.pair, self.prompts = run, pair, prompts
        self._encoded: list[list[int]] | None = None
        self._as_written: list[list[int]] = []

    def __len__(self) -> int:
        """Prompts as they were read, each counted once however many lengths it is brought to."""
        return len(self.prompts)

    def encoded(self, tokenizer: Any) -> list[list[int]]:
        """Token ids of the prompts under the target's tokenizer, encoded and written down once.

        Where the workload brings them to several lengths, all prompts of one length come before those of the next.
        """
        from specgauge.bench.prompts import encode_prompts, prompts_of_length

        if self._encoded is None:
            self._as_written = encode_prompts(self.prompts, tokenizer, self.run.config.workload)
            lengths = self.run.config.workload.prompt_tokens
            self._encoded = self._as_written
            if lengths is not None:
                self._encoded = [row for length in lengths for row in prompts_of_length(self._as_written, length)]
            times = len(self._encoded) // len(self.prompts)
            keep_prompts(self.run, self.pair, list(self.prompts) * times, self._encoded)
        return self._encoded

    def at(self, context: int) -> Numbered:
        """Numbers and ids of the prompts at exactly a context's length: the workload's own, where it has them."""
        from specgauge.bench.prompts import prompts_of_length

        count, lengths = len(self.prompts), self.run.config.workload.prompt_tokens or ()
        first = lengths.index(context) * count if context in lengths else 0
        return list(range(first, first + count)), prompts_of_length(self._as_written, context)
