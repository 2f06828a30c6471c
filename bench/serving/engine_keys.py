"""The settings of engines' speculation that are known here by name: a key that is nearly one of them may be misspelt.

    misspelt("vllm", ["num_speculative_token"])      # {"num_speculative_token": "num_speculative_tokens"}

Engines change: a key that is like none of them is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from specgauge.configs.errors import nearest

KNOWN: dict[str, tuple[str, ...]] = {
    "vllm": (
        *("method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"),
        *("draft_tensor_parallel_size", "tensor_parallel_size", "quantization", "moe_backend", "attention_backend"),
        *("kv_cache_dtype", "max_model_len", "revision", "code_revision", "enforce_eager", "draft_load_config"),
        *("prompt_lookup_max", "prompt_lookup_min", "parallel_drafting", "index_share_for_mtp_iteration"),
        *("disable_padded_drafter_batch", "disable_eagle_block_drop", "use_local_argmax_reduction"),
        *("use_heterogeneous_vocab", "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"),
        *("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "rejection_sample_method"),
        *("synthetic_acceptance_rates", "synthetic_acceptance_length", "enable_adaptive_verification"),
        *("draft_sample_method", "dspark_draft_topk"),
    ),
    "sglang": (
        *("speculative-algorithm", "speculative-draft-model-path", "speculative-num-steps"),
        *("speculative-eagle-topk", "speculative-num-draft-tokens", "speculative-ngram-max-bfs-breadth"),
        *("speculative-adaptive", "speculative-adaptive-config", "speculative-dspark-sps-table-path"),
    ),
    "tensorrt_llm": (
        *("decoding_type", "speculative_model", "max_draft_len", "draft_len_schedule", "max_concurrency"),
        *("acceptance_rate_window_size", "acceptance_rate_threshold", "max_matching_ngram_size"),
        *("acceptance_window", "acceptance_length_threshold"),
    ),
    "llama_cpp": (
        *("spec-type", "spec-draft-model", "spec-draft-n-max", "spec-draft-n-min", "spec-draft-p-min"),
        *("spec-draft-sampling", "spec-ngram-simple-size-n", "spec-ngram-simple-size-m"),
        *("spec-synth-len", "spec-synth-rates"),
    ),
}
"""Keys of vLLM's --speculative-config (the fields of 0.32) and of TensorRT-LLM's speculative_config, with those of
earlier releases; options of SGLang and llama-server."""


def misspelt(kind: str, keys: Iterable[str]) -> dict[str, str]:
    """Keys that an engine is not known to have, each with the known one that it is nearly; - and _ are the same."""
    known = {name.replace("-", "_"): name for name in KNOWN.get(kind, ())}
    found = {}
    for key in keys:
        own = key.replace("-", "_")
        like = None if own in known else nearest(own, known)
        if like is not None:
            found[key] = known[like]
    return found
