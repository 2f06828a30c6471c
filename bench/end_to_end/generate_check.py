"""Hold a model's greedy texts against those of transformers' own generate, in every run and before it measures.

A model that is misread (a window, rotary factors, a mask) writes other texts than whoever serves it sees, and every
number of the run would be another model's.  So the longest prompt and one at the largest context are decoded together,
and each once more by generate; they may part at a tie within rounding only (`specgauge.bench.end_to_end.text_checks`).

    notes = generate_notes(model, prompts, context=4096, new_tokens=64)      # empty where the texts are the same
"""

from __future__ import annotations

from collections.abc import Sequence

from specgauge.bench.decoding.plain import generate_plain
from specgauge.bench.decoding.records import PromptBatch
from specgauge.bench.end_to_end.baselines import generate_with_transformers
from specgauge.bench.end_to_end.text_checks import divergences
from specgauge.bench.models.load_errors import kind_and_line
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.notes import Note
from specgauge.bench.prompts import prompts_of_length
from specgauge.model.sampling import SamplingSettings

TOKENS = 16
"""Tokens of each text at most."""
_GREEDY = SamplingSettings(temperature=0.0)


def generate_notes(
    model: LoadedModel, prompts: Sequence[Sequence[int]], *, context: int, new_tokens: int
) -> list[Note]:
    """What a reader must know where greedy texts of a model, eager, are not those of generate.

    context: the largest of the run, in tokens; new_tokens: what is written for a prompt, of which a few are.  Rows are
    cut to what the model takes.
    """
    new = min(TOKENS, new_tokens)
    most = None if model.max_context is None else max(1, model.max_context - new)
    longest = [token % model.vocabulary_rows for token in max(prompts, key=len)]
    rows = [row[:most] for row in (longest, *prompts_of_length([longest], context))]
    try:
        numbers = range(len(rows))
        plain = generate_plain(model, rows, _GREEDY, prompt_numbers=numbers, max_new_tokens=new, seed=0)
        batches = [PromptBatch(prompts=[row], numbers=[number], max_new_tokens=new) for number, row in enumerate(rows)]
        generated = [generate_with_transformers(model, batch, _GREEDY, seed=0).texts[0] for batch in batches]
        apart = [one for one in divergences(model, generated, plain, _GREEDY) if not one.is_tie]
    except Exception as error:  # a model may lack what generate needs, or memory: that ends no run
        return [
            Note(
                code="generate_unchecked",
                message=f"{model.name}: not held against transformers' generate: {kind_and_line(error)}",
                remedy="compare a few greedy texts with those of the engine that will serve it",
            )
        ]
    if not apart:
        return []
    first = apart[0]
    margin = "one text ended" if first.margin is None else f"top-2 margin {first.margin:.3g}"
    return [
        Note(
            code="generate_differs",
            message=f"{model.name}: {len(apart)} of {len(rows)} greedy texts are not those of transformers' generate, "
            f"where rounding does not explain it: after {len(rows[first.prompt])} tokens, at token {first.position} "
            f"({margin}, threshold {first.threshold:.3g})",
            remedy="believe no number of this run: see to config.json (sliding_window, rope_scaling), try attention: "
            "eager and dtype: float32, and report it with the model's name",
        )
    ]
