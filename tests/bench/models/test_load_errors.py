"""The one line that every directory or hub id gets that cannot be read, or is not what it says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import transformers
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from transformers import JambaConfig, JambaForCausalLM, Lfm2Config, MambaConfig, MambaForCausalLM, T5Config

from specgauge.bench.models.load_errors import one_line, quiet_loading
from tests.bench.loading_checks import (
    Recorder,
    change_json,
    change_weights,
    checkpoint,
    copied,
    load,
    record,
    refusal,
)
from tests.bench.tiny_checkpoints import SHAPE, llama, save, word_tokenizer

__all__ = ["checkpoint", "copied", "record"]  # fixtures

RELEASE = f"transformers {transformers.__version__}"
NOT_ONE_MODEL = "put config.json and weights of one model together, or download the model again"


def test_a_hub_id_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    rest = (
        "is no directory here, is not in the hub's local cache, and the hub cannot be reached; check the path or the "
        "connection (and HF_HUB_OFFLINE), or copy the model here and name its directory"
    )
    assert refusal("nobody/no-such-model") == f"'nobody/no-such-model' {rest}"
    assert refusal("nobody/no-such-model", revision="v2") == f"'nobody/no-such-model' at revision 'v2' {rest}"


@pytest.mark.parametrize(
    ("kind", "revision", "words"),
    [
        (
            RepositoryNotFoundError,
            None,
            "'a/b' is no directory here and no model on the hub; check the name, or log in with `hf auth login` "
            "if it is private",
        ),
        (
            GatedRepoError,
            None,
            "'a/b' is gated; ask for access on its page at huggingface.co and log in with `hf auth login`",
        ),
        (RevisionNotFoundError, "v9", "'a/b' has no revision 'v9'; name a branch, tag or commit that it has"),
    ],
)
def test_what_the_hub_refuses(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception], revision: str | None, words: str
) -> None:
    """transformers wraps the hub's error in an OSError of several lines."""

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("one line\nand another") from kind.__new__(kind)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    assert refusal("a/b", revision=revision) == words


def test_a_failure_of_another_kind_names_the_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("first line\n  second line.")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    assert refusal("a/b", revision="v2") == (
        "cannot read the configuration of 'a/b' at revision 'v2': first line second line; "
        f"it needs a config.json that {RELEASE} reads"
    )


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


@pytest.mark.parametrize("on_terminal", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_settings_of_transformers_are_put_back(monkeypatch: pytest.MonkeyPatch, on_terminal: bool, fails: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal)
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    with suppress(ZeroDivisionError), quiet_loading():
        assert logging.get_verbosity() == ERROR
        assert not logging.is_progress_bar_enabled()
        assert are_progress_bars_disabled() is not on_terminal
        if fails:
            _ = 1 / 0
    assert logging.get_verbosity() == before
    assert logging.is_progress_bar_enabled()
    assert not are_progress_bars_disabled()


# Configurations


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{not json", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"model_type": "llama",\n', "Expecting property name enclosed in double quotes: line 2 column 1 (char 24)"),
        (b"\xff{}", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_a_configuration_that_is_no_json(copied: Path, content: bytes, words: str) -> None:
    (copied / "config.json").write_bytes(content)
    assert refusal(copied) == (f"'{copied / 'config.json'}' is not valid JSON: {words}; copy or download it again")


@pytest.mark.parametrize("content", ["{}", "[]", "3", '{"model_type": 3}', '{"model_type": null}'])
def test_a_configuration_of_nothing(copied: Path, content: str) -> None:
    (copied / "config.json").write_text(content)
    assert refusal(copied) == (
        f"'{copied / 'config.json'}' names no model_type; it needs a config.json that {RELEASE} reads"
    )


def test_a_configuration_that_contradicts_itself(copied: Path) -> None:
    """Some releases find it in the configuration, others when they build the model."""
    change_json(copied / "config.json", num_hidden_layers="two")
    message = refusal(copied)
    assert re.match(f"cannot read the (configuration|weights) of '{copied}': ", message)
    assert message.endswith(
        (f"; it needs a config.json that {RELEASE} reads", "; copy or download the model again, whole")
    )


def test_an_unknown_architecture(copied: Path) -> None:
    change_json(copied / "config.json", model_type="nonsense", architectures=["NonsenseForCausalLM"])
    assert refusal(copied) == (
        f"'{copied}' has the architecture 'nonsense', which {RELEASE} does not know; "
        "check model_type in its config.json, or use a release that knows it"
    )


def test_a_model_that_writes_no_text(copied: Path) -> None:
    (copied / "config.json").write_text('{"model_type": "vit"}')
    assert refusal(copied) == (
        f"'{copied}' is no causal language model that {RELEASE} knows; use a decoder-only language model"
    )


def test_code_in_the_repository_is_not_run_unasked(copied: Path) -> None:
    change_json(copied / "config.json", model_type="own", auto_map={"AutoConfig": "configuration_own.OwnConfig"})
    (copied / "configuration_own.py").write_text("raise SystemExit('this code ran')\n")
    assert refusal(copied) == f"'{copied}' brings code of its own; set trust_remote_code: true if you trust it"


# Weights


def test_truncated_weights(copied: Path) -> None:
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = refusal(copied)
    assert message.startswith(f"cannot read the weights of '{copied}': Error while deserializing header: ")
    assert message.endswith("; copy or download the model again, whole")


def test_no_weights(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    message = refusal(copied)
    assert message.startswith(f"cannot read the weights of '{copied}': ")
    assert "model.safetensors" in message
    assert message.endswith("; copy or download the model again, whole")


def test_a_shard_is_missing(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path, max_shard_size="8KB")
    word_tokenizer().save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    load(tmp_path)
    shards[1].unlink()
    message = refusal(tmp_path)
    assert message.startswith(f"cannot read the weights of '{tmp_path}': ")
    assert message.endswith("; copy or download the model again, whole")


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"num_hidden_layers": 3}, "9 tensors are missing, first 'model.layers.2.input_layernorm.weight'"),
        (
            {"num_hidden_layers": 1},
            "9 tensors are without a place in the model, first 'model.layers.1.input_layernorm.weight'",
        ),
        (
            {"intermediate_size": 32},
            "6 tensors are of another shape, first 'model.layers.0.mlp.down_proj.weight': "
            "16x24 in the file, 16x32 by the configuration",
        ),
        (
            {"vocab_size": 104},
            "2 tensors are of another shape, first 'lm_head.weight': 100x16 in the file, 104x16 by the configuration",
        ),
        ({"attention_bias": True}, "8 tensors are missing, first 'model.layers.0.self_attn.k_proj.bias'"),
    ],
    ids=["deeper", "shallower", "wider", "more rows", "biases"],
)
def test_a_configuration_of_another_shape_is_no_random_model(
    copied: Path, capfd: pytest.CaptureFixture[str], config: dict[str, Any], found: str
) -> None:
    change_json(copied / "config.json", **config)
    assert refusal(copied) == (
        f"the weights of '{copied}' are not those of its configuration: {found}; {NOT_ONE_MODEL}"
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lm_head.bias", "1 tensor is without a place in the model, first 'lm_head.bias'"),
        (
            "model.layers.1.mlp.up_proj.weight_scale",
            "1 tensor is without a place in the model, first 'model.layers.1.mlp.up_proj.weight_scale'",
        ),
    ],
)
def test_a_tensor_that_the_models_own_modules_do_not_use(copied: Path, name: str, found: str) -> None:
    change_weights(copied, lambda tensors: tensors.update({name: torch.zeros(3)}))
    assert refusal(copied) == (
        f"the weights of '{copied}' are not those of its configuration: {found}; {NOT_ONE_MODEL}"
    )


def test_a_head_that_is_missing(copied: Path) -> None:
    change_weights(copied, lambda tensors: tensors.pop("lm_head.weight"))
    assert refusal(copied) == (
        f"the weights of '{copied}' are not those of its configuration: "
        f"1 tensor is missing, first 'lm_head.weight'; {NOT_ONE_MODEL}"
    )


@pytest.mark.parametrize("name", ["v_head.weight", "vision_tower.layers.0.self_attn.q_proj.weight"])
def test_parts_beside_the_language_model_are_passed_over(copied: Path, name: str) -> None:
    change_weights(copied, lambda tensors: tensors.update({name: torch.zeros(3)}))
    assert load(copied).vocabulary_rows == 100


def test_weights_that_are_not_numbers(copied: Path) -> None:
    change_weights(copied, lambda tensors: tensors["model.norm.weight"].fill_(torch.nan))
    assert refusal(copied) == (
        "its logits are not numbers (NaN) in float32; its weights are corrupt, or need a wider dtype, such as "
        "bfloat16 or float32"
    )


def test_a_gguf_file_that_is_none(copied: Path) -> None:
    pytest.importorskip("gguf")
    (copied / "x.gguf").write_bytes(b"something else entirely")
    message = refusal(copied, gguf_file="x.gguf")
    assert message.startswith(f"cannot read the configuration of '{copied}': ")
    assert message.endswith(f"; it needs a GGUF file that {RELEASE} reads: check gguf_file, or download it again")


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({}, ""),
        ({"device_map": "auto"}, "check device_map, or "),
        ({"quantization": {"quant_method": "gptq", "bits": 4}}, "check quantization, or "),
    ],
)
def test_a_failure_while_weights_are_read(
    checkpoint: Path, record: Callable[..., Recorder], settings: dict[str, Any], remedy: str
) -> None:
    record(KeyError("layer"))
    assert refusal(checkpoint, **settings) == (
        f"cannot read the weights of '{checkpoint}': 'layer' is not there; "
        f"{remedy}copy or download the model again, whole"
    )


def test_a_package_that_is_not_installed(checkpoint: Path, record: Callable[..., Recorder]) -> None:
    record(ImportError("needs\n`somepackage`:\n  `pip install somepackage`."))
    assert refusal(checkpoint) == (
        f"cannot read the weights of '{checkpoint}': needs `somepackage`: `pip install somepackage`; "
        "install what is missing"
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_a_lack_of_memory_is_a_result_and_no_bad_input(
    checkpoint: Path, record: Callable[..., Recorder], error: Exception
) -> None:
    record(error)
    with pytest.raises(type(error)) as caught:
        load(checkpoint)
    assert caught.value is error


# Tokenizers


def test_no_tokenizer(copied: Path) -> None:
    for path in copied.glob("tokenizer*"):
        path.unlink()
    message = refusal(copied)
    assert message.startswith((f"cannot read the tokenizer of '{copied}': ", f"the tokenizer of '{copied}' has no "))
    assert message.endswith("; it needs the tokenizer files that belong to the model, such as tokenizer.json")


@pytest.mark.parametrize("content", ["{", "{}", '{"model": 3}', ""])
def test_a_spoilt_tokenizer(copied: Path, content: str) -> None:
    (copied / "tokenizer.json").write_text(content)
    message = refusal(copied)
    assert message.startswith(f"cannot read the tokenizer of '{copied}': ")
    assert message.endswith("; it needs the tokenizer files that belong to the model, such as tokenizer.json")


def test_a_tokenizer_of_special_tokens_only(copied: Path) -> None:
    word_tokenizer(["<unk>", "</s>", "<s>"]).save_pretrained(copied)
    assert refusal(copied) == (
        f"the tokenizer of '{copied}' has no token but special ones; "
        "it needs the tokenizer files that belong to the model, such as tokenizer.json"
    )


# Models that cannot roll back


def test_an_encoder_decoder_is_refused_before_any_weight_is_read(tmp_path: Path) -> None:
    T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=100).save_pretrained(tmp_path)
    assert refusal(tmp_path) == "encoder-decoder models are not supported; use a decoder-only model"


def test_a_hybrid_is_refused_before_any_weight_is_read(tmp_path: Path) -> None:
    kinds = ["conv", "full_attention"]
    Lfm2Config(vocab_size=100, hidden_size=16, num_hidden_layers=2, layer_types=kinds).save_pretrained(tmp_path)
    assert refusal(tmp_path) == (
        "its state (conv) cannot be rolled back after a rejected draft, so it cannot decode speculatively; "
        "use a model with attention layers only (full_attention, sliding_attention)"
    )


@pytest.mark.parametrize(
    "model",
    [
        lambda: MambaForCausalLM(MambaConfig(vocab_size=100, hidden_size=16, num_hidden_layers=1, state_size=4)),
        lambda: JambaForCausalLM(
            JambaConfig(
                vocab_size=100,
                **{**SHAPE, "num_hidden_layers": 8},
                num_experts=2,
                mamba_d_state=4,
                use_mamba_kernels=False,
                pad_token_id=0,
            )
        ),
    ],
    ids=["recurrent", "hybrid"],
)
def test_recurrent_state_is_refused(tmp_path: Path, model: Callable[[], Any]) -> None:
    save(tmp_path, model(), word_tokenizer())
    assert re.fullmatch(
        r"its state \((linear_attention|MambaForCausalLM|JambaForCausalLM)\) cannot be rolled back after a rejected "
        r"draft, so it cannot decode speculatively; use a model with attention layers only "
        r"\(full_attention, sliding_attention\)",
        refusal(tmp_path),
    )


def test_a_model_that_only_its_class_tells_recurrent(tmp_path: Path) -> None:
    config = transformers.RwkvConfig(vocab_size=100, hidden_size=16, num_hidden_layers=2, context_length=64)
    save(tmp_path, transformers.RwkvForCausalLM(config), word_tokenizer())
    assert refusal(tmp_path).startswith("its state (RwkvForCausalLM) cannot be rolled back after a rejected draft, ")
