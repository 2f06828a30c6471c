"""Turn what goes wrong while a model is read into one line, and keep what transformers prints away from the results.

transformers initialises tensors that a checkpoint lacks at random and only warns; here that is an error.  Its own
messages run over many lines and name no remedy; here each names the pair, the role, what was found and what to do.
"""

from __future__ import annotations

import json
import logging as logs
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import transformers
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import enable_progress_bars
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from specgauge.bench.device import is_out_of_memory
from specgauge.bench.models.quantized import method_of
from specgauge.configs.pairs import ModelConfig
from specgauge.configs.reading import CONFIG_BYTES, expanded, read_text

Part = Literal["configuration", "tokenizer", "weights"]

_RELEASE = f"transformers {transformers.__version__}"
_NEEDS_TOKENIZER = "it needs the tokenizer files that belong to the model, such as tokenizer.json"
_LONGEST_TEXT = 200
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MISSING_PACKAGE = re.compile(r"\bpip install\b|\b(accelerate|sentencepiece|tiktoken|protobuf)\b.* installed")
_UNKNOWN_ARCHITECTURE = re.compile("model type `([^`]*)` but Transformers does not recognize")


def one_line(error: BaseException) -> str:
    """An error's message in one line, cut where it is long; the kind of the error where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"{text} is not there"
    return text.rstrip(".") if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1].rstrip()}…"


def kind_and_line(error: BaseException) -> str:
    """The kind of an error and its message in one line."""
    return f"{type(error).__name__}: {one_line(error)}"


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep stdout free of what is printed while a model loads, and stderr of reports that become errors here.

    Bars of downloads stay where stderr is a terminal.
    """
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the hub warns when an environment variable has decided about its bars
        logging.disable_progress_bar()
        if sys.stderr.isatty():
            enable_progress_bars()
    logging.set_verbosity_error()
    try:
        logs.getLogger("bitsandbytes").setLevel(logs.ERROR)  # one line for each layer of each forward otherwise
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                logging.enable_progress_bar()


@contextmanager
def refused(line_of: Callable[[Exception], str]) -> Iterator[None]:
    """Turn any failure inside into one line, but let a lack of memory through as it is.

    Raises:
        ValueError: something failed; ``line_of`` it says what.
    """
    try:
        yield
    except Exception as error:  # libraries raise every kind, bare Exception included, for what they cannot read or run
        if is_out_of_memory(error):
            raise
        raise ValueError(line_of(error)) from error


def read_fault(part: Part, spec: ModelConfig, error: Exception) -> str:
    """What was found where a part of a model cannot be read, and the remedy."""
    causes = list(_chain(error))
    revision = "" if spec.revision is None else f" at revision '{spec.revision}'"
    if any(isinstance(cause, RevisionNotFoundError) for cause in causes):
        return f"'{spec.model}' has no revision '{spec.revision}'; name a branch, tag or commit that it has"
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return f"'{spec.model}' is gated; ask for access on its page at huggingface.co and log in with `hf auth login`"
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return (
            f"'{spec.model}' is no directory here and no model on the hub; check the name, or log in with "
            "`hf auth login` if it is private"
        )
    if any(isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled) for cause in causes):
        return (
            f"'{spec.model}'{revision} is no directory here, is not in the hub's local cache, and the hub cannot be "
            "reached; check the path or the connection (and HF_HUB_OFFLINE), or copy the model here and name its "
            "directory"
        )
    if "trust_remote_code" in str(error):
        return f"'{spec.model}' brings code of its own; set trust_remote_code: true if you trust it"
    if str(error).startswith("Unrecognized configuration class"):
        return f"'{spec.model}' is no causal language model that {_RELEASE} knows; use a decoder-only language model"
    unknown = _UNKNOWN_ARCHITECTURE.search(str(error))
    if unknown is not None:
        return (
            f"'{spec.model}' has the architecture '{unknown[1]}', which {_RELEASE} does not know; "
            "check model_type in its config.json, or use a release that knows it"
        )
    texts = [str(cause) for cause in causes]
    folder = expanded(spec.model)
    is_there = part != "tokenizer" or not folder.is_dir() or (folder / "tokenizer.model").is_file()
    is_named = any(map(_MISSING_PACKAGE.search, texts)) and is_there  # said of a folder without a tokenizer, too
    if is_named or any(isinstance(cause, ImportError) for cause in causes):
        remedy = "install what is missing"
    elif any("padding_idx" in text.lower() for text in texts):
        remedy = "put pad_token_id in config.json right: it lies outside the vocabulary"
    else:
        remedy = _remedy(part, spec)
    return f"cannot read the {part} of '{spec.model}'{revision}: {one_line(error)}; {remedy}"


def _remedy(part: Part, spec: ModelConfig) -> str:
    if spec.gguf_file is not None:
        return f"it needs a GGUF file that {_RELEASE} reads: check gguf_file, or download it again"
    if part == "tokenizer":
        return _NEEDS_TOKENIZER
    if part == "configuration":
        return f"it needs a config.json that {_RELEASE} reads"
    options = [option for option in ("device_map", "quantization") if getattr(spec, option) is not None]
    return "".join(f"check {option}, or " for option in options) + "copy or download the model again, whole"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and everything it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def check_config_file(path: Path, name: str) -> None:
    """Refuse a configuration that does not say its kind; some releases of transformers guess it from the directory.

    Raises:
        ValueError: it is not a JSON object with a model_type.
    """
    try:
        config = json.loads(read_text(path, CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: '{path}' is not valid JSON: {one_line(error)}; copy or download it again") from error
    if not isinstance(config, dict) or not ("auto_map" in config or isinstance(config.get("model_type"), str)):
        raise ValueError(f"{name}: '{path}' names no model_type; it needs a config.json that {_RELEASE} reads")


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, spec: ModelConfig, name: str) -> None:
    """Refuse what some releases of transformers make up where the files are missing.

    Raises:
        ValueError: the tokenizer knows special tokens only.
    """
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        raise ValueError(f"{name}: the tokenizer of '{spec.model}' has no token but special ones; {_NEEDS_TOKENIZER}")


def check_vocabularies(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, pair: str) -> None:
    """See that both tokenizers map every id they share, and every token they share, alike.

    Rows padded beyond the tokenizer do not matter; ids that one side lacks are fine (a token only the target has ends
    drafting, a token only the draft has is always rejected).

    Raises:
        ValueError: they do not.
    """
    target_ids, draft_ids = dict(target.get_vocab()), dict(draft.get_vocab())
    target_tokens, draft_tokens = ({i: t for t, i in ids.items()} for ids in (target_ids, draft_ids))
    differing = sorted(i for i, token in target_tokens.items() if i in draft_tokens and draft_tokens[i] != token)
    moved = sorted(i for token, i in target_ids.items() if draft_ids.get(token, i) != i)
    if differing:
        first = differing[0]
        found = (
            f"target and draft use different tokenizers: {len(differing)} of {len(target_tokens)} ids differ, first id "
            f"{first}: {json.dumps(target_tokens[first])} in the target, {json.dumps(draft_tokens[first])} in the draft"
        )
    elif moved:
        token = target_tokens[moved[0]]
        found = (
            f"target and draft use different tokenizers: {json.dumps(token)} is id {moved[0]} in the target, "
            f"id {draft_ids[token]} in the draft"
        )
    elif not target_tokens.keys() & draft_tokens.keys():
        found = "target and draft tokenizers share no token"
    else:
        return
    raise ValueError(f"pair '{pair}': {found}; choose a draft of the target's own family")


def refuse_incomplete_weights(info: Mapping[str, Any], model: PreTrainedModel, spec: ModelConfig, name: str) -> None:
    """See that every tensor of the model came from the checkpoint, and none of its own was left over.

    ``info`` is transformers' loading info, in which tied tensors do not count as missing.  Left over tensors of parts
    that the language model does not have, such as a value head or a vision tower, change nothing and are passed over;
    those of a further layer, or of a module that the model has, mean that the configuration belongs to another model.

    Raises:
        ValueError: a tensor is missing, of another shape, or left over.
    """
    missing, mismatched = sorted(info["missing_keys"]), sorted(info["mismatched_keys"])
    modules = {_pattern(module) for module, _ in model.named_modules()}
    left_over = sorted(key for key in info["unexpected_keys"] if _pattern(key).rpartition(".")[0] in modules)
    if missing:
        found = f"{_count(missing)} missing, first '{missing[0]}'"
    elif mismatched:
        key, in_file, in_model = mismatched[0]
        found = (
            f"{_count(mismatched)} of another shape, first '{key}': {_shape(in_file)} in the file, "
            f"{_shape(in_model)} by the configuration"
        )
    elif left_over:
        found = f"{_count(left_over)} without a place in the model, first '{left_over[0]}'"
    else:
        return
    raise ValueError(
        f"{name}: the weights of '{spec.model}' are not those of its configuration: {found}; "
        "put config.json and weights of one model together, or download the model again"
    )


def _pattern(key: str) -> str:
    return _NUMBER.sub("*", key)


def _count(keys: list[Any]) -> str:
    return "1 tensor is" if len(keys) == 1 else f"{len(keys)} tensors are"


def _shape(size: Any) -> str:
    return "x".join(str(int(length)) for length in size) or "a scalar"


def quantization_options(settings: Mapping[str, Any], name: str) -> Any:
    """The quantization mapping as the object transformers takes; ValueError when it names no method it knows."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AutoQuantizationConfig

    method = method_of(settings)
    if method not in {*AUTO_QUANTIZATION_CONFIG_MAPPING, "bitsandbytes"}:
        found = "no quant_method" if method is None else f"quant_method {method!r}"
        raise ValueError(
            f"{name}: quantization: expected one of {', '.join(sorted(AUTO_QUANTIZATION_CONFIG_MAPPING))}, got {found}"
        )
    try:
        return AutoQuantizationConfig.from_dict(dict(settings))
    except ImportError as error:
        raise ValueError(f"{name}: quantization: {one_line(error)}; install what {method} needs") from error
    except Exception as error:  # each method's settings fail in their own way
        raise ValueError(
            f"{name}: quantization: {one_line(error)}; give the settings that transformers' {method} takes"
        ) from error
