"""What names and folders of models tell before anything is loaded. No torch.

name_fault("qwen2.5:7b"), adapter_fault(Path("checkpoints/run-3"))      # None where nothing is wrong
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from specgauge.configs.reading import CONFIG_BYTES, read_text

ADAPTER = "adapter_config.json"


def name_fault(model: str) -> str | None:
    """Why a name that is no path here is no hub id either."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if "\\" in model:
        return f"'{model}' is no directory here; write its path with /, not with backslashes"
    if ":" in model and not model.startswith(("/", ".", "~")):
        return (
            f"'{model}' has a tag, as Ollama's names do, whose files transformers does not read; name the hub id of "
            "the same model (organisation/model), or a directory with its files"
        )
    try:
        try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        is_id = False
    else:
        is_id = model.count("/") == 1 and not model.startswith((".", "~"))
    if is_id:
        return None
    return (
        f"'{model}' is neither a directory nor a hub id of the form organisation/model; check the path, or write "
        "'embedded' for the shipped pair"
    )


def base_of_adapter(config: Path) -> str:
    """The model that an adapter belongs to, by its adapter_config.json."""
    try:
        return str(json.loads(read_text(config, CONFIG_BYTES))["base_model_name_or_path"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "a base model it does not name"


def adapter_fault(folder: Path) -> str | None:
    """Why a folder with an adapter cannot be measured as what it is: without its base, or where peft is missing."""
    config = folder / ADAPTER
    if not config.is_file():
        return None
    merge = "merge it into its base model (peft's merge_and_unload) and name the merged directory"
    if not (folder / "config.json").is_file():
        return f"'{folder}' is an adapter of '{base_of_adapter(config)}', without the base's weights; {merge}"
    if find_spec("peft") is None:
        return (
            f"'{folder}' has an adapter beside its weights ({ADAPTER}), which would be left out, since peft is not "
            f"installed; {merge}, install peft, or take {ADAPTER} away to measure the base"
        )
    return None


def token_counts(folder: Path, texts: Sequence[str]) -> list[int]:
    """Tokens of each text by the tokenizer.json of a folder; none where that is missing or refuses a text."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return [len(one.ids) for one in tokenizer.encode_batch(list(texts))]
    except Exception:  # the library raises bare Exception; loading tells what is wrong
        return []
