"""The commands of the analytic model, `predict`, `plan` and `explain`: no torch, the model imported when they run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from specgauge.cli.errors import PROGRAM

if TYPE_CHECKING:
    from specgauge.cli.parsing import GivenAcceptance


def _option(help_text: str, metavar: str | None = None) -> Any:
    return typer.Option(metavar=metavar, help=help_text)


Alpha = Annotated[float | None, _option("One acceptance rate for every position.")]
Gammas = Annotated[str | None, _option("Drafts per round: 4, 1,2,4, 1:8 or 1:8:2.", "G")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

TABLE_OPTIONS = ("table", "fit_overhead", "as_json")
CALIBRATE_OPTIONS = ("calibrate", "hold_out", "forms", "alias", "dtype")
PLAN_OPTIONS = (
    *("target", "draft", "hardware", "tensor_parallel", "dtype", "alpha", "batch_size", "context", "gamma", "as_json"),
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
    from_run: Annotated[Path | None, _option("Recorded in this run directory.", "RUN")] = None,
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
    table: Annotated[Path | None, _option("A CSV file with one case for each row.", "FILE")] = None,
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
    context: int | None,
) -> GivenAcceptance:
    """The acceptance of one setting of a run."""
    from specgauge.cli.parsing import option_name, parse_gammas
    from specgauge.cli.recorded import acceptance_of, recorded_settings
    from specgauge.cli.run_commands import trusted
    from specgauge.sweeps.store.rundir import Run

    typed = [option_name(name) for name, value in others.items() if value is not None]
    if typed:
        raise ValueError(f"acceptance: expected --from-run or one of those typed, got --from-run and {typed[0]}")
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
    target: Annotated[str | None, _option("A shipped shape, a config.json or its folder.", "SHAPE")] = None,
    draft: Annotated[str | None, _option("The same; without it drafts cost nothing.", "SHAPE")] = None,
    hardware: Annotated[str | None, _option("A shipped entry, or a YAML file of your own.", "ENTRY")] = None,
    tensor_parallel: Annotated[int, _option("Devices that share every layer.", "N")] = 1,
    dtype: Annotated[str | None, _option("Of weights, cache and arithmetic; default: the config's.", "DTYPE")] = None,
    alpha: Alpha = None,
    batch_size: Annotated[str, _option("Batch sizes, such as 1,8,64.", "N,…")] = "1,8,64",
    context: Annotated[str, _option("Tokens in the cache, such as 1000 or 1k,8k (1k is 1024).", "N,…")] = "1k",
    gamma: Gammas = None,
    calibrate: Annotated[Path | None, _option("Held-out errors on a CSV of measured times.", "FILE")] = None,
    hold_out: Annotated[str, _option("What --calibrate leaves out: batch_size or context.", "AXIS")] = "batch_size",
    forms: Annotated[
        bool, typer.Option("--forms", help="With --calibrate: also the other forms that were tried.")
    ] = False,
    alias: Annotated[
        list[str] | None, _option("With --calibrate: what a target or gpu of the table is.", "NAME=ENTRY")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict a pair on a machine by the roofline, nothing measured.

    For every batch size and context: the best gamma and its speed-up, what bounds each part, the largest batch that
    fits.  --calibrate FILE says instead how well a roofline fitted to measured times predicts those left out; columns
    target, gpu (such as 8xA100), batch_size, context, gamma, t_decode_s, t_verify_s.
    """
    from specgauge.cli.parsing import DEFAULT_GAMMAS, parse_counts, parse_gammas, parse_pairs
    from specgauge.cli.plan import calibration_text, compare_groups, plan_pair, plan_text, read_groups

    if calibrate is not None:
        _refuse_others(line, "--calibrate", CALIBRATE_OPTIONS)
        groups = read_groups(calibrate, aliases=parse_pairs(alias or (), "--alias"), dtype=dtype or "bfloat16")
        compared = compare_groups(
            groups, calibrate, by=_chosen("--hold-out", hold_out, Literal["batch_size", "context"])
        )
        print(calibration_text(compared, groups, forms=forms))
        return
    if target is None or hardware is None or alpha is None:
        needed = {"--target": target, "--hardware": hardware, "--alpha": alpha}
        raise _missing("plan", needed, PLAN_EXAMPLE, "--calibrate FILE to hold a roofline against measured times")
    _refuse_others(line, "--target", PLAN_OPTIONS)
    document = plan_pair(
        target,
        draft,
        hardware,
        tensor_parallel=tensor_parallel,
        dtype=dtype,
        alpha=alpha,
        batch_sizes=parse_counts(batch_size, "--batch-size", minimum=1),
        contexts=parse_counts(context, "--context"),
        gammas=parse_gammas(gamma or DEFAULT_GAMMAS, "--gamma"),
    )
    _print(document, as_json, plan_text)


def explain(
    line: typer.Context,
    target_probs: Annotated[str | None, _option("By token; positions separated by semicolons.", "P,…[;…]")] = None,
    draft_probs: Annotated[str | None, _option("By token; one list for each position.", "P,…[;…]")] = None,
    names: Annotated[str | None, _option("Names of the tokens.", "NAME,…")] = None,
    gamma: Annotated[int | None, _option("Repeat the one position G times, to see the tree.", "G")] = None,
    acceptance_rule: Annotated[str, _option("ratio or match.", "RULE")] = "ratio",
    draft_sampling: Annotated[str, _option("same (drawn) or greedy (its argmax).", "HOW")] = "same",
    svg: Annotated[Path | None, _option("Also draw the bars into FILE.", "FILE")] = None,
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
