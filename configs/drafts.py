"""What may speculate for a target beside a draft model: lookups in the text, and the target's own first layers.

    draft: org/small-model          a model, in every form a target takes
    draft: ngram                    prompt lookup; in full {ngram: {longest: 3, shortest: 1}}
    draft: {layers: 8}              the target's first 8 layers, then its final norm and head

A directory that is called ngram is written ./ngram or {model: ngram}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import model_validator

from specgauge.configs.faults import nearest, unknown_key, value_fault
from specgauge.configs.rules import Whole, fail
from specgauge.configs.section import Section

NGRAM = "ngram"
LARGEST_NGRAM = 64
LARGEST_LAYERS = 4096


class NgramConfig(Section):
    """How prompt lookup matches the end of the text."""

    longest: Annotated[int, Whole(at_least=1, at_most=LARGEST_NGRAM)] = 3
    """Tokens at the end of the text that are looked for first."""
    shortest: Annotated[int, Whole(at_least=1, at_most=LARGEST_NGRAM)] = 1
    """Tokens that are looked for last; without a match of at least these nothing is drafted."""

    @model_validator(mode="after")
    def _check_together(self) -> NgramConfig:
        if self.shortest > self.longest:
            fail([value_fault(("shortest",), self.shortest, f"at most longest, which is {self.longest}")])
        return self


class NgramDraft(Section):
    """Prompt lookup: drafts go on as the text did after an earlier occurrence of its last tokens."""

    ngram: NgramConfig = NgramConfig()
    """How the end of the text is matched."""

    @property
    def label(self) -> str:
        """What drafts, in words."""
        return f"lookups of {self.ngram.longest} down to {self.ngram.shortest} tokens"


class LayersDraft(Section):
    """Early exit: the target's own first layers draft, with its final norm and head; every weight is shared."""

    layers: Annotated[int, Whole(at_least=1, at_most=LARGEST_LAYERS)]
    """How many of the target's layers; at most all but one."""

    @property
    def label(self) -> str:
        """What drafts, in words."""
        return f"the target's first {self.layers} layer{'' if self.layers == 1 else 's'}"


_OTHERS: dict[str, type[NgramDraft | LayersDraft]] = {"ngram": NgramDraft, "layers": LayersDraft}


def draft_without_model(value: object, model_keys: Iterable[str]) -> NgramDraft | LayersDraft | None:
    """The draft that a written value stands for; None where it is a draft model's, which the caller reads.

    ``model_keys`` are the keys of a draft model's mapping.  Raises pydantic's error with faults for keys that do not
    belong together, or that look like a misspelt ``ngram`` or ``layers``.
    """
    if isinstance(value, (NgramDraft, LayersDraft)):
        return value
    if value == NGRAM:
        return NgramDraft()
    if not isinstance(value, Mapping):
        return None
    known = [*model_keys, *_OTHERS]
    kind = _kind(value, known)
    if kind is None:
        return None
    if kind not in value:
        fail(unknown_key((), str(key), known) for key in value if key not in known)
    beside = [str(key) for key in value if key != kind]
    if any(key in known for key in beside):
        fail([value_fault((), dict(value), f"{kind} alone, without {', '.join(beside)}")])
    if beside:
        fail(unknown_key((), key, [kind]) for key in beside)
    return _OTHERS[kind].model_validate(dict(value))


def _kind(value: Mapping[object, object], known: list[str]) -> str | None:
    """``ngram`` or ``layers``, written or meant; None for a model's mapping."""
    written = [kind for kind in _OTHERS if kind in value]
    if written or "model" in value:
        return written[0] if written else None
    meant = [nearest(str(key), known) for key in value if key not in known]
    return next((guess for guess in meant if guess in _OTHERS), None)
