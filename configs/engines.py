"""The servers of a pair: engines that decode in the place of its models, one that runs for each γ or one to start.

    pairs:
      - {name: served, engine: [{base_url: "http://host:8000", gamma: 0}, {base_url: "http://host:8001", gamma: 3}]}
      - {name: vllm, engine: {kind: vllm, target: org/model, draft: org/small-model, launch: {}}}

A server that runs has the γ it was started with, 0 where it does not speculate; one that is launched is started for
every γ of the grid, and for 0. Nothing is sent anywhere but to these addresses.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from annotated_types import MinLen
from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from specgauge.configs.errors import Errors, Keys, fail, refused
from specgauge.configs.fields import LARGEST_GAMMA, ONE_LINE, Seconds, Section, Text, expects, null_means

UNKNOWN = "unknown"
"""The name of a model that nobody told."""
NGRAM = "ngram"
EngineKind = Literal["openai", "vllm", "sglang", "llama_cpp", "tensorrt_llm"]
PRESETS = tuple(kind for kind in get_args(EngineKind) if kind != "openai")
"""Kinds whose command is written for the user."""
Method = Literal["draft_model", "ngram", "eagle", "eagle3", "medusa", "mtp"]
PLACES = ("port", "gamma", "speculative")
"""What a command of the user may have in braces."""
_ADDRESS = "an address such as http://127.0.0.1:8000"


def _address(written: str) -> str:
    """An address without a slash at its end, nor the /v1 that every request has anyway."""
    parts = urlsplit(written)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise refused(written, _ADDRESS)
    if parts.username is not None or parts.password is not None:
        raise refused(None, f"{_ADDRESS}, its key in the variable that api_key_env names", got="one with a password")
    return written.rstrip("/").removesuffix("/v1").rstrip("/")


Address = Annotated[Text, AfterValidator(_address), expects(_ADDRESS)]
_Words = Annotated[list[Text], MinLen(1)]


def _words(written: object) -> object:
    if not isinstance(written, str):
        return tuple(written) if isinstance(written, list) else written
    try:
        return tuple(shlex.split(written))
    except ValueError as error:
        raise refused(written, f"a command whose quotes are closed ({error})") from error


class LaunchConfig(Section):
    """How a server is started and ended."""

    command: Annotated[
        Annotated[tuple[Text, ...], MinLen(1)] | None,
        BeforeValidator(_words, json_schema_input_type=Text | _Words | None),
        null_means("the command of the kind"),
        expects("a command as a line, or a list of its words"),
    ] = None
    """The command with its options; {port}, {gamma} and {speculative} (the JSON of the kind's speculation) are filled
    in, and at γ = 0 an option whose value is {speculative} is left out. Null is that of the kind."""
    options: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Words added to the command of the kind, such as --max-model-len, 4096."""
    ready_seconds: Seconds = 900.0
    """Seconds until the server must answer."""
    stop_seconds: Seconds = 30.0
    """Seconds it has to end by itself, before it is killed."""
    env: Annotated[dict[str, str], expects("a mapping of variables to text")] = Field({})
    """Variables of its environment, beside those of the shell that `run` is called in."""
    live: bool = True
    """Whether one server takes every γ in turn: vLLM by a scheduler class of ours, llama.cpp where its build takes γ
    from a request; where it does not, and where this is false, it is started anew for each γ."""

    @model_validator(mode="after")
    def _check_together(self) -> LaunchConfig:
        for index, word in enumerate(self.command or ()):
            odd = [name for name in re.findall(r"\{([A-Za-z_]+)\}", word) if name not in PLACES]
            if odd:
                expected = f"a word with none but {', '.join('{' + name + '}' for name in PLACES)} to fill in"
                fail([(("command", index), refused(word, expected))])
        if self.command is not None and not any("{port}" in word for word in self.command):
            error = refused(None, "a command with {port} in it, which is where the server must answer", got="none")
            fail([(("command",), error)])
        if self.command is not None and self.options:
            error = refused(None, "none, since the command is given", got=" ".join(self.options))
            fail([(("options",), error)])
        return self


class EngineConfig(Section):
    """One server with an interface like OpenAI's: one that runs, or one that is started and ended here."""

    kind: EngineKind = "openai"
    """Which engine it is, for its command and its counters; openai is any, whose counters are told by their names."""
    base_url: Annotated[Address | None, null_means("launched here")] = None
    """Where it answers; requests go to /v1 below it."""
    metrics_url: Annotated[Address | None, null_means("/metrics below base_url")] = None
    """Where its counters are."""
    model: Annotated[Text | None, null_means("the only one it serves")] = None
    """The name it serves the target under."""
    gamma: Annotated[Annotated[int, Field(ge=0, le=LARGEST_GAMMA)] | None, null_means("every γ of the grid")] = None
    """Drafts a round of a server that runs, 0 where it does not speculate; null where it is launched."""
    api_key_env: Annotated[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), ONE_LINE] | None,
        null_means("no key"),
        expects("the name of an environment variable"),
    ] = None
    """The environment variable that holds its key; the key itself is never written anywhere."""
    launch: LaunchConfig | None = None
    """How it is started; null where it runs. {} takes the kind's command."""
    target: Text | None = None
    """The target, as the engine loads it."""
    draft: Text | None = None
    """The draft model, as the engine loads it."""
    method: Method | None = None
    """How it drafts; null is draft_model where a draft is named."""

    @model_validator(mode="after")
    def _check_together(self) -> EngineConfig:
        errors: Errors = []
        if (self.base_url is None) == (self.launch is None):
            got = "neither" if self.launch is None else "both"
            errors.append((("base_url",), refused(None, "either base_url or launch", got=got)))
        elif self.launch is None and self.gamma is None:
            expected = "the γ that this server was started with, 0 where it does not speculate"
            errors.append((("gamma",), refused(None, expected)))
        elif self.launch is not None:
            errors += self._launch_errors(self.launch)
        fail(errors)
        return self

    def _launch_errors(self, launch: LaunchConfig) -> Errors:
        errors: Errors = []
        if self.gamma is not None:
            errors.append((("gamma",), refused(self.gamma, "null, since every γ of grid.gamma is launched")))
        if launch.command is None:
            if self.kind not in PRESETS:
                expected = f"one of {', '.join(PRESETS)}, since launch has no command"
                errors.append((("kind",), refused(self.kind, expected)))
            if self.target is None:
                errors.append((("target",), refused(None, "the target to launch, since launch has no command")))
            if self.draft is None and self.method in (None, "draft_model"):
                errors.append((("draft",), refused(None, f"a draft model, or method: {NGRAM}")))
        return errors

    @property
    def drafts_by(self) -> str:
        """How it drafts, as far as it is told."""
        return self.method or "draft_model"


def with_models(pair: Any) -> Any:
    """A written pair with the names of its engine's models as target and draft, where it has none of its own."""
    if not isinstance(pair, Mapping) or pair.get("engine") is None:
        return pair
    written = pair["engine"]
    engines = written if isinstance(written, (list, tuple)) else [written]
    plain = [one.model_dump() if isinstance(one, EngineConfig) else one for one in engines]
    told = [one for one in plain if isinstance(one, Mapping)]

    def first(*fields: str) -> Any:
        named = (one.get(field) for field in fields for one in told)
        return next((name for name in named if isinstance(name, str) and name.strip()), UNKNOWN)

    is_lookup = any(one.get("method") == NGRAM for one in told)
    return {
        "target": {"model": first("target", "model")},
        "draft": NGRAM if is_lookup else {"model": first("draft")},
        **pair,
    }


def engine_errors(engines: Sequence[tuple[object, tuple[EngineConfig, ...]]], gammas: Sequence[int]) -> Errors:
    """What is wrong with the engines of a configuration's pairs, as given and one by one, beside its grid's γ."""
    if not any(own for _, own in engines):
        return []
    errors: Errors = []
    for index, (given, own) in enumerate(engines):
        if not own:
            expected = "an engine for every pair of a configuration, or for none: a run has one source of its times"
            errors.append((("pairs", index, "engine"), refused(None, expected)))
            continue
        if len(own) > 1 and any(one.launch is not None for one in own):
            expected = "one engine that is launched, or servers that run"
            errors.append((("pairs", index, "engine"), refused(None, expected, got="both or several")))
        first: dict[int, int] = {}
        for number, one in enumerate(own):
            keys: Keys = ("pairs", index, "engine", *((number,) if isinstance(given, tuple) else ()), "gamma")
            if one.gamma is None:
                continue
            if first.setdefault(one.gamma, number) != number:
                expected = f"another γ than engine[{first[one.gamma]}] has"
                errors.append((keys, refused(one.gamma, expected)))
            elif one.gamma and one.gamma not in gammas:
                expected = f"0 or a value of grid.gamma, which are {', '.join(map(str, gammas))}"
                errors.append((keys, refused(one.gamma, expected)))
    return errors


def engine_defaults(written: Mapping[str, Any]) -> Mapping[str, Any]:
    """A written configuration whose pairs all have engines, with what follows from these where it says nothing.

    grid.gamma: the γ of the servers that run; draft_sampling: greedy, as engines draft.
    """
    pairs = written.get("pairs")
    plain = [pair for pair in pairs if isinstance(pair, Mapping)] if isinstance(pairs, (list, tuple)) else []
    if not plain or not all(pair.get("engine") is not None for pair in plain):
        return written
    found: set[int] = set()
    for pair in plain:
        engines = pair["engine"] if isinstance(pair["engine"], (list, tuple)) else [pair["engine"]]
        for one in engines:
            gamma = one.get("gamma") if isinstance(one, Mapping) else getattr(one, "gamma", None)
            if isinstance(gamma, int) and not isinstance(gamma, bool) and 1 <= gamma <= LARGEST_GAMMA:
                found.add(gamma)
    grid = written.get("grid", {})
    made: dict[str, Any] = {"draft_sampling": ["greedy"], **written}
    if found and isinstance(grid, Mapping) and "gamma" not in grid:
        made["grid"] = {**grid, "gamma": sorted(found)}
    return made
