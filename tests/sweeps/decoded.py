"""Batches decoded end to end whose every number can be worked out by hand, and tables made of them.

A plain step takes T_DECODE, a round C(k) + T_verify, Δ₂ more after full acceptance, and ε; all rows of a batch accept
the same numbers of drafts, taken in turn from `accepts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from specgauge.model.arms import Arm, end_to_end_arms
from specgauge.model.policies.policy import FixedPolicy, GammaPolicy
from specgauge.sweeps.store.rows import columns
from specgauge.sweeps.store.schema import DecodedKey, RequestRow, RoundRow
from specgauge.sweeps.store.tables import DecodedLog
from tests.sweeps import made

PREFILL_S = 0.5
BLOCK_COLUMNS = (*columns(DecodedKey), "block")
Rows = list[dict[str, Any]]

Request = make_dataclass("Request", [name for name in columns(RequestRow) if name not in BLOCK_COLUMNS])
Round = make_dataclass("Round", [name for name in columns(RoundRow) if name not in BLOCK_COLUMNS])


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch of prompts of the same length."""

    prompts: Sequence[int] = (0,)
    repetition: int = 0
    context: int = 64
    max_new_tokens: int = 64
    accepts: Sequence[int] = (9, 0)
    """Drafts accepted in the rounds of an arm, in turn, as far as there are drafts."""
    overhead_s: float = 0.0
    scale: float = 1.0
    """What everything took, over what it takes."""
    policies: Mapping[str, GammaPolicy] = field(default_factory=dict)
    """What chooses γ under adaptive arms, by name; drafts say nothing, so none stops while drafting."""
    look_s: float = 0.0
    """What every draft but the last of a round takes longer under a policy that looks."""

    def rounds(self, arm: str) -> Rows:
        """The rows of rounds.parquet, without their key."""
        position, number, follows_full = 1, 0, False
        found: Rows = []
        accepts = cycle(self.accepts)
        policy = self.policies.get(Arm.parse(arm).policy or "", FixedPolicy(gamma=Arm.parse(arm).gamma or 0))
        choice = policy.begin()
        while arm != "generate" and position < self.max_new_tokens:
            gamma = choice.gamma
            in_force = min(gamma, self.max_new_tokens - position - 1)
            accepted = min(next(accepts), in_force)
            emitted = accepted + 1
            looks = max(in_force - 1, 0) if policy.reads_signals else 0
            speculates = Arm.parse(arm).gamma != 0
            times = self._times(in_force, follows_full, looks) if speculates else dict.fromkeys(_PHASES)
            t_round_s = sum(time or 0.0 for time in times.values()) if speculates else self.scale * made.T_DECODE_S
            found += [
                {
                    "arm": arm, "round": number, "active_rows": len(self.prompts), "row": row, "prompt": prompt,
                    "repetition": self.repetition, "position": position, "context": self.context + position - 1,
                    "gamma_asked": gamma, "gamma": in_force, "gamma_limit": "asked" if in_force == gamma else "tokens",
                    "drafted": in_force, "accepted": accepted, "emitted": emitted, "t_round_s": t_round_s, **times,
                    "top_probs": [0.5] * looks, "entropies_nats": [1.0] * looks, "match_length": None,
                    "t_transfer_s": None,
                }
                for row, prompt in enumerate(self.prompts)
            ]  # fmt: skip
            follows_full = 0 < in_force == accepted or (in_force == 0 and Arm.parse(arm).gamma is None)
            position, number = position + emitted, number + 1
            choice.observe([in_force] * len(self.prompts), [accepted] * len(self.prompts))
        return found

    def _times(self, drafts: int, follows_full: bool, looks: int) -> dict[str, float | None]:
        drafting_s = drafts * made.T_DRAFT_S + (made.CATCH_UP_S if follows_full and drafts else 0.0)
        drafting_s += looks * self.look_s
        verify_s = made.T_VERIFY_S if drafts else made.T_DECODE_S
        parts = (drafting_s, verify_s, self.overhead_s / 4, 3 * self.overhead_s / 4)
        return {name: self.scale * seconds for name, seconds in zip(_PHASES, parts, strict=True)}

    def requests(self, arm: str) -> Rows:
        """The rows of requests.parquet, without their key; every text is as long as it may be."""
        rounds = [round_ for round_ in self.rounds(arm) if round_["row"] == 0]
        decode_s = sum(round_["t_round_s"] for round_ in rounds)
        if arm == "generate":
            decode_s = self.scale * made.T_DECODE_S * (self.max_new_tokens - 1)
        return [
            dict.fromkeys(name for name in columns(RequestRow) if name not in BLOCK_COLUMNS)
            | {
                "arm": arm, "gamma": Arm.parse(arm).gamma, "row": row, "prompt": prompt, "repetition": self.repetition,
                "prompt_tokens": self.context, "tokens": list(range(self.max_new_tokens)), "finish_reason": "length",
                "prefill_s": PREFILL_S, "seconds": PREFILL_S + decode_s, "decode_s": decode_s, "lossless": True,
                "rounds": None if arm == "generate" else len(rounds),
                "expected_rounds": float(len(rounds)) if Arm.parse(arm).gamma else None,
            }
            for row, prompt in enumerate(self.prompts)
        ]  # fmt: skip


_PHASES = ("t_draft_s", "t_verify_s", "t_accept_s", "t_rest_s")


def key(**changes: Any) -> DecodedKey:
    """The one cell of `made.config()`."""
    plain: dict[str, Any] = {
        "pair": "p", "mode": "eager", "sampling": "greedy", "draft_sampling": "same", "acceptance_rule": "ratio",
        "batch_size": 1, "start_context": 64,
    }  # fmt: skip
    return DecodedKey(**{**plain, **changes})


def write_blocks(path: Path, blocks: Mapping[DecodedKey, Sequence[Batch]], gammas: Sequence[int] = (1, 2, 3)) -> None:
    """Keep batches of each cell, under every arm, in a run directory."""
    log = DecodedLog(path)
    for point, batches in blocks.items():
        for block, batch in enumerate(batches):
            arms = end_to_end_arms(gammas, batch.policies)
            requests = [row for arm in arms for row in batch.requests(arm)]
            log.append(point, block, requests, [row for arm in arms for row in batch.rounds(arm)])
