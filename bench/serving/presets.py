"""The command that starts a serving engine with γ drafts a round, and a user's own command filled in.

    preset(Served(kind="vllm", target="org/model", draft="org/small"), gamma=3, port=8000, folder=Path("server"))
    →  vllm serve org/model --host 127.0.0.1 --port 8000 … --speculative-config '{"method": "draft_model", …}'

γ = 0 is the plain server: without any word about speculation. Options are those of vLLM 0.32, SGLang 0.5.23 (a chain of
γ drafts is γ steps and γ + 1 draft tokens), llama.cpp from b8962 on, and TensorRT-LLM 1.3.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from specgauge.configs.engines import FORCES

HOST = "127.0.0.1"
SPECULATIVE = "{speculative}"
"""In a user's command: what `filled` puts there."""
_WITHOUT_MODEL = {"ngram", "mtp"}
"""Methods that need no draft model."""
METHODS = {
    "vllm": ("draft_model", "ngram", "eagle", "eagle3", "medusa", "mtp"),
    "sglang": ("draft_model", "ngram", "eagle", "eagle3", "mtp"),
    "llama_cpp": ("draft_model", "ngram"),
    "tensorrt_llm": ("draft_model", "ngram", "eagle3"),
}
"""How each kind of engine can draft, where its words for it are known here."""
_SGLANG = {"draft_model": "STANDALONE", "ngram": "NGRAM", "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN"}
_TENSORRT_LLM = {"draft_model": "Draft_Target", "ngram": "NGram", "eagle3": "Eagle3"}


@dataclass(frozen=True, kw_only=True)
class Served:
    """What an engine serves, and how it drafts.

    ``longest`` and ``shortest`` are the tokens that prompt lookup (``ngram``) matches; ``slots`` the requests that the
    server must hold at once, where it has to be told (llama.cpp); ``schedule`` ranges [first, last, γ] of batch sizes,
    which vLLM follows; ``alpha`` accepts each draft with that probability, or with one for each position, whatever the
    models say, where the engine can (`FORCES`); ``own`` are settings of its speculation by name, beside ours or in
    their place; ``options`` are words added to the command.
    """

    kind: str
    target: str
    draft: str | None = None
    method: str = "draft_model"
    longest: int = 3
    shortest: int = 1
    slots: int = 1
    schedule: tuple[tuple[int, int, int], ...] = ()
    alpha: float | tuple[float, ...] | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """ValueError for a kind that has no preset, what it has no words for, or no draft model."""
        methods = METHODS.get(self.kind)
        if methods is None:
            raise ValueError(f"engine.kind: expected one of {', '.join(METHODS)}, got {self.kind!r}")
        if self.method not in methods:
            raise ValueError(
                f"engine.method: expected one of {', '.join(methods)} for {self.kind}, got {self.method!r}; for "
                "another write the command yourself (launch.command)"
            )
        if self.draft is None and self.method not in _WITHOUT_MODEL:
            raise ValueError(f"engine.draft: expected the draft model, since method is {self.method}, got null")
        if self.alpha is not None:
            if self.kind not in FORCES:
                raise ValueError(
                    f"validate.acceptance: expected an engine that can be made to accept drafts "
                    f"({', '.join(FORCES)}), got {self.kind}"
                )
            for alpha in self.alpha if isinstance(self.alpha, tuple) else (self.alpha,):
                if not 0 <= alpha <= 1:
                    raise ValueError(f"validate.acceptance: expected 0 to 1, got {alpha:g}")

    def rates(self, gamma: int) -> list[float]:
        """α₁, α₁α₂, …: how often at least 1, 2, … γ drafts are accepted."""
        assert self.alpha is not None
        alphas = self.alpha if isinstance(self.alpha, tuple) else (self.alpha,) * gamma
        return [round(rate, 6) for rate in accumulate(alphas[:gamma], mul)]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A server's command: its words, the variables it needs beside those of the shell, files it reads (by path)."""

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """The command as one types it."""
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), shlex.join(self.words)])

    def write_files(self) -> None:
        """Write the files, and the folders they are in; OSError where one cannot be."""
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def preset(served: Served, *, gamma: int, port: int, folder: Path) -> Command:
    """The command of a kind of engine; ``folder`` takes the files that it reads.

    Raises:
        ValueError: γ below 0.
    """
    words, files = speculation(served, gamma, folder)
    start = {
        "vllm": ["vllm", "serve", served.target, "--host", HOST, "--port", str(port)],
        "sglang": [
            *("python3", "-m", "sglang.launch_server", "--model-path", served.target),
            *("--host", HOST, "--port", str(port), "--enable-metrics"),
        ],
        "llama_cpp": [
            *("llama-server", "--model", served.target, "--host", HOST, "--port", str(port)),
            *("--parallel", str(served.slots), "--metrics"),
        ],
        "tensorrt_llm": ["trtllm-serve", served.target, "--host", HOST, "--port", str(port)],
    }[served.kind]
    return Command(words=(*start, *words, *served.options), files=files)


VLLM_METRICS = ("--enable-per-request-metrics", "--per-request-spec-decode-metrics", "detailed")
"""vLLM then tells with each answer how many drafts every round of it had and accepted; a plain server refuses that."""


def speculation(served: Served, gamma: int, folder: Path) -> tuple[tuple[str, ...], dict[Path, str]]:
    """The words of a command that make the engine draft γ tokens a round, and the files these name; none at γ = 0.

    Raises:
        ValueError: γ below 0.
    """
    if gamma < 0:
        raise ValueError(f"gamma: expected 0 or more, got {gamma}")
    if gamma == 0:
        return (), {}
    match served.kind:
        case "vllm":
            return (*VLLM_METRICS, "--speculative-config", json.dumps(vllm_config(served, gamma))), {}
        case "sglang":
            return _with_own(_sglang(served, gamma), served.own, folder)
        case "llama_cpp":
            return _with_own(_llama_cpp(served, gamma), served.own, folder)
        case _:
            path = folder / f"speculative-{gamma}.yaml"
            return ("--extra_llm_api_options", str(path)), {path: _tensorrt_llm(served, gamma)}


def vllm_config(served: Served, gamma: int) -> dict[str, Any]:
    """vLLM's `--speculative-config` for γ drafts, γ ≥ 1; the largest of the schedule, where there is one."""
    found: dict[str, Any] = {"method": served.method}
    if served.method == "ngram":
        found |= {"prompt_lookup_max": served.longest, "prompt_lookup_min": served.shortest}
    if served.draft is not None and served.method != "ngram":
        found["model"] = served.draft
    found["num_speculative_tokens"] = gamma
    if served.alpha is not None:
        found |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": served.rates(gamma)}
    if served.schedule:
        found["num_speculative_tokens_per_batch_size"] = [list(step) for step in served.schedule]
    return {**found, **served.own}


def _sglang(served: Served, gamma: int) -> tuple[str, ...]:
    words = ["--speculative-algorithm", _SGLANG[served.method]]
    if served.draft is not None and served.method != "ngram":
        words += ["--speculative-draft-model-path", served.draft]
    words += ["--speculative-num-steps", str(gamma), "--speculative-eagle-topk", "1"]
    words += ["--speculative-num-draft-tokens", str(gamma + 1)]
    if served.method == "ngram":
        words += ["--speculative-ngram-max-bfs-breadth", "1"]
    return tuple(words)


def _with_own(words: Sequence[str], own: Mapping[str, Any], folder: Path) -> tuple[tuple[str, ...], dict[Path, str]]:
    """Options and their values, with those of one's own in the place of ours or at the end.

    True is an option without a value, false leaves it out, a mapping is a JSON file.
    """
    told = dict(zip(words[::2], words[1::2], strict=True)) | {f"--{name.replace('_', '-')}": own[name] for name in own}
    found: list[str] = []
    files: dict[Path, str] = {}
    for option, value in told.items():
        if isinstance(value, Mapping):
            path = folder / f"{option.removeprefix('--')}.json"
            files[path], value = json.dumps(value) + "\n", str(path)
        if value is not False:
            found += [option] if value is True else [option, value if isinstance(value, str) else json.dumps(value)]
    return tuple(found), files


def _llama_cpp(served: Served, gamma: int) -> tuple[str, ...]:
    forced: tuple[str, ...] = ()
    if served.alpha is not None:
        forced = ("--spec-synth-rates", ",".join(f"{rate:g}" for rate in served.rates(gamma)))
    if served.method == "ngram":
        sizes = ("--spec-ngram-simple-size-n", str(served.longest), "--spec-ngram-simple-size-m", str(gamma))
        return "--spec-type", "ngram-simple", *sizes, *forced
    bounds = ("--spec-draft-n-max", str(gamma), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0")
    return "--spec-draft-model", served.draft or "", *bounds, *forced


def _tensorrt_llm(served: Served, gamma: int) -> str:
    found: dict[str, Any] = {"decoding_type": _TENSORRT_LLM[served.method], "max_draft_len": gamma}
    if served.method == "ngram":
        found["max_matching_ngram_size"] = served.longest
    else:
        found["speculative_model"] = served.draft
    lines = [f"  {name}: {_yaml(value)}" for name, value in {**found, **served.own}.items()]
    return "\n".join(["speculative_config:", *lines]) + "\n"


def _yaml(value: Any) -> str:
    """As YAML takes it: a mapping of whole numbers keeps them as such, which JSON would make text of."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(one)}" for key, one in value.items()) + "}"
    return str(value) if value in _TENSORRT_LLM.values() else json.dumps(value)


_OPTIONS = {
    "vllm": ("--speculative-config", "--speculative_config", "-sc"),
    "tensorrt_llm": ("--extra_llm_api_options", "--extra-llm-api-options", "--config"),
}
"""The options whose value {speculative} may be: vLLM's JSON, TensorRT-LLM's file."""


def filled(command: Sequence[str], *, gamma: int, port: int, folder: Path, served: Served | None = None) -> Command:
    """A user's command with {port}, {gamma} and {speculative} filled in.

    {speculative} is all the words of `speculation`. It may be written as the value of the one option that vLLM and
    TensorRT-LLM have for it, `--speculative-config {speculative}` or with ``=`` between, which goes with it at γ = 0.
    Other braces, those of JSON, stay as they are.

    Raises:
        ValueError: γ > 0 and the command says nothing of it; {speculative} without a kind of engine whose words are
            known here, or as a part of another word.
    """
    text = "\n".join(command)
    if gamma > 0 and "{gamma}" not in text and SPECULATIVE not in text:
        raise ValueError(
            f"launch.command: expected {{gamma}} or {SPECULATIVE} in it, since γ {gamma} is to be started, got neither"
        )
    words: list[str] = []
    files: dict[Path, str] = {}
    for word in command:
        if SPECULATIVE in word:
            found, files = _for_command(served, gamma, folder)
            _put(words, word, found, _OPTIONS.get(served.kind if served else "", ()))
        else:
            words.append(word.replace("{port}", str(port)).replace("{gamma}", str(gamma)))
    return Command(words=tuple(words), files=files)


def _for_command(served: Served | None, gamma: int, folder: Path) -> tuple[tuple[str, ...], dict[Path, str]]:
    if served is None:
        raise ValueError(
            f"launch.command: {SPECULATIVE} needs engine.kind ({', '.join(METHODS)}), target and method; write the "
            "words themselves with {gamma} instead"
        )
    return speculation(served, gamma, folder)


def _put(words: list[str], word: str, found: tuple[str, ...], options: tuple[str, ...]) -> None:
    """Add what {speculative} in a word stands for, without the option that the command has already."""
    if word == SPECULATIVE and words and words[-1] in options:
        option = words.pop()
        words += [*found[:-2], option, found[-1]] if found else []
    elif word == SPECULATIVE:
        words += found
    elif word.removesuffix(f"={SPECULATIVE}") in options:
        words += [*found[:-2], word.replace(SPECULATIVE, found[-1])] if found else []
    else:
        allowed = f" or {options[0]}={SPECULATIVE}" if options else ""
        raise ValueError(f"launch.command: expected {SPECULATIVE} as a word of its own{allowed}, got {word!r}")
