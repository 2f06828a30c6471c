"""The one line that every directory or hub id gets that cannot be read, or is not what it says."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub.constants
import pytest
import torch
import transformers
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from transformers import Lfm2Config, T5Config

from specgauge.bench.models.load_errors import kind_and_line, one_line, quiet_loading, refused
from tests.bench.models.conftest import (
    change_json,
    change_weights,
    load,
    refusal,
)
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer

RECURRENT: dict[str, Any] = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2}
RELEASE = f"transformers {transformers.__version__}"


def wrapped(kind: type[Exception]) -> Exception:
    """transformers wraps the hub's error in an OSError of several lines."""
    error = OSError("one line\nand another")
    error.__cause__ = kind.__new__(kind)
    return error


GPTQ = {"quant_method": "gptq", "bits": 4}
IMPORT = ImportError("needs\n`somepackage`:\n  `pip install somepackage`.")
FAILURES: dict[str, tuple[str, Exception, dict[str, Any]]] = {
    "no such repository": ("AutoConfig", wrapped(RepositoryNotFoundError), {}),
    "gated": ("AutoConfig", wrapped(GatedRepoError), {}),
    "no such revision": ("AutoConfig", wrapped(RevisionNotFoundError), {"revision": "v9"}),
    "another kind": ("AutoConfig", OSError("first line\n  second line."), {"revision": "v2"}),
    "weights": ("AutoModelForCausalLM", KeyError("layer"), {}),
    "weights with a device map": ("AutoModelForCausalLM", KeyError("layer"), {"device_map": "auto"}),
    "weights that are quantized": ("AutoModelForCausalLM", KeyError("layer"), {"quantization": GPTQ}),
    "a missing package": ("AutoModelForCausalLM", IMPORT, {}),
    "a package missing behind another error": (
        "AutoModelForCausalLM",
        ValueError("a `device_map` requires `accelerate`. You can install it with `pip install accelerate`"),
        {"device_map": "auto"},
    ),
    "padding outside the vocabulary": (
        "AutoModelForCausalLM",
        AssertionError("Padding_idx must be within num_embeddings"),
        {},
    ),
}


def test_what_hub_and_libraries_raise_gets_its_line(
    checkpoint: Path, tmp_path: Path, snapshot: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    lines = [f"offline: {refusal('nobody/no-such-model', **options)}\n" for options in ({}, {"revision": "v2"})]
    for what, (reader, error, options) in FAILURES.items():
        with monkeypatch.context() as patched:
            patched.setattr(getattr(transformers, reader), "from_pretrained", Mock(side_effect=error))
            line = refusal(checkpoint, **options).replace(str(checkpoint), "DIRECTORY")
        lines.append(f"{what}: {line}\n")
    snapshot("bench_read_errors", "".join(lines).replace(RELEASE, "transformers RELEASE"))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(), "ValueError"),
        (ValueError("a.\n\n  b. "), "a. b"),
        (KeyError("scores"), "'scores' is not there"),
        (OSError(2, "No such file or directory", "x"), "[Errno 2] No such file or directory: 'x'"),
        (ValueError("w" * 200), "w" * 200),
        (ValueError("w" * 201), "w" * 199 + "…"),
    ],
)
def test_an_error_in_one_line(error: Exception, text: str) -> None:
    assert one_line(error) == text


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), ZeroDivisionError()])
def test_a_lack_of_memory_is_a_result_and_no_bad_input(error: Exception) -> None:
    with pytest.raises((type(error), ValueError)) as caught, refused(lambda found: f"m: {kind_and_line(found)}"):
        raise error
    if isinstance(error, ZeroDivisionError):
        assert (str(caught.value), caught.value.__cause__) == ("m: ZeroDivisionError: ZeroDivisionError", error)
    else:
        assert caught.value is error


@pytest.mark.parametrize("on_terminal", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_what_is_printed_while_a_model_loads_is_no_result_and_settings_are_put_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], on_terminal: bool, fails: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal)
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    with suppress(ZeroDivisionError), quiet_loading():
        assert logging.get_verbosity() == ERROR
        assert not logging.is_progress_bar_enabled()
        assert are_progress_bars_disabled() is not on_terminal
        print("welcome to my tokenizer")
        if fails:
            _ = 1 / 0
    assert logging.get_verbosity() == before
    assert logging.is_progress_bar_enabled()
    assert not are_progress_bars_disabled()
    assert capfd.readouterr() == ("", "welcome to my tokenizer\n")


@pytest.mark.parametrize(("there", "remedy"), [(True, "install what is missing"), (False, "such as tokenizer.json")])
def test_a_tokenizers_package_is_missing_where_its_file_is_there(
    copied: Path, monkeypatch: pytest.MonkeyPatch, there: bool, remedy: str
) -> None:
    if there:
        (copied / "tokenizer.model").write_bytes(b"\x00")
    error = ValueError("You need to have sentencepiece or tiktoken installed to convert a slow tokenizer")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", Mock(side_effect=error))
    assert refusal(copied).endswith(remedy)


def config(**values: Any) -> Callable[[Path], object]:
    return lambda folder: change_json(folder / "config.json", **values)


def written(content: bytes, name: str = "config.json") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def tensor(name: str) -> Callable[[Path], object]:
    return lambda folder: change_weights(folder, lambda tensors: tensors.update({name: torch.zeros(3)}))


def own_code(folder: Path) -> None:
    change_json(folder / "config.json", model_type="own", auto_map={"AutoConfig": "configuration_own.OwnConfig"})
    (folder / "configuration_own.py").write_text("raise SystemExit('this code ran')\n")


SPOILT: dict[str, Callable[[Path], object]] = {
    "no JSON": written(b"{not json"),
    "an empty configuration": written(b""),
    "a configuration cut off": written(b'{"model_type": "llama",\n'),
    "no UTF-8": written(b"\xff{}"),
    **{f"the configuration {content}": written(content.encode()) for content in ("{}", "[]", "3")},
    **{f"a model type {kind}": config(model_type=kind) for kind in (3, None)},
    "an unknown architecture": config(model_type="nonsense", architectures=["NonsenseForCausalLM"]),
    "a model that writes no text": written(b'{"model_type": "vit"}'),
    "code of its own": own_code,
    "deeper than its weights": config(num_hidden_layers=3),
    "shallower": config(num_hidden_layers=1),
    "wider": config(intermediate_size=32),
    "more rows": config(vocab_size=104),
    "biases": config(attention_bias=True),
    "a tensor of a module that has it not": tensor("lm_head.bias"),
    "a scale of another method": tensor("model.layers.1.mlp.up_proj.weight_scale"),
    "no head": lambda folder: change_weights(folder, lambda tensors: tensors.pop("lm_head.weight")),
    "weights that are not numbers": lambda folder: change_weights(
        folder, lambda tensors: tensors["model.norm.weight"].fill_(torch.nan)
    ),
    "special tokens only": lambda folder: word_tokenizer(["<unk>", "</s>", "<s>"]).save_pretrained(folder),
    "an encoder-decoder": lambda folder: T5Config(
        d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=100
    ).save_pretrained(folder),
    "a hybrid": lambda folder: Lfm2Config(
        vocab_size=100, hidden_size=16, num_hidden_layers=2, layer_types=["conv", "full_attention"]
    ).save_pretrained(folder),
}


def test_every_spoilt_directory_gets_its_line(
    checkpoint: Path, tmp_path: Path, snapshot: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """No random model, no code run unasked, nothing printed."""
    lines = []
    for number, (what, spoil) in enumerate(SPOILT.items()):
        folder = Path(shutil.copytree(checkpoint, tmp_path / str(number)))
        spoil(folder)
        line = refusal(folder).replace(str(folder), "DIRECTORY").replace(RELEASE, "transformers RELEASE")
        lines.append(f"{what}: {line}\n")
    snapshot("bench_load_errors", "".join(lines))
    assert capfd.readouterr() == ("", "")


def shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    llama().save_pretrained(folder, max_shard_size="8KB")
    load(folder)
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def halved(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


@pytest.mark.parametrize(
    ("part", "spoil"),
    [
        ("weights", halved),
        ("weights", lambda folder: (folder / "model.safetensors").unlink()),
        ("weights", shards),
        ("configuration|weights", config(num_hidden_layers="two")),
        ("tokenizer", no_tokenizer),
        *(("tokenizer", written(content, "tokenizer.json")) for content in (b"{", b"{}", b'{"model": 3}', b"")),
    ],
)
def test_what_a_library_cannot_read_names_the_part_and_the_remedy(
    copied: Path, part: str, spoil: Callable[[Path], object]
) -> None:
    """In the library's words, which differ by release."""
    spoil(copied)
    remedies = {
        "weights": "copy or download the model again, whole",
        "configuration": f"it needs a config.json that {RELEASE} reads",
        "tokenizer": "it needs the tokenizer files that belong to the model, such as tokenizer.json",
    }
    message = refusal(copied)
    assert re.match(
        f"cannot read the ({part}) of '{copied}': |the tokenizer of '{copied}' has no token",
        message,
    )
    assert message.endswith(tuple(f"; {remedies[one]}" for one in part.split("|")))


def test_a_gguf_file_that_is_none(copied: Path) -> None:
    pytest.importorskip("gguf")
    (copied / "x.gguf").write_bytes(b"something else entirely")
    message = refusal(copied, gguf_file="x.gguf")
    assert message.startswith(f"cannot read the configuration of '{copied}': ")
    assert message.endswith(f"; it needs a GGUF file that {RELEASE} reads: check gguf_file, or download it again")


@pytest.mark.parametrize("name", ["v_head.weight", "vision_tower.layers.0.self_attn.q_proj.weight"])
def test_parts_beside_the_language_model_are_passed_over(copied: Path, name: str) -> None:
    tensor(name)(copied)
    assert load(copied).vocabulary_rows == 100


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (transformers.MambaForCausalLM, transformers.MambaConfig(**RECURRENT, state_size=4)),
        (transformers.RwkvForCausalLM, transformers.RwkvConfig(**RECURRENT, context_length=64)),
    ],
    ids=["by its configuration", "by its class alone"],
)
def test_recurrent_state_is_refused(tmp_path: Path, kind: Any, config: Any) -> None:
    save(tmp_path, kind(config), word_tokenizer())
    kinds = "linear_attention|MambaForCausalLM|RwkvForCausalLM"
    assert re.match(rf"its state \(({kinds})\) cannot be rolled back after a rejected draft, ", refusal(tmp_path))
