"""The commands of the analytic model, `predict`, `plan` and `explain`: no torch, the model imported when they run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from specgauge.cli.errors import PROGRAM
from specgauge.cli.run_commands import at_home

if TYPE_CHECKING:
    from specgauge.cli.parsing import GivenAcceptance
    from specgauge.sweeps.foretell.machine import PlannedPair


def _option(help_text: str, metavar: str | None = None, callback: Callable[..., Any] | None = None) -> Any:
    return typer.Option(metavar=metavar, help=help_text, callback=callback)


Alpha = Annotated[float | None, _option("One acceptance rate for every position.")]
Gammas = Annotated[str | None, _option("Drafts per round: 4, 1,2,4, 1:8 or 1:8:2.", "G")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

DraftDevices = Annotated[int | None, _option("1 copies the draft to every device; default: shared as the target.", "N")]
Uncalibrated = Annotated[
    bool, typer.Option("--uncalibrated", help="Take data-sheet peaks, whatever the entry was fitted to.")
]
SurvivalOf = Annotated[Path | None, _option("Acceptance recorded in this run directory.", "RUN", callback=at_home)]
Lengths = Annotated[Path | None, _option("Tokens a round by gamma, bonus included: YAML.", "FILE", callback=at_home)]
CalibrateOn = Annotated[Path | None, _option("Fit the roofline to measured times.", "FILE|RUN", callback=at_home)]
Forms = Annotated[bool, typer.Option("--forms", help="With --calibrate: also the other forms that were tried.")]
Aliases = Annotated[list[str] | None, _option("With --calibrate: what a target or gpu of the table is.", "NAME=ENTRY")]
CalibratedEntry = Annotated[
    Path | None, _option("With --calibrate: write the --hardware entry, calibrated.", "FILE", callback=at_home)
]

TABLE_OPTIONS = ("table", "fit_overhead", "as_json")
CALIBRATE_OPTIONS = (
    *("calibrate", "hold_out", "forms", "alias", "dtype", "hardware", "tensor_parallel", "launch_of"),
    *("source", "out", "draft_window"),
)
PLAN_OPTIONS = (
    *("target", "draft", "hardware", "tensor_parallel", "draft_tensor_parallel", "draft_window"),
    *("pipeline_parallel", "dtype"),
    "uncalibrated",
    *("weights", "draft_weights", "kv_cache", "alpha", "rates", "survival_of", "pair", "sampling"),
    *("acceptance_lengths", "acceptance_table", "batch_size", "context", "gamma", "max_itl", "html", "as_json"),
)
LOGITS_OPTIONS = (
    *("logits", "names", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "history"),
    *("min_tokens_to_keep", "as_json"),
)
PROBS_OPTIONS = ("target_probs", "draft_probs", "names", "gamma", "acceptance_rule", "draft_sampling", "svg", "as_json")


PLAN_EXAMPLE = "--target llama-3.1-8b --draft llama-3.2-1b --hardware h100-sxm --alpha .8"
EXPLAIN_EXAMPLE = "--target-probs .2,.4,.4 --draft-probs .1,.1,.8"
PREDICT_EXAMPLE = "--alpha .8 --gamma 1:6 --t-decode 19ms --t-draft 1.6ms --t-verify 21ms"


def predict(
    line: typer.Context,
    alpha: Alpha = None,
    rates: Annotated[str | None, _option("P(the first i drafts are accepted), never rising.", "A1,A2,…")] = None,
    conditional_rates: Annotated[
        str | None, _option("Per position, given that those before it were accepted.", "R1,R2,…")
    ] = None,
    counts: Annotated[
        str | None, _option("ROUNDS:accepted at each position; or ACCEPTED/DRAFTED/ROUNDS.", "N:C1,C2,…")
    ] = None,
    histogram: Annotated[str | None, _option("Rounds that accepted 0, 1, … gamma drafts.", "N0,N1,…")] = None,
    tokens_per_round: Annotated[str | None, _option("Measured, one for each --gamma.", "W1,W2,…")] = None,
    from_run: Annotated[Path | None, _option("Recorded in this run directory.", "RUN", callback=at_home)] = None,
    pair: Annotated[str | None, _option("Of --from-run, where it has several.", "NAME")] = None,
    sampling: Annotated[str | None, _option("Of --from-run, where it has several.", "NAME")] = None,
    context: Annotated[int | None, _option("Of --from-run: of its texts that start there.", "N")] = None,
    gamma: Gammas = None,
    t_decode: Annotated[str | None, _option("A plain decoding step, as 19.05ms; no unit: seconds.", "TIME")] = None,
    t_draft: Annotated[str | None, _option("One draft step; a list gives steps 1, 2, ….", "TIME[,…]")] = None,
    t_draft_total: Annotated[str | None, _option("All drafts of a round, by gamma.", "TIME[,…]")] = None,
    t_verify: Annotated[str | None, _option("Verification by gamma; one value is assumed flat.", "TIME[,…]")] = None,
    t_overhead: Annotated[str | None, _option("The rest of a round; without it S is optimistic.", "TIME")] = None,
    t_draft_catch_up: Annotated[str | None, _option("Extra of a draft step that feeds two tokens.", "TIME")] = None,
    draft_kind: Annotated[
        str, _option("autoregressive, parallel (heads: one pass) or lookup.", "KIND")
    ] = "autoregressive",
    batch: Annotated[int, _option("Rows decoded together; the times are those of that batch.")] = 1,
    max_itl: Annotated[str | None, _option("Longest wait between chunks; bounds a round.", "TIME")] = None,
    wanted_speedup: Annotated[float | None, _option("Tell the alpha that this speed-up needs.", "S")] = None,
    table: Annotated[Path | None, _option("A CSV file with one case for each row.", "FILE", callback=at_home)] = None,
    fit_overhead: Annotated[
        str | None, _option("Fit one overhead for each value of this column of the table.", "COLUMN")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the speed-up from acceptance and times.

    By gamma from the options, or for every row of --table FILE, whose columns are gamma, t_decode_s, t_verify_s,
    t_draft_s or t_draft_total_s, tokens_per_round or acceptance_rate, and where known t_overhead_s,
    t_draft_catch_up_s, batch_size, speedup_measured.
    """
    from specgauge.cli.parsing import parse_acceptance, parse_duration_s
    from specgauge.cli.predict import costs_from_options, predict_rows, predict_table, rows_text, table_text

    if table is not None:
        _refuse_others(line, "--table", TABLE_OPTIONS)
        _print(predict_table(table, fit_overhead_by=fit_overhead), as_json, table_text)
        return
    if fit_overhead is not None:
        raise ValueError("--fit-overhead: expected --table FILE with measured speed-ups beside it, got none")
    given = {
        "alpha": alpha,
        "rates": rates,
        "conditional_rates": conditional_rates,
        "counts": counts,
        "histogram": histogram,
        "tokens_per_round": tokens_per_round,
    }
    times = {
        "t_decode": t_decode,
        "t_draft": t_draft,
        "t_draft_total": t_draft_total,
        "t_verify": t_verify,
        "t_overhead": t_overhead,
        "t_draft_catch_up": t_draft_catch_up,
    }
    if from_run is None and not any(value is not None for value in (*given.values(), *times.values())):
        raise ValueError(
            "predict: expected acceptance (--alpha, --rates, … or --from-run RUN) and times (--t-decode, --t-draft, "
            f"--t-verify), got neither; such as: {PROGRAM} predict {PREDICT_EXAMPLE} (or --table FILE)"
        )
    if from_run is None:
        _refuse_without("--from-run", {"--pair": pair, "--sampling": sampling, "--context": context})
        acceptance = parse_acceptance(given, gamma)
    else:
        acceptance = _recorded(from_run, given, gamma, pair=pair, sampling=sampling, context=context)
    costs = costs_from_options(acceptance.gammas, times, draft_kind)
    if from_run is not None:
        from specgauge.cli.recorded import with_mean_verification

        costs = with_mean_verification(costs, acceptance, batch_size=batch)
    limit_s = None if max_itl is None else parse_duration_s(max_itl, "--max-itl")
    document = predict_rows(acceptance, costs, batch_size=batch, max_itl_s=limit_s, wanted_speedup=wanted_speedup)
    _print(document, as_json, rows_text)


def _recorded(
    run_dir: Path,
    others: Mapping[str, object],
    gamma: str | None,
    *,
    pair: str | None,
    sampling: str | None,
    context: int | None = None,
    flag: str = "--from-run",
) -> GivenAcceptance:
    """The acceptance of one setting of a run."""
    from specgauge.cli.parsing import option_name, parse_gammas
    from specgauge.cli.recorded import acceptance_of, recorded_settings
    from specgauge.cli.run_commands import trusted
    from specgauge.sweeps.store.rundir import Run

    typed = [option_name(name) for name, value in others.items() if value is not None]
    if typed:
        raise ValueError(f"acceptance: expected {flag} or one of those typed, got {flag} and {typed[0]}")
    run = trusted(Run.open(run_dir))
    settings = recorded_settings(run, pair=pair, sampling=sampling, context=context)
    names = list(dict.fromkeys(one.key.sampling for one in settings))
    if len(names) > 1:
        raise ValueError(f"--sampling: expected one of {', '.join(names)}, got none")
    gammas = None if gamma is None else parse_gammas(gamma, "--gamma")
    return acceptance_of(run, settings[0], gammas, context=context)


def _missing(command: str, needed: Mapping[str, object], example: str, instead: str) -> ValueError:
    """What a command still needs, with a line that has all of it."""
    names = [name for name, value in needed.items() if value is None]
    return ValueError(
        f"{command}: expected {', '.join(needed)}, got no {', '.join(names)}; such as: {PROGRAM} {command} {example} "
        f"(or {instead})"
    )


def _refuse_without(flag: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name}: expected {flag} beside it, got none")


def plan(
    line: typer.Context,
    target: Annotated[str | None, _option("Shipped shape, config.json, its folder, or cached hub id.", "SHAPE")] = None,
    draft: Annotated[str | None, _option("The same, or eagle3, layers:N, ngram (default: ngram).", "DRAFT")] = None,
    hardware: Annotated[str | None, _option("A shipped entry, or a YAML file of your own.", "ENTRY")] = None,
    tensor_parallel: Annotated[int, _option("Devices that share every layer.", "N")] = 1,
    draft_tensor_parallel: DraftDevices = None,
    draft_window: Annotated[int | None, _option("Cached tokens that drafts see at most; default: all.", "N")] = None,
    pipeline_parallel: Annotated[int, _option("Only 1: rounds through a pipeline are not modelled.", "N")] = 1,
    dtype: Annotated[str | None, _option("Of weights, cache and arithmetic; default: the config's.", "DTYPE")] = None,
    weights: Annotated[str | None, _option("The target's: a dtype, int8, fp8, int4, int4:128.", "DTYPE")] = None,
    draft_weights: Annotated[str | None, _option("The draft's, in the same way.", "DTYPE")] = None,
    kv_cache: Annotated[str | None, _option("Of keys and values, such as fp8.", "DTYPE")] = None,
    uncalibrated: Uncalibrated = False,
    alpha: Alpha = None,
    rates: Annotated[str | None, _option("P(the first i drafts are accepted), never rising.", "A1,A2,…")] = None,
    survival_of: SurvivalOf = None,
    pair: Annotated[str | None, _option("Of --survival-of, where it has several.", "NAME")] = None,
    sampling: Annotated[str | None, _option("Of --survival-of, where it has several.", "NAME")] = None,
    acceptance_lengths: Lengths = None,
    acceptance_table: Annotated[str | None, _option("Of that file, where it has several: MODEL/MODE.", "NAME")] = None,
    batch_size: Annotated[str, _option("1,8,64; 1:256: powers of two and both ends; 8:64:8.", "N")] = "1:256",
    context: Annotated[str, _option("Tokens in the cache, such as 1000 or 1k,8k (1k is 1024).", "N,…")] = "1k",
    gamma: Gammas = None,
    max_itl: Annotated[str | None, _option("Longest wait between chunks, 40ms; bounds a round.", "TIME")] = None,
    calibrate: CalibrateOn = None,
    hold_out: Annotated[str, _option("What --calibrate leaves out: batch_size or context.", "AXIS")] = "batch_size",
    forms: Forms = False,
    alias: Aliases = None,
    launch_of: Annotated[str | None, _option("With --calibrate: borrow this entry's launch cost.", "ENTRY")] = None,
    source: Annotated[str | None, _option("With --out: where the times are from.", "TEXT")] = None,
    out: CalibratedEntry = None,
    html: Annotated[Path | None, _option("Also write a page with the map.", "FILE", callback=at_home)] = None,
    as_json: AsJson = False,
) -> None:
    """Predict whether speculation pays, where and with which gamma, before there is a machine.

    From the shapes of target and draft, a data sheet and acceptance (--alpha, --rates, --survival-of or
    --acceptance-lengths).  --calibrate fits the data sheet's entry to measured times and says first how far it
    predicts those left out: a run directory, or a table with the columns target, gpu (such as 8xA100), batch_size,
    context, gamma, t_decode_s, t_verify_s, and to know epsilon t_draft_total_s, tokens_per_round, speedup_measured.
    """
    _refuse_pipeline(pipeline_parallel)
    if calibrate is not None:
        _refuse_others(line, "--calibrate", CALIBRATE_OPTIONS)
        by = _chosen("--hold-out", hold_out, Literal["batch_size", "context"])
        fit = Fit(hardware=hardware, launch_of=launch_of, source=source, out=out, draft_window=draft_window)
        _calibrate(calibrate, alias or (), by, fit, forms=forms, dtype=dtype, tensor_parallel=tensor_parallel)
        return
    accepted = next((one for one in (alpha, rates, survival_of, acceptance_lengths) if one is not None), None)
    if target is None or hardware is None or accepted is None:
        needed = {"--target": target, "--hardware": hardware, "--alpha (or other acceptance)": accepted}
        raise _missing("plan", needed, PLAN_EXAMPLE, "--calibrate FILE|RUN to fit the roofline to measured times")
    _refuse_others(line, "--target", PLAN_OPTIONS)
    given = {"alpha": alpha, "rates": rates, "acceptance_lengths": acceptance_lengths}
    if survival_of is not None:
        acceptance = _recorded(survival_of, given, gamma, flag="--survival-of", pair=pair, sampling=sampling)
    else:
        _refuse_without("--survival-of", {"--pair": pair, "--sampling": sampling})
        acceptance = _typed(given, gamma, acceptance_table)
    from specgauge.cli.plan import plan_text
    from specgauge.sweeps.foretell.machine import Dtypes, planned_pair

    models = planned_pair(
        target,
        draft,
        hardware,
        tensor_parallel=tensor_parallel,
        draft_tensor_parallel=draft_tensor_parallel,
        draft_window=draft_window,
        dtypes=Dtypes(dtype=dtype, kv_cache=kv_cache, weights=weights, draft_weights=draft_weights),
        calibrated=not uncalibrated,
    )
    document = _planned(models, acceptance, batch_size=batch_size, context=context, max_itl=max_itl)
    if html is not None:
        from specgauge.reports.plan_page import write_plan_page

        write_plan_page(document, html)
    _print(document, as_json, plan_text)


def _refuse_pipeline(stages: int) -> None:
    if stages != 1:
        raise ValueError(
            f"--pipeline-parallel: expected 1, since a round's bubbles in a pipeline are not modelled, got {stages}; "
            "give the devices to --tensor-parallel"
        )


def _typed(given: Mapping[str, Any], gamma: str | None, table: str | None) -> GivenAcceptance:
    from specgauge.cli.plan import typed_acceptance

    rates = {name: value for name, value in given.items() if name != "acceptance_lengths"}
    lengths: Path | None = given["acceptance_lengths"]
    if lengths is None:
        _refuse_without("--acceptance-lengths", {"--acceptance-table": table})
    return typed_acceptance(rates, gamma, lengths=lengths, table=table)


def _planned(
    models: PlannedPair, acceptance: GivenAcceptance, *, batch_size: str, context: str, max_itl: str | None
) -> dict[str, Any]:
    from specgauge.cli.parsing import parse_batch_sizes, parse_counts, parse_duration_s
    from specgauge.cli.plan import plan_of
    from specgauge.sweeps.foretell.document import plan_document

    max_itl_s = None if max_itl is None else parse_duration_s(max_itl, "--max-itl", needs_unit=True)
    if max_itl_s == 0:
        raise ValueError(f"--max-itl: expected a time above 0, got {max_itl!r}")
    planned = plan_of(
        models,
        acceptance,
        batch_sizes=parse_batch_sizes(batch_size, "--batch-size"),
        contexts=list(dict.fromkeys(parse_counts(context, "--context"))),
        max_itl_s=max_itl_s,
    )
    return plan_document(planned)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What is to become of the fit of one device, as typed."""

    hardware: str | None
    launch_of: str | None
    source: str | None
    out: Path | None
    draft_window: int | None


def _calibrate(
    path: Path,
    aliases: Iterable[str],
    by: Literal["batch_size", "context"],
    fit: Fit,
    *,
    forms: bool,
    dtype: str | None,
    tensor_parallel: int,
) -> None:
    """Print held-out errors and fitted numbers of a table or a run; write the calibrated entry where that is asked."""
    from specgauge.cli.calibrate import (
        calibrated_entry,
        calibration_text,
        compare_groups,
        entries_text,
        measured_groups,
        write_entry,
    )
    from specgauge.cli.parsing import parse_pairs

    named, hardware, launch_of = parse_pairs(list(aliases), "--alias"), fit.hardware, fit.launch_of
    groups = measured_groups(
        path,
        aliases=named,
        dtype=dtype,
        hardware=hardware,
        tensor_parallel=tensor_parallel,
        draft_window=fit.draft_window,
    )
    if hardware is None:
        others = {"--out": fit.out, "--launch-of": launch_of, "--source": fit.source}
        _refuse_without("--hardware", {**others, "--draft-window": fit.draft_window})
        print(calibration_text(compare_groups(groups, path, by=by), groups, forms=forms))
        return
    command = f"specgauge plan --calibrate {path} --hardware {hardware}"
    command += "" if launch_of is None else f" --launch-of {launch_of}"
    command += "" if fit.draft_window is None else f" --draft-window {fit.draft_window}"
    entry = calibrated_entry(groups, hardware, source=fit.source or str(path), command=command, launch_of=launch_of)
    if fit.out is not None:
        write_entry(entry, fit.out)
    print(entries_text([entry], groups))


def explain(
    line: typer.Context,
    target_probs: Annotated[str | None, _option("By token; positions separated by semicolons.", "P,…[;…]")] = None,
    draft_probs: Annotated[str | None, _option("By token; one list for each position.", "P,…[;…]")] = None,
    names: Annotated[str | None, _option("Names of the tokens.", "NAME,…")] = None,
    gamma: Annotated[int | None, _option("Repeat the one position G times, to see the tree.", "G")] = None,
    acceptance_rule: Annotated[str, _option("ratio or match.", "RULE")] = "ratio",
    draft_sampling: Annotated[str, _option("same (drawn) or greedy (its argmax).", "HOW")] = "same",
    svg: Annotated[Path | None, _option("Also draw the bars into FILE.", "FILE", callback=at_home)] = None,
    logits: Annotated[str | None, _option("Explain sampling settings on these logits instead.", "X,…")] = None,
    temperature: Annotated[float, _option("Divides the logits; 0 is greedy.")] = 1.0,
    top_k: Annotated[int | None, _option("Keep the K largest.", "K")] = None,
    top_p: Annotated[float | None, _option("Keep the smallest set with this mass.", "P")] = None,
    min_p: Annotated[float | None, _option("Drop what is under this share of the top one.", "P")] = None,
    repetition_penalty: Annotated[float, _option("Weakens the tokens of --history.")] = 1.0,
    history: Annotated[str | None, _option("Ids of tokens seen before, counted from 0.", "ID,…")] = None,
    min_tokens_to_keep: Annotated[int, _option("Tokens that no filter may remove.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Explain how drafts are accepted, or what sampling settings do.

    From --target-probs and --draft-probs: overlap, surplus, deficit, residual, both paths to every token, and the
    probability tree of a round.  From --logits: what each sampling setting does, in order, and whether the whole is
    greedy in disguise.
    """
    from specgauge.cli.explain import draw_explanation, explanation_text, logits_text
    from specgauge.cli.parsing import parse_counts, parse_numbers
    from specgauge.model.exact import AcceptanceRule
    from specgauge.model.exact import DraftSampling as Drawn
    from specgauge.model.explain import MOST_POSITIONS, explanation_document
    from specgauge.model.explain import explain as explain_positions
    from specgauge.model.explain_logits import explain_logits, logits_document
    from specgauge.model.sampling import SamplingSettings

    labels = None if names is None else [name.strip() for name in names.split(",")]
    if logits is not None:
        _refuse_others(line, "--logits", LOGITS_OPTIONS)
        settings = SamplingSettings(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            min_tokens_to_keep=min_tokens_to_keep,
        )
        seen = None if history is None else parse_counts(history, "--history")
        settled = explain_logits(parse_numbers(logits, "--logits"), settings, names=labels, history=seen)
        _print(logits_document(settled), as_json, lambda _: logits_text(settled))
        return
    if target_probs is None or draft_probs is None:
        needed = {"--target-probs": target_probs, "--draft-probs": draft_probs}
        raise _missing("explain", needed, EXPLAIN_EXAMPLE, "--logits to explain sampling settings")
    _refuse_others(line, "--target-probs", PROBS_OPTIONS)
    target = [parse_numbers(position, "--target-probs") for position in target_probs.split(";")]
    draft = [parse_numbers(position, "--draft-probs") for position in draft_probs.split(";")]
    if gamma is not None:
        if len(target) != 1 or len(draft) != 1 or not 1 <= gamma <= MOST_POSITIONS:
            raise ValueError(f"--gamma: expected 1 to {MOST_POSITIONS}, beside a single position, got {gamma}")
        target, draft = target * (gamma + 1), draft * gamma
    explanation = explain_positions(
        target,
        draft,
        names=labels,
        rule=_chosen("--acceptance-rule", acceptance_rule, AcceptanceRule),
        draft_sampling=_chosen("--draft-sampling", draft_sampling, Drawn),
    )
    if svg is not None:
        draw_explanation(explanation, svg)
    _print(explanation_document(explanation), as_json, lambda _: explanation_text(explanation))


def _chosen(flag: str, text: str, allowed: Any) -> Any:
    if text not in get_args(allowed):
        raise ValueError(f"{flag}: expected one of {', '.join(get_args(allowed))}, got {text!r}")
    return text


def _refuse_others(line: typer.Context, with_flag: str, allowed: Iterable[str]) -> None:
    """Refuse options typed beside `with_flag` that it would ignore."""
    names = {parameter.name: parameter.opts[0] for parameter in line.command.params}
    for name, flag in names.items():
        source = line.get_parameter_source(name or "")
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            options = ", ".join(names[each] for each in allowed if names[each] != with_flag)
            raise ValueError(f"{flag}: expected only {options} beside {with_flag}, got {flag}")


def _print(document: Mapping[str, Any], as_json: bool, to_text: Callable[[Mapping[str, Any]], str]) -> None:
    print(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2) if as_json else to_text(document))
