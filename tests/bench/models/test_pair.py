"""Loading a pair: what a good directory gives, paths, options, and tokenizers that belong together."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers
from safetensors.torch import load_file

from specgauge.bench.cache.adapter import ATTENTION_NAMES
from specgauge.bench.models import pair as models
from specgauge.bench.models import quantized
from specgauge.bench.models.load_errors import check_vocabularies
from specgauge.bench.models.pair import (
    LoadedPair,
    load_model,
    load_pair,
)
from specgauge.bench.models.placement import choose_device
from specgauge.configs.pairs import LayersDraft, ModelConfig, NgramConfig, NgramDraft, PairConfig
from tests.bench.decoded import Make
from tests.bench.models.conftest import NAME, change_json, load, refusal
from tests.bench.tiny_checkpoints import WORDS, llama, save, word_tokenizer, write_gguf


def test_a_good_directory(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    loaded = load("~/good")
    assert (loaded.name, loaded.device, loaded.model.dtype) == (NAME, torch.device("cpu"), torch.float32)
    assert (loaded.max_context, loaded.vocabulary_rows, loaded.eos_token_ids) == (128, 100, (1,))
    assert loaded.tokenizer("w0 w96")["input_ids"] == [3, 99]
    expected = load_file(checkpoint / "model.safetensors")
    state = loaded.model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    assert not loaded.model.training
    for attention in ("sdpa", "eager"):
        name = load(checkpoint, attention=attention).model.config._attn_implementation
        assert name == ATTENTION_NAMES[attention]
    assert loaded.model.config._attn_implementation == ATTENTION_NAMES["sdpa"]
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())  # frozen ones are slow on a CPU


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_the_dtype_is_the_stored_one_or_the_one_asked_for(tmp_path: Path, stored: torch.dtype) -> None:
    save(tmp_path, llama().to(stored), word_tokenizer())
    found = [load(tmp_path, dtype=asked).model.dtype for asked in ("auto", "bfloat16", "float64")]
    assert found == [stored, torch.bfloat16, torch.float64]


def test_tied_weights_do_not_count_as_missing(tmp_path: Path) -> None:
    save(tmp_path, llama(tie_word_embeddings=True), word_tokenizer())
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model: Any = load(tmp_path).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_gguf_file(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    model = llama(seed=3)
    write_gguf(tmp_path / "tiny.gguf", model, WORDS)
    loaded = load(tmp_path, gguf_file="tiny.gguf")
    assert (loaded.max_context, loaded.vocabulary_rows, loaded.eos_token_ids) == (128, 100, (1,))
    state = loaded.model.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in model.state_dict().items())


def test_the_embedded_pair_lies_in_the_package(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint.parent / "embedded"
    if not folder.exists():
        shutil.copytree(checkpoint, folder / "target")
    monkeypatch.setattr(models, "EMBEDDED", folder)
    assert load("embedded").vocabulary_rows == 100
    with pytest.raises(ValueError, match=r"^pair 'e' draft: the embedded weights are missing .*embedded/draft\);"):
        load_model(ModelConfig(model="embedded"), role="draft", name="pair 'e' draft")


def test_every_path_and_option_that_cannot_be_loaded_gets_its_line(
    checkpoint: Path,
    copied: Path,
    tmp_path: Path,
    snapshot: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "empty").mkdir()
    lines = []

    def refuse(what: str, path: Path | str, **settings: Any) -> None:
        line = refusal(path, **settings).replace(str(path), "PATH").replace(torch.__version__, "VERSION")
        lines.append(f"{what}: {line}\n")

    for path in ("/no/such/directory", "./none", "../none/none", "~/none", "none", "a/b/c"):
        refuse(path, path)
    refuse("a file", checkpoint / "config.json")
    refuse("a directory without a model", tmp_path / "empty")
    refuse("no GGUF file", copied, gguf_file="x.gguf")
    for name in ("b.gguf", "a.gguf", "c.bin"):
        (copied / name).touch()
    refuse("other GGUF files", copied, gguf_file="x.gguf")
    for device in ("cuda", "cuda:0", "cuda:7"):
        refuse(f"device {device}", checkpoint, device=device)
    snapshot("bench_pair_errors", "".join(lines))


def test_devices_where_there_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen = {device: str(choose_device(device, NAME)) for device in ("auto", "cpu", "cuda", "cuda:1")}
    assert chosen == {"auto": "cuda", "cpu": "cpu", "cuda": "cuda", "cuda:1": "cuda:1"}
    with pytest.raises(ValueError, match=r"device 'cuda:2' .* sees cuda:0, cuda:1; use device: auto or cuda:1$"):
        choose_device("cuda:2", NAME)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"quant_method": "nonsense"}, "expected one of .*\\bawq, .*\\bgptq, .*, got quant_method 'nonsense'"),
        ({"bits": 4}, "expected one of .*, got no quant_method"),
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": "perhaps"},
            ".*; give the settings that transformers' bitsandbytes takes",
        ),
    ],
)
def test_quantization_that_is_not_known(
    checkpoint: Path, settings: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized, "find_spec", lambda _: object())
    assert re.fullmatch(f"quantization: {line}", refusal(checkpoint, quantization=settings))


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands in for the reading of weights: keeps the options, gives a model."""
    whole: dict[str, set[str]] = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()}
    reading = Mock(side_effect=lambda *_, **__: (llama(), whole))
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", reading)
    return reading


def test_options_reach_the_reading(checkpoint: Path, weights: Mock) -> None:
    always = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    given: dict[str, Any] = {"revision": "v1", "device_map": {"": "cpu"}, "trust_remote_code": True}
    load(checkpoint, dtype="bfloat16", **given)
    assert weights.call_args.kwargs == {**given, "dtype": torch.bfloat16, **always}
    load(checkpoint)
    assert weights.call_args.kwargs == {"trust_remote_code": False, "dtype": "auto", **always}


def test_quantized_weights_are_placed_while_they_are_read(checkpoint: Path, copied: Path, weights: Mock) -> None:
    load(checkpoint, quantization={"quant_method": "quanto", "weights": "int8"}, device="cpu")
    assert weights.call_args.kwargs["device_map"] == {"": "cpu"}
    assert weights.call_args.kwargs["quantization_config"].to_dict()["weights"] == "int8"
    change_json(copied / "config.json", quantization_config={"quant_method": "fp8"})
    load(copied)
    assert weights.call_args.kwargs["device_map"] == {"": "cpu"}
    assert "quantization_config" not in weights.call_args.kwargs


def pair_of(target: Path, draft: Path) -> PairConfig:
    return PairConfig(name="p", target=ModelConfig(model=str(target)), draft=ModelConfig(model=str(draft)))


def test_rows_padded_differently_belong_together(checkpoint: Path, tmp_path: Path) -> None:
    """As 151936 and 152064 rows under one tokenizer."""
    draft = save(tmp_path, llama(rows=104, num_hidden_layers=1, max_position_embeddings=64), word_tokenizer())
    pair = load_pair(pair_of(checkpoint, draft))
    assert (pair.name, pair.target.name, pair.draft_model.name) == ("p", "pair 'p' target", "pair 'p' draft")
    assert (pair.target.vocabulary_rows, pair.draft_model.vocabulary_rows) == (100, 104)
    assert (pair.target.max_context, pair.draft_model.max_context, pair.max_context) == (128, 64, 64)


def test_a_pair_without_a_draft_of_its_own_loads_the_target_alone(checkpoint: Path) -> None:
    target = ModelConfig(model=str(checkpoint))
    lookups = load_pair(PairConfig(name="p", target=target, draft=NgramDraft(ngram=NgramConfig(longest=2))))
    assert (lookups.draft, lookups.ngram, lookups.max_context) == (None, NgramConfig(longest=2), 128)
    assert lookups.models == (lookups.target,)
    layers = load_pair(PairConfig(name="p", target=target, draft=LayersDraft(layers=1)))
    assert layers.models == (layers.target, layers.draft_model)
    assert layers.draft_model.name == "pair 'p' target (first 1 layers)"
    own = {id(weight) for weight in layers.target.model.parameters()}
    assert {id(weight) for weight in layers.draft_model.model.parameters()} < own


def test_a_fault_names_the_role(checkpoint: Path, copied: Path, tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    word_tokenizer([*WORDS[:3], *(f"v{number}" for number in range(97))]).save_pretrained(copied)
    for pair, words in (
        (pair_of(tmp_path / "draft", checkpoint), "pair 'p' target: .* is not a model directory"),
        (pair_of(checkpoint, tmp_path / "draft"), "pair 'p' draft: .* is not a model directory"),
        (pair_of(checkpoint, copied), "pair 'p': target and draft use different tokenizers: 97 of 100 ids differ"),
    ):
        with pytest.raises(ValueError, match=f"^{words}"):
            load_pair(pair)


def vocabulary(ids: dict[str, int]) -> Any:
    return SimpleNamespace(get_vocab=lambda: ids)


@pytest.mark.parametrize(
    ("target", "draft", "words"),
    [
        ({"a": 0, "b": 1, "e": 2}, {"a": 0, "c": 1, "d": 2}, "2 of 3 ids differ, first id 1: "),
        ({'"\n': 0}, {"a": 0}, '1 of 1 ids differ, first id 0: "\\"\\n" in the target, "a" in the draft; '),
        ({"a": 0, "b": 1, "c": 2}, {"a": 0, "c": 3, "b": 4}, '"b" is id 1 in the target, id 4 in the draft; '),
        ({"a": 0, "b": 1}, {"c": 2, "d": 3}, "tokenizers share no token; "),
        ({"a": 0}, {}, "tokenizers share no token; "),
        ({"a": 0, "b": 1}, {"b": 1, "a": 0}, None),
        ({"a": 0, "b": 1}, {"a": 0}, None),
        ({"a": 0}, {"a": 0, "b": 1}, None),
        ({"a": 0, "b": 1, "only target": 2}, {"a": 0, "b": 1, "only draft": 3}, None),
    ],
)
def test_vocabularies_that_belong_together(target: dict[str, int], draft: dict[str, int], words: str | None) -> None:
    with nullcontext() if words is None else pytest.raises(ValueError, match=rf"^pair 'p': .*{re.escape(words)}"):
        check_vocabularies(vocabulary(target), vocabulary(draft), "p")


def test_the_context_of_a_pair_is_the_smaller_one_known(tiny_model: Make) -> None:
    for target, draft, expected in ((128, 64, 64), (None, 64, 64), (128, None, 128), (None, None, None)):
        models = [replace(tiny_model(), max_context=limit) for limit in (target, draft)]
        assert LoadedPair(name="p", target=models[0], draft=models[1]).max_context == expected
