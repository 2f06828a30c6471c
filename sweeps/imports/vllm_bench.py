"""Results of `vllm bench serve` (--save-result), a file a run, and of `vllm bench sweep serve`, a folder of them.

    decode seconds    completed · (mean e2el - mean ttft)
    rounds            chunks after the first, decode seconds over mean itl (a chat stream's first holds the role alone)
    T_round           decode seconds / rounds
    Omega             (output tokens - completed) / rounds

itl is the time between chunks, which are rounds, tpot that between tokens. The acceptance rate is in percent, the rates
by position are fractions of the drafts; counts are made of the latter and num_drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specgauge.sweeps.imports.engine_run import Counted, EngineRun, Given, Imported, checked_gamma, located
from specgauge.sweeps.imports.files import Record, json_records

_DRAFTS = "spec_decode_num_drafts"
_RATES = "spec_decode_per_position_acceptance_rates"
_PLAIN = 0.95
"""Chunks for each token under which nobody decoded plainly."""
_NEAR = 0.02
"""What a count made of a rate may miss a whole number by."""


def is_bench(head: str) -> bool:
    """Whether a file begins as a result of `vllm bench serve` does."""
    return '"model_id"' in head and '"num_prompts"' in head and '"request_rate"' in head


def read_bench(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from result files, and from folders of `vllm bench sweep serve`.

    Raises:
        ValueError: as `json_records`; no request completed; counts that contradict each other; a folder without runs.
    """
    records = [record for path in paths for record in _records(path)]
    runs = [_run(record, given.of("gamma", index, len(records))) for index, record in enumerate(records)]
    configs = [config for record in records if (config := record.maybe_record("speculative_config")) is not None]
    drafts = [_draft(config) for config in configs]
    return Imported(
        runs=located(runs, given),
        target=next((name for record in records if (name := record.maybe_text("model_id"))), None),
        draft=next(filter(None, drafts), None),
    )


def _records(path: Path) -> Iterator[Record]:
    if not path.is_dir():
        yield from json_records(path)
        return
    files = sorted(path.rglob("run=*.json"))
    if not files:
        raise ValueError(f"{path}: expected folders with run=0.json, … of `vllm bench sweep serve`, got none")
    for file in files:
        yield from json_records(file)


def _draft(config: Record) -> str | None:
    method = config.maybe_text("method")
    return "ngram" if method is not None and "ngram" in method else config.maybe_text("model") or method


def _run(record: Record, gamma: int | None) -> EngineRun:
    completed, tokens = record.whole("completed"), record.whole("total_output_tokens")
    if not completed:
        raise ValueError(f"{record.where}, completed: expected requests that completed, got 0")
    later = tokens - completed
    if later < 1:
        raise ValueError(f"{record.where}: expected more than one token a request, got {tokens} in {completed}")
    latency_s = completed * record.number("mean_e2el_ms") / 1e3
    decode_s = latency_s - completed * record.number("mean_ttft_ms") / 1e3
    if decode_s <= 0:
        raise ValueError(f"{record.where}: expected mean_e2el_ms above mean_ttft_ms, got no time between")
    chunks = _chunks(record, completed, decode_s)
    if gamma is None:
        gamma = _gamma(record)
        if not gamma and 0 < chunks < _PLAIN * later:
            raise ValueError(
                f"{record.where}: expected a chunk a token of plain decoding, or the counts of speculation, got "
                f"{chunks} chunks for {later} tokens: a release of vLLM without {_DRAFTS}? give --gamma 0 if plain"
            )
    rounds = later if gamma == 0 else max(chunks, _drafts(record))
    if gamma and rounds < 1:
        raise ValueError(f"{record.where}: expected rounds that drafted at gamma {gamma}, got none")
    return EngineRun(
        source=record.where,
        gamma=gamma,
        batch_size=_batch_size(record, latency_s),
        is_mean_batch=not record.has("max_concurrency"),
        context=round((record.whole("total_input_tokens") + tokens / 2) / completed),
        t_round_s=decode_s / rounds,
        counts=(_counted(record, gamma, rounds, later),) if gamma else (),
    )


def _gamma(record: Record) -> int:
    """As configured where a sweep wrote that down, else the number of positions; 0 without speculation."""
    config = record.maybe_record("speculative_config")
    if config is not None and config.has("num_speculative_tokens"):
        return checked_gamma(config.whole("num_speculative_tokens"), config.where)
    if not record.has(_RATES):
        if record.has("spec_decode_acceptance_rate"):
            raise ValueError(
                f"{record.where}: expected the counts beside spec_decode_acceptance_rate, got none of them"
            )
        return 0
    return checked_gamma(len(record.entries(_RATES)), f"{record.where}, {_RATES}")


def _drafts(record: Record) -> int:
    return record.maybe_whole(_DRAFTS) or 0


def _chunks(record: Record, completed: int, decode_s: float) -> int:
    """Rounds by their chunks; 0 where the latency between chunks is not told."""
    mean_s = (record.maybe_number("mean_itl_ms") or 0.0) / 1e3
    if not mean_s:
        return 0
    is_chat = "chat" in (record.maybe_text("endpoint_type") or record.maybe_text("backend") or "")
    return round(decode_s / mean_s) - (completed if is_chat else 0)


def _batch_size(record: Record, latency_s: float) -> int | None:
    """The concurrency asked for, else what was in flight on average (Little's law)."""
    if record.has("max_concurrency"):
        return max(1, min(record.whole("max_concurrency", least=1), record.whole("num_prompts")))
    duration_s = record.maybe_number("duration")
    return max(1, round(latency_s / duration_s)) if duration_s else None


def _counted(record: Record, gamma: int, rounds: int, tokens: int) -> Counted:
    drafts = record.whole(_DRAFTS)
    drafted, accepted = record.whole("spec_decode_draft_tokens"), record.whole("spec_decode_accepted_tokens")
    if drafts and record.has("spec_decode_acceptance_length"):
        record.acceptance_length("spec_decode_acceptance_length")
    return Counted(
        source=record.where,
        rounds=rounds,
        tokens=tokens,
        drafted=drafted,
        accepted=accepted,
        accepted_by_position=_positions(record, gamma, drafts, accepted),
    )


def _positions(record: Record, gamma: int, drafts: int, accepted: int) -> tuple[int, ...]:
    where = f"{record.where}, {_RATES}"
    entries = record.entries(_RATES)
    values: Mapping[str, object] = {str(index): rate for index, rate in enumerate(entries)}
    rates = Record(where=where, values=values)
    found = []
    for index in range(len(entries)):
        rate = rates.number(str(index))
        if rate > 1:
            raise ValueError(f"{where}: expected fractions of the drafts, got {rate:g}: percent?")
        exact = rate * drafts
        if abs(exact - round(exact)) > _NEAR:
            raise ValueError(
                f"{where}: expected marginal rates, which are counts over {drafts} drafts, got {rate:g}: a rate given "
                "that the draft before was accepted?"
            )
        found.append(round(exact))
    if sum(found) != accepted:
        raise ValueError(f"{where}: expected rates that add up to the {accepted} drafts accepted, got {sum(found)}")
    return tuple((found + [0] * gamma)[:gamma])
