"""The words and symbols of the report, one line each, in the order a reader meets them."""

from __future__ import annotations

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("γ", "draft tokens proposed per round; engines say num_speculative_tokens or K. γ = 0 is plain decoding."),
    (
        "round",
        "one turn of speculation: the draft proposes up to γ tokens, one forward of the target checks them all, and "
        "one token or more are committed.",
    ),
    ("B, batch", "sequences decoded together."),
    ("s, context", "tokens in the KV cache when a round starts."),
    ("cell", "one pair, mode and way of sampling at one batch size and context: what has an answer of its own."),
    (
        "arm",
        "one of the things that are measured in turn: a part of a round where parts are timed; plain decoding, a γ or "
        "a policy where texts are decoded end to end.",
    ),
    (
        "block",
        "a few samples of every part in turn, or one batch of prompts decoded under several arms. Intervals come from "
        "drawing blocks and prompts anew.",
    ),
    (
        "drift",
        "the later half of an arm's samples over the earlier half: a machine that changed while it was measured.",
    ),
    ("T_decode", "time of one target forward of one token per sequence, up to and including the drawn token."),
    (
        "C(γ), T_draft",
        "time of the whole chain of γ draft steps, timed as one; T_draft(k) = C(k) − C(k − 1). Of lookups: of one "
        "lookup of γ drafts.",
    ),
    ("Δ₂", "what the first draft step costs more when it feeds two tokens, as it must after a fully accepted round."),
    (
        "T_verify(γ)",
        "time of one target forward over γ + 1 tokens per sequence, which checks γ drafts at once. Lookups may find "
        "fewer or none: beside a prediction stands the mean over what rounds verify, T_decode where that is nothing.",
    ),
    (
        "ε, overhead",
        "wall time of a round beyond its parts: accepting, rolling back, host work. Fitted to what was decoded end to "
        "end, at other contexts where there are any; on a few texts it is as noisy as they are, and may be below 0. "
        "Unknown (–) without that, and S is labelled optimistic then.",
    ),
    ("T_round", "C(γ) + π·Δ₂ + T_verify(γ) + ε, with π = A_γ for one sequence and 1 − (1 − A_γ)ᴮ for a batch of B."),
    ("a, acceptance", "probability that a draft token is accepted, given that all before it in its round were."),
    (
        "A_i, survival",
        "probability that the first i drafts of a round are all accepted; it belongs to the γ it was taken at.",
    ),
    ("α", "the one number of the model in which every draft is accepted with the same probability: A_i = αⁱ."),
    (
        "Ω, tokens per round",
        "expected tokens a round commits, bonus or replacement included: 1 + A_1 + … + A_γ. Accepted drafts are Ω − 1.",
    ),
    ("S, speed-up", "Ω(γ)·T_decode / T_round: tokens per second over plain decoding while the whole batch is active."),
    (
        "S measured",
        "tokens per second over plain decoding of the rounds decoded while every row was at work; it stands beside S "
        "predicted for the contexts that the texts went through.",
    ),
    (
        "whole requests",
        "tokens per second over plain decoding of whole texts: prefills count, and in a batch the wait for its longest "
        "text. S leaves both out.",
    ),
    (
        "S from counts",
        "S with the measured parts and ε for the rounds and tokens that were counted; over S measured it is the cost "
        "error.",
    ),
    (
        "acceptance error",
        "Ω predicted over Ω counted, minus one; its 95\u202f% interval is over prompts.",
    ),
    (
        "lossless",
        "the texts follow the distribution of the target alone, as if there were no draft. Not so where acceptance is "
        "forced by coin.",
    ),
    (
        "argmax, draw",
        "how a token was taken where a part was timed: the likeliest (greedy sampling), or drawn after temperature, "
        "top-k and top-p.",
    ),
    (
        "decode, draft, draft_catch_up, verify:γ, prefill",
        "the parts as they are named where they were timed: T_decode, C(1) … C(γ), C(1) with Δ₂, T_verify(γ), and "
        "one forward over a whole prompt.",
    ),
    (
        "support",
        "the tokens that top-k and top-p leave. A text's token outside it, as in a narrow dtype recomputed in other "
        "shapes, has no acceptance of its own.",
    ),
    ("best γ, recommended γ", "the γ with the largest S; the smallest γ whose S is within 1 % of it."),
    (
        "expected loss",
        "how much slower the recommended γ should be than the best one, on average over resampled data sets.",
    ),
    ("P(best)", "share of the resampled data sets in which this γ has the largest S."),
    (
        "draft sampling",
        "how a draft is drawn: same = from the draft's distribution after the target's sampling chain, greedy = its "
        "most likely token.",
    ),
    (
        "acceptance rule",
        "ratio = accept with probability min(1, target/draft); match = accept where the target's own draw is the same "
        "token. Both keep the target's distribution.",
    ),
    (
        "measured, interpolated, extrapolated",
        "how a number is known: taken at this very place, between places that were taken, or beyond them.",
    ),
    (
        "interval",
        "where the value lies with the stated confidence; timings are resampled by block and acceptance by prompt.",
    ),
)
