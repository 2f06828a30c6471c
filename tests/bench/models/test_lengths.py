"""What changes with the length of a text: sliding windows that are not there, rotary factors that switch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from specgauge.bench.cache.adapter import sliding_window
from specgauge.bench.decoding.plain import generate_plain
from specgauge.bench.models import static_graphs
from specgauge.bench.models.pair import LoadedModel, in_mode, load_pair
from specgauge.configs.pairs import PairConfig
from specgauge.model.sampling import SamplingSettings
from tests.bench.models.conftest import change_json, load, refusal, refused_line
from tests.bench.tiny_checkpoints import SHAPE, llama, save, word_tokenizer

PROMPT = [7 * number % 90 + 3 for number in range(40)]
LONG_FACTORS = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [1.5, 4, 8, 16]}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


def written(loaded: LoadedModel, *prompts: list[int], new: int = 12) -> list[list[int]]:
    """Greedy texts of a batch."""
    numbers, greedy = range(len(prompts)), SamplingSettings(temperature=0.0)
    texts = generate_plain(loaded, prompts, greedy, prompt_numbers=numbers, max_new_tokens=new, seed=0)
    return [list(text.tokens) for text in texts]


def by_generate(loaded: LoadedModel, new: int = 12) -> list[int]:
    """What transformers writes after the prompt with the checkpoint as it was loaded."""
    model: Any = loaded.model
    model.set_attn_implementation("sdpa")
    found = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=new, do_sample=False, eos_token_id=list(loaded.eos_token_ids)
    )
    tokens: list[int] = found[0, len(PROMPT) :].tolist()
    return tokens


def mistral(folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    config = transformers.MistralConfig(vocab_size=100, **{**SHAPE, "initializer_range": 0.3, **settings})
    return save(folder, transformers.MistralForCausalLM(config), word_tokenizer())


def test_a_window_that_the_class_does_not_apply_is_not_applied(tmp_path: Path) -> None:
    good = save(tmp_path / "good", llama(initializer_range=0.3), word_tokenizer())
    stray = Path(shutil.copytree(good, tmp_path / "stray"))
    change_json(stray / "config.json", sliding_window=16)
    loaded = load(stray)
    assert [note.code for note in loaded.notes] == ["stray_window"]
    assert sliding_window(loaded.model) is None
    assert written(loaded, PROMPT) == written(load(good), PROMPT) == [by_generate(loaded)]


def test_what_is_met_in_both_models_of_a_pair_is_told_once(tmp_path: Path) -> None:
    folders = [save(tmp_path / name, llama(), word_tokenizer()) for name in ("both", "other")]
    for folder, window in zip(folders, (16, 8), strict=True):
        change_json(folder / "config.json", sliding_window=window)

    def told(target: Path, draft: Path) -> list[str]:
        pair = load_pair(PairConfig.model_validate({"name": "x", "target": str(target), "draft": str(draft)}))
        return [note.message.partition(":")[0] for note in pair.notes]

    assert told(folders[0], folders[0]) == ["pair 'x' target and draft"]
    assert told(*folders) == ["pair 'x' target", "pair 'x' draft"]


def test_a_window_that_the_class_applies_is_kept(tmp_path: Path) -> None:
    loaded = load(mistral(tmp_path, sliding_window=16))
    assert (sliding_window(loaded.model), loaded.notes) == (16, ())
    assert written(loaded, PROMPT) == [by_generate(loaded)]


def test_a_window_that_the_class_applies_and_the_configuration_denies_is_refused(tmp_path: Path) -> None:
    folder = mistral(tmp_path, sliding_window=16)
    change_json(folder / "config.json", use_sliding_window=False)
    assert "computes other logits" in refusal(folder)


def test_static_shapes_are_checked_past_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(mistral(tmp_path, sliding_window=16))
    assert in_mode(loaded, "compile").mode == "compile"
    monkeypatch.setattr(static_graphs, "sliding_window", lambda model: None)
    line = refused_line(in_mode, loaded, "compile")
    assert line.startswith("MistralForCausalLM computes other logits over static shapes than eagerly")


def switching(folder: Path, rope: dict[str, Any]) -> Path:
    """A model whose rotary factors switch at 32 tokens; it takes 128."""
    torch.manual_seed(0)
    own = {**SHAPE, "initializer_range": 0.4, "num_attention_heads": 2, "rope_parameters": rope, "pad_token_id": 0}
    if rope is DYNAMIC:
        return save(folder, llama(**{**own, "max_position_embeddings": 32}), word_tokenizer())
    config = transformers.Phi3Config(vocab_size=100, original_max_position_embeddings=32, **own)
    return save(folder, transformers.Phi3ForCausalLM(config), word_tokenizer())


@pytest.mark.parametrize("rope", [LONG_FACTORS, DYNAMIC], ids=["longrope", "dynamic"])
def test_a_text_does_not_depend_on_its_batch_mates(tmp_path: Path, rope: dict[str, Any]) -> None:
    folder = switching(tmp_path, rope)
    short, long = load(folder), load(folder, reach=33)
    assert (short.max_context, long.max_context) == (32, 128)
    assert [[note.code for note in loaded.notes] for loaded in (short, long)] == [[], ["rope_switch"]]
    alone = written(long, PROMPT[:8])
    assert [alone[0], written(long, PROMPT)[0]] == written(long, PROMPT[:8], PROMPT)
    assert written(long, PROMPT) == [by_generate(long)]
    assert alone != written(short, PROMPT[:8])
