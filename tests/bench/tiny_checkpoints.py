"""Tiny tokenizers and checkpoints on disk, as `save_pretrained` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ("<unk>", "</s>", "<s>", *(f"w{number}" for number in range(97)))
"""A vocabulary of 100 words; w0 is id 3."""
SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}


def word_tokenizer(words: Sequence[str] = WORDS, *, template: str | None = None, begins: bool = False) -> Any:
    """A tokenizer that splits at spaces; ``begins`` puts <s> before every text, as Llama's does."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", list(words).index("<s>"))]
        )
    named = (("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>"))
    special = {name: token for name, token in named if token in words}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    wrapped.chat_template = template
    return wrapped


def llama(rows: int = len(WORDS), *, seed: int = 0, **settings: Any) -> Any:
    """A random Llama in float32."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=rows, initializer_range=0.2, **{**SHAPE, **settings}))


def save(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Both, in one directory."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
