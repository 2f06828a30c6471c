"""Scrapes of a vLLM server's /metrics, two a run: BEFORE AFTER, and more pairs of them for more γ and batch sizes.

    rounds        inter_token_latency_seconds_count: every step of a request, those too where a lookup found nothing
    T_round       inter_token_latency_seconds_sum over it: a round's tokens arrive together
    Omega         (generation tokens - first tokens) / rounds
    A_i           accepted at position i over rounds

num_drafts is not taken for the rounds: vLLM counts none where nothing was drafted. Accepted drafts that a length limit
cut off are counted by vLLM and were no tokens of anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specgauge.configs.prometheus import Between
from specgauge.sweeps.imports.engine_run import Counted, EngineRun, Given, Imported, checked_gamma, located
from specgauge.sweeps.imports.prometheus import betweens_of
from specgauge.sweeps.store.schema import WarningRow

_TOKENS = "vllm:generation_tokens"
_DRAFTS, _ACCEPTED = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"


def is_scrape(head: str) -> bool:
    """Whether a file begins as vLLM's metrics do."""
    return "vllm:" in head and ("# HELP" in head or "# TYPE" in head or head.lstrip().startswith("vllm:"))


def read_scrapes(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from pairs of scrapes; errors as `betweens_of`."""
    betweens = betweens_of(paths, needs=_TOKENS)
    notes: list[WarningRow] = []
    runs = [
        _run(between, given.of("gamma", index, len(betweens)), notes, is_sized=bool(given.batch_size))
        for index, between in enumerate(betweens)
    ]
    models = betweens[-1].after.models
    return Imported(runs=located(runs, given), target=models[0] if models else None, notes=tuple(notes))


def _run(between: Between, gamma: int | None, notes: list[WarningRow], *, is_sized: bool) -> EngineRun:
    from specgauge.bench.serving.counters import vllm_counts

    own = vllm_counts(between)
    rounds, steps = own.rounds, own.steps
    if not rounds:
        raise ValueError(f"{between.where}: expected rounds after the first token of requests, got none")
    gamma = _gamma(between) if gamma is None else gamma
    requests = between.whole("vllm:request_prompt_tokens_count")
    if steps and not is_sized:
        notes.append(
            WarningRow(
                code="batch_size_derived",
                message=(
                    f"{between.where}: {rounds / steps:.2f} requests decoded in a step on average, taken as batch size"
                ),
                remedy="give --batch-size where the load was held at another; scrape around a steady load",
            )
        )
    context = None
    if requests:
        prompts, tokens = between.counter("vllm:request_prompt_tokens_sum"), between.whole(_TOKENS)
        context = round((prompts + tokens / 2) / requests)
    counts: tuple[Counted, ...] = ()
    if gamma:
        accepted, by_position = between.whole(_ACCEPTED), between.by_position(f"{_ACCEPTED}_per_pos")
        counts = (
            Counted(
                source=between.where,
                rounds=rounds,
                tokens=own.tokens,
                drafted=between.whole("vllm:spec_decode_num_draft_tokens"),
                accepted=accepted,
                accepted_by_position=between.first_accepted(by_position, gamma, accepted),
            ),
        )
    return EngineRun(
        source=between.where,
        gamma=gamma,
        batch_size=max(1, round(rounds / steps)) if steps else None,
        is_mean_batch=True,
        context=context,
        t_round_s=own.t_round_s,
        counts=counts,
    )


def _gamma(between: Between) -> int:
    drafts, drafted = between.whole(_DRAFTS), between.whole("vllm:spec_decode_num_draft_tokens")
    if not drafts and drafted:
        raise ValueError(
            f"{between.where}: expected {_DRAFTS} beside {drafted} draft tokens, got none: a release of vLLM without "
            "it (its V0 engine)"
        )
    if not drafts:
        return 0
    if drafted % drafts:
        raise ValueError(
            f"{between.where}: expected the same gamma in every round, got {drafted} draft tokens in {drafts} drafts; "
            "where a lookup found fewer, give --gamma; where gamma changed, import per-request metrics (vllm-requests)"
        )
    return checked_gamma(drafted // drafts, between.where)
