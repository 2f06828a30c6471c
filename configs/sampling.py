"""A sampling setting: how logits become a token, under a name of its own.

sampling: [{name: greedy, temperature: 0}, {name: t08, temperature: 0.8, top_p: 0.95}]
"""

from __future__ import annotations

from typing import Annotated

from specgauge.configs.names import NAME
from specgauge.configs.rules import Real, Whole
from specgauge.configs.section import Section


class SamplingConfig(Section):
    """One named way to turn logits into a token; both models' distributions pass through it."""

    name: Annotated[str, NAME]
    """Names the setting in files, tables and options."""
    temperature: Annotated[float, Real(at_least=0.0, at_most=100.0)] = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_k: Annotated[int | None, Whole(at_least=0, or_null=True, null_means="off")] = None
    """Keeps the k likeliest tokens; null or 0 keeps all."""
    top_p: Annotated[float | None, Real(above=0.0, at_most=1.0, or_null=True, null_means="off")] = None
    """Keeps the likeliest tokens that together reach this probability; null or 1 keeps all."""
    min_p: Annotated[float | None, Real(at_least=0.0, at_most=1.0, or_null=True, null_means="off")] = None
    """Keeps tokens at least this likely relative to the likeliest; null or 0 keeps all."""
    repetition_penalty: Annotated[float, Real(above=0.0, at_most=100.0)] = 1.0
    """Makes tokens of the prompt and the text so far less likely where above 1; 1 is off."""
    min_tokens_to_keep: Annotated[int, Whole(at_least=1)] = 1
    """What top_p and min_p leave at least."""
