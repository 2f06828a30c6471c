"""What llama.cpp's tools write: llama-bench, llama-batched-bench, llama-server's timings in answers and its /metrics.

    llama-bench -p 1,2,…,γ+1 -n N -d CONTEXT -o json    T_verify(γ) of -p γ+1, T_decode of -n over N; a block each
    … of a smaller model beside it                      C(γ), γ steps of it
    llama-batched-bench --output-format jsonl           T_decode = t_tg / tg at batch size pl
    llama-server timings                                rounds = predicted_n - 1 - draft_n_accepted
    llama-server /metrics                               rounds = tokens predicted - drafts accepted, over n_decode

The first predicted token comes of the prompt; predicted_ms holds the rounds after it. The counters do not tell how many
requests there were: each first token stands among their rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specgauge.configs.fields import LARGEST_GAMMA
from specgauge.configs.prometheus import Between
from specgauge.sweeps.imports.engine_run import Counted, EngineRun, Given, Imported, checked_gamma, located
from specgauge.sweeps.imports.files import Record, json_records
from specgauge.sweeps.imports.prometheus import betweens_of
from specgauge.sweeps.imports.requests import Request, runs_of
from specgauge.sweeps.store.schema import WarningRow

NS_PER_S = 1e9
_TOKENS, _DRAFTS = "llamacpp:tokens_predicted", "llamacpp:spec_decode_num_drafts"
_DRAFTED, _ACCEPTED = "llamacpp:spec_decode_num_draft_tokens", "llamacpp:spec_decode_num_accepted_tokens"


def is_bench(head: str) -> bool:
    """Whether a file begins as llama-bench's does."""
    return all(f'"{name}"' in head for name in ("build_commit", "n_prompt", "n_gen", "avg_ns"))


def read_bench(paths: Sequence[Path], given: Given) -> Imported:
    """Steps and verifications of one model, and draft steps of a smaller one where there are two.

    Raises:
        ValueError: as `json_records`; more than two models; no row that tells anything of a round.
    """
    records = [record for path in paths for record in json_records(path)]
    models = _models(records)
    target, draft = models[0], models[1] if len(models) == 2 else None
    runs = [run for record in records if _model(record) == target for run in _target_runs(record)]
    gammas = sorted({run.gamma for run in runs if run.gamma})
    if draft is not None:
        own = [record for record in records if _model(record) == draft and _is_generation(record)]
        contexts = sorted({run.context for run in runs if run.context is not None})
        runs += [run for record in own for run in _draft_runs(record, max(gammas, default=0), contexts)]
    if not runs:
        raise ValueError(
            f"{records[0].where}: expected rows of -n, or of -p 2 to {LARGEST_GAMMA + 1}, got prompts alone that no "
            "round verifies"
        )
    release = records[0].maybe_text("build_commit")
    return Imported(runs=located(runs, given), target=target, draft=draft, release=release)


def _model(record: Record) -> str:
    return record.maybe_text("model_filename") or record.maybe_text("model_type") or "unknown"


def _models(records: Sequence[Record]) -> list[str]:
    """Names, the largest model first; two at most."""
    sizes = {_model(record): record.maybe_number("model_n_params") or 0.0 for record in records}
    if len(sizes) > 2:
        raise ValueError(
            f"{records[0].where}: expected rows of a target, and of a smaller draft beside it, got {len(sizes)} "
            f"models: {', '.join(sorted(sizes)[:3])}"
        )
    return sorted(sizes, key=lambda name: -sizes[name])


def _is_generation(record: Record) -> bool:
    return record.whole("n_gen") > 0 and record.whole("n_prompt") == 0


def _seconds(record: Record) -> list[float]:
    """Of each repetition."""
    samples = record.wholes("samples_ns") if record.has("samples_ns") else [record.whole("avg_ns", least=1)]
    if not samples or min(samples) < 1:
        raise ValueError(f"{record.where}, samples_ns: expected times above 0, got {samples[:1] or 'none'}")
    return [sample / NS_PER_S for sample in samples]


def _target_runs(record: Record) -> Iterator[EngineRun]:
    """A run a repetition; none of a prompt that no round verifies, or of prompts and tokens in one row."""
    prompt, generated = record.whole("n_prompt"), record.whole("n_gen")
    context = max(1, record.maybe_whole("n_depth") or 0)
    for number, seconds in enumerate(_seconds(record), 1):
        where = f"{record.where}, repetition {number}"
        if generated and not prompt:
            yield EngineRun(source=where, gamma=0, batch_size=1, context=context, t_round_s=seconds / generated)
        elif not generated and 2 <= prompt <= LARGEST_GAMMA + 1:
            yield EngineRun(source=where, gamma=prompt - 1, batch_size=1, context=context, t_verify_s=seconds)


def _draft_runs(record: Record, gamma_max: int, contexts: Sequence[int]) -> Iterator[EngineRun]:
    """C(1) … C(γ_max), as many steps of the draft each, at its own depth or the only one of the target."""
    step_s = sum(_seconds(record)) / len(_seconds(record)) / record.whole("n_gen")
    depth = max(1, record.maybe_whole("n_depth") or 0)
    context = contexts[0] if len(contexts) == 1 else depth
    for gamma in range(1, gamma_max + 1):
        yield EngineRun(source=record.where, gamma=gamma, batch_size=1, context=context, t_draft_total_s=gamma * step_s)


def is_batched_bench(head: str) -> bool:
    """Whether a file begins as llama-batched-bench's lines do."""
    return all(f'"{name}"' in head for name in ("pl", "t_tg", "n_kv"))


def read_batched_bench(paths: Sequence[Path], given: Given) -> Imported:
    """Plain decoding at each batch size; ValueError as `json_records`."""
    runs = [
        EngineRun(
            source=record.where,
            gamma=0,
            batch_size=record.whole("pl", least=1),
            context=max(1, round(record.whole("pp") + record.whole("tg", least=1) / 2)),
            t_round_s=record.number("t_tg") / record.whole("tg", least=1),
        )
        for path in paths
        for record in json_records(path)
    ]
    return Imported(runs=located(runs, given))


def is_answer(head: str) -> bool:
    """Whether a file begins with an answer of llama-server."""
    return '"timings"' in head and '"predicted_ms"' in head


def read_answers(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from answers, a run for each file and γ; ValueError as `json_records`, and for answers without timings."""
    runs: list[EngineRun] = []
    notes: list[WarningRow] = []
    target = None
    for index, path in enumerate(paths):
        records = json_records(path)
        target = target or next((name for record in records if (name := record.maybe_text("model"))), None)
        timings = [found for record in records if (found := record.maybe_record("timings")) is not None]
        if not timings:
            raise ValueError(f"{path}: expected answers of llama-server with `timings`, got none")
        gamma = given.of("gamma", index, len(paths))
        if gamma is None:
            gamma = _least_gamma(path, timings, notes)
        runs += runs_of(str(path), [_request(one, gamma) for one in timings], is_complete=False)
    return Imported(runs=located(runs, given), target=target, notes=tuple(notes))


def _rounds(timings: Record) -> int:
    return timings.whole("predicted_n", least=1) - 1 - (timings.maybe_whole("draft_n_accepted") or 0)


def _least_gamma(path: Path, timings: Sequence[Record], notes: list[WarningRow]) -> int:
    """The smallest γ with which so many drafts fit into the rounds: the answers do not tell γ itself."""
    drafted = sum(one.maybe_whole("draft_n") or 0 for one in timings)
    rounds = sum(max(_rounds(one), 0) for one in timings)
    if not drafted:
        return 0
    gamma = checked_gamma(math.ceil(drafted / max(rounds, 1)), str(path))
    notes.append(_derived_note(str(path), gamma, f"{drafted} drafts in {rounds} rounds"))
    return gamma


def _derived_note(where: str, gamma: int, basis: str) -> WarningRow:
    return WarningRow(
        code="gamma_derived",
        message=f"{where}: γ is taken as {gamma}, from {basis}",
        remedy="give --gamma where fewer were drafted than --spec-draft-n-max allows (--spec-draft-p-min, lookups)",
    )


def _request(timings: Record, gamma: int) -> Request:
    tokens, rounds = timings.whole("predicted_n", least=1), _rounds(timings)
    drafted, accepted = timings.maybe_whole("draft_n") or 0, timings.maybe_whole("draft_n_accepted") or 0
    if drafted:
        timings.required("draft_n_accepted")
    if accepted > drafted:
        raise ValueError(f"{timings.where}: expected at most draft_n = {drafted} accepted drafts, got {accepted}")
    counts: Mapping[int, Counted] = {}
    if drafted and rounds > 0:
        counts = {
            gamma: Counted(source=timings.where, rounds=rounds, tokens=tokens - 1, drafted=drafted, accepted=accepted)
        }
    cached = timings.maybe_whole("cache_n") or 0
    return Request(
        counts=counts,
        prompt_tokens=timings.whole("prompt_n") + cached,
        output_tokens=tokens,
        decode_s=timings.number("predicted_ms") / 1e3,
    )


def is_scrape(head: str) -> bool:
    """Whether a file begins as llama-server's metrics do."""
    return "llamacpp:" in head and not head.lstrip().startswith(("{", "["))


def read_scrapes(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from pairs of scrapes, BEFORE AFTER; errors as `betweens_of`, and for counters that contradict."""
    betweens = betweens_of(paths, needs=_TOKENS)
    notes: list[WarningRow] = []
    runs = [_scraped(between, given.of("gamma", index, len(betweens)), notes) for index, between in enumerate(betweens)]
    notes.append(
        WarningRow(
            code="first_tokens_in_rounds",
            message="llama.cpp's counters have the first token of each request among the rounds: they are told shorter",
            remedy="compare γ under one load of long answers, plain decoding too; or import answers (llama-server)",
        )
    )
    return Imported(runs=located(runs, given), notes=tuple(notes))


def _scraped(between: Between, gamma: int | None, notes: list[WarningRow]) -> EngineRun:
    tokens, steps = between.whole(_TOKENS), between.whole("llamacpp:n_decode")
    drafts, drafted, accepted = (between.whole(name) for name in (_DRAFTS, _DRAFTED, _ACCEPTED))
    rounds, seconds = tokens - accepted, between.counter("llamacpp:tokens_predicted_seconds")
    if accepted > drafted or drafts > rounds:
        raise ValueError(
            f"{between.where}: expected at most {drafted} accepted drafts, and {rounds} rounds (tokens less accepted) "
            f"with drafts, got {accepted} and {drafts}: another release?"
        )
    positions = between.by_position(f"{_ACCEPTED}_per_pos")
    if gamma is None:
        gamma = 0
        if drafted:
            most = max(math.ceil(drafted / max(drafts, 1)), max(positions, default=-1) + 1)
            gamma = checked_gamma(most, between.where)
            notes.append(_derived_note(between.where, gamma, f"{drafted} drafts in {drafts} rounds"))
    counted = Counted(
        source=between.where,
        rounds=rounds,
        tokens=tokens,
        drafted=drafted,
        accepted=accepted,
        accepted_by_position=between.first_accepted(positions, gamma, accepted),
    )
    return EngineRun(
        source=between.where,
        gamma=gamma,
        batch_size=max(1, round(rounds / steps)) if steps else None,
        is_mean_batch=True,
        t_round_s=seconds / rounds if seconds and rounds else None,
        counts=(counted,) if gamma else (),
    )
