"""The servers of a pair: engines that decode in the place of its models, one that runs for each γ or one to start.

    pairs:
      - {name: served, engine: [{base_url: "http://host:8000", gamma: 0}, {base_url: "http://host:8001", gamma: 3}]}
      - {name: vllm, engine: {kind: vllm, target: org/model, draft: org/small-model, launch: {}}}

A server that runs has the γ it was started with, 0 where it does not speculate, or chooses γ itself (`arm`); one that
is launched is started for every γ of the grid, for 0, and for each of its `arms`, which are policies of its own.
Nothing is sent anywhere but to these addresses.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from annotated_types import MinLen
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StringConstraints, model_validator

from specgauge.configs.errors import Errors, Keys, fail, refused
from specgauge.configs.fields import LARGEST_GAMMA, ONE_LINE, Seconds, Section, Text, expects, null_means

UNKNOWN = "unknown"
"""The name of a model that nobody told."""
NGRAM = "ngram"
EngineKind = Literal["openai", "vllm", "sglang", "llama_cpp", "tensorrt_llm"]
PRESETS = tuple(kind for kind in get_args(EngineKind) if kind != "openai")
"""Kinds whose command is written for the user."""
Method = Literal["draft_model", "ngram", "eagle", "eagle3", "medusa", "mtp"]
FORCES = ("vllm", "llama_cpp")
"""Kinds of engine that accept drafts at a rate they are given; vLLM on a CPU refuses that at the first request."""
EXPORTED = "exported"
"""The arm of what a run exports for its engine."""
AT_ZERO = "schedule_0"
"""The arm of γ = 0 on a server that takes every γ in turn: what a schedule costs where it says 0."""
_NO_NAMES = ("plain", EXPORTED, AT_ZERO)
"""What names of arms must not begin with: it means something else."""
LONGEST = {
    "vllm": "num_speculative_tokens",
    "sglang": "speculative-num-steps",
    "llama_cpp": "spec-draft-n-max",
    "tensorrt_llm": "max_draft_len",
}
"""How each kind is told the most drafts of a round."""
SCHEDULES = {
    "vllm": "num_speculative_tokens_per_batch_size",
    "sglang": "speculative-adaptive-config",
    "tensorrt_llm": "draft_len_schedule",
}
"""The setting in which kinds that follow a schedule have γ by batch size; SGLang for EAGLE drafts alone."""
_FLAGS = {"sglang": "speculative-", "llama_cpp": "spec-"}
"""Kinds whose speculation is told by options of the command, and how these begin."""
PLACES = ("port", "gamma", "speculative")
"""What a command of the user may have in braces."""
SPECULATIVE = "{speculative}"
"""Of these, the words of its kind's speculation."""
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
    check_live: bool = True
    """Whether the largest and the middle γ of such a vLLM are held against servers started with that γ alone."""

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


def _option(written: str) -> str:
    """A key, as the engine spells it."""
    if not re.fullmatch(r"-{0,2}[A-Za-z][A-Za-z0-9_.-]*", written):
        raise refused(written, _KEY)
    return written.lstrip("-")


_KEY = "a setting of the engine's speculation, such as num_speculative_tokens"
_ARM = "a name of letters, digits and _ that begins with a letter: a number is a γ"
ArmName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,99}$"), ONE_LINE, expects(_ARM)]


class EngineArm(Section):
    """A policy of the engine's own, which chooses γ itself: measured beside the γ of the grid."""

    name: ArmName
    """Names it in tables and files."""
    speculative: Annotated[
        dict[Annotated[str, AfterValidator(_option)], JsonValue],
        MinLen(1),
        expects("a mapping of settings of the engine's speculation to their values"),
    ]
    """What the engine is told of its speculation, beside its method and its draft, or in the place of what it would be
    told for the largest γ: keys of vLLM's --speculative-config and of TensorRT-LLM's speculative_config, options of
    SGLang (speculative-…) and llama-server (spec-…), of which true is one without a value and false leaves one out."""

    def most(self, kind: EngineKind, otherwise: int) -> JsonValue:
        """The most drafts of a round, as it says itself."""
        own = {key.replace("_", "-"): value for key, value in self.speculative.items()}
        return own.get(LONGEST.get(kind, "").replace("_", "-"), otherwise)


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
    """Drafts a round of a server that runs, 0 where it does not speculate; null where it is launched, or chooses γ."""
    arm: Annotated[ArmName | None, null_means("a server of one γ")] = None
    """Names the policy of a server that runs and chooses γ itself."""
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
    arms: Annotated[tuple[EngineArm, ...], Field(strict=False)] = ()
    """Policies of the engine's own, each launched and measured beside the γ of the grid."""

    @model_validator(mode="after")
    def _check_together(self) -> EngineConfig:
        errors: Errors = []
        if (self.base_url is None) == (self.launch is None):
            got = "neither" if self.launch is None else "both"
            errors.append((("base_url",), refused(None, "either base_url or launch", got=got)))
        elif self.launch is None:
            errors += self._running_errors()
        else:
            errors += self._launch_errors(self.launch)
            errors += self._arm_errors(self.launch)
        fail(errors)
        return self

    def _running_errors(self) -> Errors:
        errors: Errors = []
        if self.gamma is None and self.arm is None:
            expected = "the γ that this server was started with, 0 where it does not speculate"
            errors.append((("gamma",), refused(None, expected)))
        elif self.gamma is not None and self.arm is not None:
            errors.append((("arm",), refused(self.arm, "null, since this server has a gamma")))
        if self.arms:
            expected = "none, since this server runs: give the one that has the policy as an engine with its arm"
            errors.append((("arms",), refused(None, expected, got=self.arms[0].name)))
        return errors + _name_errors([(("arm",), self.arm)] if self.arm else [])

    def _arm_errors(self, launch: LaunchConfig) -> Errors:
        """What is wrong with the arms of a server that is launched."""
        errors = _name_errors([(("arms", index, "name"), one.name) for index, one in enumerate(self.arms)])
        if self.arm is not None:
            expected = "null, since a server that is launched takes its policies from arms"
            errors.append((("arm",), refused(self.arm, expected)))
        if self.arms and launch.command is not None and not self.is_told_speculation:
            expected = (
                f"a command with {SPECULATIVE} in it, and kind ({', '.join(PRESETS)}) with method or draft, since arms "
                "differ in it"
            )
            errors.append((("launch", "command"), refused(None, expected, got="neither or one of them")))
        begins = _FLAGS.get(self.kind, "")
        for index, one in enumerate(self.arms):
            errors += [
                (("arms", index, "speculative"), refused(key, f"options that begin with {begins}"))
                for key in one.speculative
                if not key.replace("_", "-").startswith(begins)
            ]
            most = one.most(self.kind, 1)
            if type(most) is not int or not 1 <= most <= LARGEST_GAMMA:
                expected = f"1 to {LARGEST_GAMMA} drafts as {LONGEST[self.kind]}"
                errors.append((("arms", index, "speculative"), refused(most, expected)))
        return errors

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

    @property
    def follows(self) -> str | None:
        """The setting that has γ by batch size; None where no server can be started with one."""
        is_adaptive = self.kind != "sglang" or self.drafts_by in ("eagle", "eagle3")
        return SCHEDULES.get(self.kind) if is_adaptive and self.is_told_speculation else None

    @property
    def is_told_speculation(self) -> bool:
        """Whether words for its speculation are known here and go into its command."""
        if self.kind not in PRESETS or self.launch is None:
            return False
        if self.launch.command is None:
            return True
        is_told = self.draft is not None or self.method not in (None, "draft_model")
        return is_told and any(SPECULATIVE in word for word in self.launch.command)


def _name_errors(names: Sequence[tuple[Keys, str]]) -> Errors:
    """Names of arms that mean something else, or that two have; upper and lower case count as the same, for files."""
    errors: Errors = []
    taken: set[str] = set()
    for keys, name in names:
        is_reserved = name.casefold().startswith(_NO_NAMES)
        if is_reserved or name.casefold() in taken:
            which = f"does not begin with {' or '.join(_NO_NAMES)}" if is_reserved else "no other arm has"
            errors.append((keys, refused(name, f"a name that {which}")))
        taken.add(name.casefold())
    return errors


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
        named: list[str] = []
        for number, one in enumerate(own):
            if one.arm is not None and one.launch is None:
                if one.arm.casefold() in named:
                    error = refused(one.arm, "a name that no other engine has as its arm")
                    errors.append((("pairs", index, "engine", number, "arm"), error))
                named.append(one.arm.casefold())
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


def forced_errors(engines: Iterable[EngineConfig]) -> Errors:
    """Why drafts of some engines cannot be accepted at a given rate; none where all can be made to."""
    for one in engines:
        if one.launch is None:
            expected = "null, since a server that runs accepts by its models: one that is launched can be made to"
        elif one.kind not in FORCES:
            expected = f"null, since of engines only {', '.join(FORCES)} can be made to accept drafts, not {one.kind}"
        elif not one.is_told_speculation:
            expected = f"null, or {SPECULATIVE} in launch.command, where the rate is put"
        else:
            continue
        return [(("validate", "acceptance"), refused(None, expected, got="a rate"))]
    return []


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
