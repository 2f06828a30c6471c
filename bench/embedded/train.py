"""Train the embedded pair: a byte-level BPE, a target and a draft distilled from it, all from the standard library.

The corpus is the text every Python installation has: the ``.py`` files of its own standard library, without tests and
optional parts.  About one file in twenty is held out of training; the prompts that ship with the pair are cut from
those.  The draft is trained on the target's distributions (forward Kullback-Leibler divergence), first over the
corpus, then over text the target sampled itself, because that is the text a draft meets.

    python -m specgauge.bench.embedded.train OUT_DIR [--target-steps N] [--draft-steps N]

writes OUT_DIR/target, OUT_DIR/draft, OUT_DIR/prompts.jsonl and OUT_DIR/training.json (what was trained, on how much
text, and the losses on held-out files).  Shapes: B batch, S sequence, V vocabulary.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
MAX_POSITIONS = 1024
OPTIONAL_PARTS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "ensurepip", "turtledemo"}
PROMPTS = 32
PROMPT_TOKENS = 96
SEED = 20260101


def corpus_files() -> tuple[list[Path], list[Path]]:
    """The standard library's source files: (training, held out), chosen by a hash of each file's relative path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    training: list[Path] = []
    held_out: list[Path] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if OPTIONAL_PARTS & set(relative.parts) or path.stat().st_size < 200:
            continue
        digest = hashlib.sha256(relative.as_posix().encode()).digest()
        (held_out if digest[0] < 13 else training).append(path)
    return training, held_out


def read_texts(paths: list[Path]) -> list[str]:
    """The files' text; undecodable bytes become replacement characters."""
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of VOCABULARY_SIZE entries, the end-of-text token among them as id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY_SIZE,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        bos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """All texts as one token stream (tokens,), an end-of-text token before each and at the end."""
    ids = [tokenizer.eos_token_id]
    for encoding in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False):
        ids.extend(encoding.ids)
        ids.append(tokenizer.eos_token_id)
    return torch.tensor(ids, dtype=torch.long)


def batches(stream: Tensor, batch_size: int, length: int, steps: int, seed: int) -> Iterator[Tensor]:
    """(B, S+1) windows of the stream at random offsets: every epoch cuts the text elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        while offsets.numel() < batch_size:
            shift = int(torch.randint(0, length, (1,), generator=generator))
            starts = torch.arange(shift, stream.numel() - length - 1, length)
            offsets = torch.cat([offsets, starts[torch.randperm(starts.numel(), generator=generator)]])
        now, offsets = offsets[:batch_size], offsets[batch_size:]
        yield torch.stack([stream[o : o + length + 1] for o in now.tolist()])


def new_model(tokenizer: PreTrainedTokenizerFast, *, layers: int, width: int, feed_forward: int) -> LlamaForCausalLM:
    """A randomly initialised Llama-style model with tied embeddings."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=width,
            intermediate_size=feed_forward,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 128,
            max_position_embeddings=MAX_POSITIONS,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            initializer_range=0.02,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def optimise(
    model: LlamaForCausalLM, inputs: Iterator[Tensor], steps: int, loss_of: Callable[[Tensor], Tensor], name: str
) -> None:
    """Muon on the matrices, AdamW on the rest; short warm-up, then a linear decay to a twentieth."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.05, adjust_lr_fn="original"),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    base = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    loss_of = torch.compile(loss_of)
    started = time.monotonic()
    for step, window in enumerate(inputs):
        factor = min(1.0, (step + 1) / 40) * min(1.0, max(0.05, (steps - step) / (0.5 * steps)))
        for optimizer, lr in zip(optimizers, base, strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(window)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == steps - 1:
            print(f"{name} step {step}/{steps} loss {loss.item():.3f} {time.monotonic() - started:.0f} s", flush=True)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: Tensor, length: int = 256) -> float:
    """Mean cross-entropy (nats per token) over consecutive windows of held-out text, as the weights are shipped."""
    total, count = 0.0, 0
    for start in range(0, stream.numel() - length - 1, length):
        window = stream[start : start + length + 1]
        logits = model(window[None, :-1], use_cache=False).logits[0].float()
        total += float(functional.cross_entropy(logits, window[1:], reduction="sum"))
        count += length
    return total / count


@torch.no_grad()
def sample_texts(model: LlamaForCausalLM, stream: Tensor, *, texts: int, length: int, seed: int) -> Tensor:
    """(texts, length) windows: a third training text, the rest sampled by the target at temperature 1."""
    prompt = length // 3
    torch.manual_seed(seed)
    prompts = next(batches(stream, texts, prompt, 1, seed))[:, :prompt]
    parts = []
    for chunk in prompts.split(64):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            parts.append(
                model.generate(
                    chunk, attention_mask=torch.ones_like(chunk), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                    max_new_tokens=length - prompt, min_new_tokens=length - prompt,
                )
            )  # fmt: skip
        print(f"sampled {sum(p.shape[0] for p in parts)}/{texts} texts", flush=True)
    return torch.cat(parts)


def write_prompts(tokenizer: PreTrainedTokenizerFast, held_out: list[Path], out: Path) -> None:
    """Cut prompts of PROMPT_TOKENS tokens from held-out files, at a third and at two thirds of each, PROMPTS in all."""
    root = Path(sysconfig.get_paths()["stdlib"])
    rows = []
    for path in held_out:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        for third in (1, 2):
            line = third * len(lines) // 3
            ids = tokenizer("".join(lines[line:]), add_special_tokens=False)["input_ids"]
            if len(ids) >= 2 * PROMPT_TOKENS:
                prompt = tokenizer.decode(ids[:PROMPT_TOKENS])
                rows.append({"prompt": prompt, "source": path.relative_to(root).as_posix(), "line": line + 1})
    keep = {round(index * (len(rows) - 1) / (PROMPTS - 1)) for index in range(min(PROMPTS, len(rows)))}
    with out.open("w", encoding="utf-8") as stream:
        for index in sorted(keep):
            stream.write(json.dumps(rows[index], ensure_ascii=False) + "\n")


def train_target(tokenizer: PreTrainedTokenizerFast, stream: Tensor, *, steps: int, out: Path) -> LlamaForCausalLM:
    """The target, trained on the next token and written to ``out`` as it ships."""
    target = new_model(tokenizer, layers=16, width=256, feed_forward=448)

    def next_token_loss(window: Tensor) -> Tensor:
        logits = target(window[:, :-1], use_cache=False).logits.float()
        return functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())

    optimise(target, batches(stream, 16, 256, steps, SEED), steps, next_token_loss, "target")
    target.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return target.float()  # type: ignore[no-any-return]


def train_draft(
    tokenizer: PreTrainedTokenizerFast, target: LlamaForCausalLM, stream: Tensor, *, steps: int, out: Path
) -> LlamaForCausalLM:
    """The draft, distilled from the target over the corpus and then over its own texts, written to ``out``."""
    draft = new_model(tokenizer, layers=2, width=256, feed_forward=640)
    draft.model.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight)

    def distillation(window: Tensor) -> Tensor:
        inputs = window[:, :-1]
        with torch.no_grad():
            target_log_probs = target(inputs, use_cache=False).logits.float().log_softmax(-1)  # (B, S, V)
        draft_log_probs = draft(inputs, use_cache=False).logits.float().log_softmax(-1)
        return functional.kl_div(draft_log_probs, target_log_probs, log_target=True, reduction="none").sum(-1).mean()

    own = sample_texts(target, stream, texts=1024, length=257, seed=SEED + 1)
    first = steps // 2

    def mixture() -> Iterator[Tensor]:
        yield from batches(stream, 16, 256, first, SEED + 2)
        generator = torch.Generator().manual_seed(SEED + 3)
        for _ in range(steps - first):
            yield own[torch.randint(0, own.shape[0], (16,), generator=generator)]

    optimise(draft, mixture(), steps, distillation, "draft")
    draft.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    return draft.float().eval()  # type: ignore[no-any-return]


def main(argv: list[str] | None = None) -> None:
    """Train both models and write them, the prompts and the record of the training."""
    parser = argparse.ArgumentParser(description="Train the embedded target and draft from the standard library.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--target-steps", type=int, default=800)
    parser.add_argument("--draft-steps", type=int, default=800)
    parser.add_argument("--reuse-target", action="store_true", help="keep OUT_DIR/target, train the draft again")
    options = parser.parse_args(argv)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)

    training, held_out = corpus_files()
    texts = read_texts(training)
    tokenizer = train_tokenizer(texts)
    stream, held_out_stream = encode(tokenizer, texts), encode(tokenizer, read_texts(held_out))
    print(f"training: {len(training)} files, {stream.numel()} tokens")
    print(f"held out: {len(held_out)} files, {held_out_stream.numel()} tokens")
    write_prompts(tokenizer, held_out, out / "prompts.jsonl")

    if options.reuse_target:
        target = LlamaForCausalLM.from_pretrained(out / "target", dtype=torch.float32)
    else:
        target = train_target(tokenizer, stream, steps=options.target_steps, out=out / "target")
    target.eval().requires_grad_(False)
    target_loss = held_out_loss(target, held_out_stream)
    print(f"target held-out loss {target_loss:.3f}", flush=True)
    draft = train_draft(tokenizer, target, stream, steps=options.draft_steps, out=out / "draft")
    draft_loss = held_out_loss(draft, held_out_stream)
    record = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "training_files": len(training),
        "training_tokens": stream.numel(),
        "held_out_files": len(held_out),
        "held_out_tokens": held_out_stream.numel(),
        "target_parameters": sum(p.numel() for p in target.parameters()),
        "draft_parameters": sum(p.numel() for p in draft.parameters()),
        "target_steps": options.target_steps,
        "draft_steps": options.draft_steps,
        "target_held_out_nats": round(target_loss, 4),
        "draft_held_out_nats": round(draft_loss, 4),
        "perplexity_ratio": round(math.exp(draft_loss - target_loss), 4),
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
