"""llama.cpp: flags of `llama-server` for one γ, in the spelling of the build.

`--draft-max` and its like were replaced by `--spec-draft-n-max` in April 2026 (pull request 22397): b8953 has the old
names, b8962 the new ones, and refuses the old. Drafts that are drawn, `--spec-draft-sampling probabilistic`, are there
from b11368 on; the default is greedy, accepted where the target's own draw is the same token. A draft model is taken as
a plain one unless `--spec-type` says that it is an EAGLE3 head. The parser of b11549 takes all of these.
"""

from __future__ import annotations

import re
import shlex

from specgauge.sweeps.exports.answers import DraftSource, ServingAnswers
from specgauge.sweeps.exports.engine import (
    DRAFT,
    DraftRules,
    Engine,
    Export,
    Request,
    expectation,
    placeholder_notes,
)

NEW_NAMES_SINCE, SAMPLING_SINCE, EAGLE3_SINCE = 8962, 11368, 11549


def flags(answers: ServingAnswers, request: Request) -> Export:
    """Options of `llama-server`, the other spelling in a comment.

    Raises:
        ValueError: it does not pay at the batch size, or no such build.
    """
    build = None if request.release is None else build_number(request.release)
    point = answers.fixed(request.batch_size)
    new, old = new_names(answers.draft, point.gamma), old_names(answers.draft, point.gamma)
    if answers.rules_differ and answers.draft_sampling == "same" and (build is None or build >= SAMPLING_SINCE):
        new += ["--spec-draft-sampling", "probabilistic"]
    is_new = build is None or build >= NEW_NAMES_SINCE
    written, other = (new, old) if is_new else (old, new)
    bounds = f"before b{NEW_NAMES_SINCE}" if is_new else f"from b{NEW_NAMES_SINCE} on"
    size, expected = expectation(answers, request)
    rows = f" -np {size}" if size > 1 else ""
    notes = [f"builds {bounds}: {shlex.join(other)}"]
    if answers.draft.kind == "eagle3":
        notes = [f"--spec-type draft-eagle3 is known of b{EAGLE3_SINCE}; older builds may not have it"]
    if len(answers.points) > 1:
        notes.append(f"γ is that of batch size {point.batch_size}, for as many slots (-np)")
    if answers.draft.model and not answers.draft.model.endswith(".gguf"):
        notes.append(f"llama.cpp loads GGUF files: put that of {answers.draft.model} in its place")
    return Export(
        content=shlex.join(written) + "\n",
        release=f"build {request.release}" if request.release else f"builds from b{NEW_NAMES_SINCE} on",
        check=(
            f'`curl -s localhost:8080/completion -d \'{{"prompt": "…", "n_predict": 256}}\'`, timings'
            f"{rows and f' with{rows}'}; {expected}"
        ),
        comment="#",
        notes=(*placeholder_notes(answers, "llama.cpp"), *notes),
    )


def build_number(release: str) -> int:
    """The number of a build such as b11549; ValueError for other text."""
    match = re.fullmatch(r"b?(\d{1,9})", release.strip())
    if match is None:
        raise ValueError(f"release: expected a build of llama.cpp, such as b11549, got {release!r}")
    return int(match[1])


def new_names(draft: DraftSource, gamma: int) -> list[str]:
    """Flags from `NEW_NAMES_SINCE` on."""
    if draft.kind == "ngram":
        size = ["--spec-ngram-simple-size-n", str(draft.longest), "--spec-ngram-simple-size-m", str(gamma)]
        return ["--spec-type", "ngram-simple", *size]
    model = ["--spec-draft-model", draft.model or DRAFT]
    if draft.kind == "eagle3":
        model = ["--spec-type", "draft-eagle3", *model]
    return [*model, "--spec-draft-n-max", str(gamma), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]


def old_names(draft: DraftSource, gamma: int) -> list[str]:
    """Flags before that."""
    if draft.kind == "ngram":
        size = ["--spec-ngram-size-n", str(draft.longest), "--spec-ngram-size-m", str(gamma)]
        return ["--spec-type", "ngram-simple", *size]
    model = ["--model-draft", draft.model or DRAFT]
    return [*model, "--draft-max", str(gamma), "--draft-min", "0", "--draft-p-min", "0"]


ENGINE = Engine(
    title="llama.cpp",
    rules=DraftRules(draft_sampling="greedy", acceptance_rule="match"),
    other_rules=f"--spec-draft-sampling probabilistic draws them, from b{SAMPLING_SINCE} on",
    forms={"flags": flags},
)
