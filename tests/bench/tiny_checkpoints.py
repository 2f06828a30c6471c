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
    "initializer_range": 0.2,
}


def word_tokenizer(words: Sequence[str] = WORDS, *, template: Any = None, begins: bool = False) -> Any:
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
    return LlamaForCausalLM(LlamaConfig(vocab_size=rows, **{**SHAPE, **settings}))


def save(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Both, in one directory."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_gguf(path: Path, model: Any, words: Sequence[str]) -> None:
    """A GGUF file of a Llama in float32, as llama.cpp's converter writes it (query and key rows interleaved)."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(words))
    writer.add_token_scores([-float(number) for number in range(len(words))])
    writer.add_token_types([1] * len(words))
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_bos_token_id(config.bos_token_id)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        renamed = str(names.get_name(name, try_suffixes=(".weight",)))
        values = tensor.numpy()
        count = heads.get(renamed.split(".")[-2])
        if count is not None:
            values = values.reshape(count, 2, len(values) // count // 2, -1).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(renamed, values.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
