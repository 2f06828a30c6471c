"""Load a draft/target pair: hub id, local directory, GGUF file, or the pair that ships with specgauge; set its mode.

Everything that would make a measurement meaningless is refused here, in one line, before anything is timed: models that
cannot roll back, tokenizers that map the same id to different tokens, a model that does not exist or is corrupt.

    eager        as torch runs it, over views as narrow as the context
    compile      torch.compile, one graph for every (batch size, new tokens, bucket), no dynamic shapes
    cuda_graph   a captured and replayed CUDA graph for each of them

A mode covers the draft's forward, the target's and the verification.  Prompts are prefilled eagerly in all of them,
since their lengths are too many to compile a graph for each, and so are texts that are teacher-forced.

    pair = pair_in_mode(load_pair(config.pairs[0]), "compile")
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn import Module, ModuleList
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.peft_utils import find_adapter_config_file

from specgauge.bench.cache.adapter import ATTENTION_NAMES, refuse_cache_that_cannot_roll_back
from specgauge.bench.cache.cache import RowCache, new_cache
from specgauge.bench.cpu_type import take_fast_dtype
from specgauge.bench.device import distinct_devices
from specgauge.bench.models import quantized
from specgauge.bench.models.agreement import check_static_forward, take_over_attention
from specgauge.bench.models.files import adapter_fault, name_fault
from specgauge.bench.models.generation import end_tokens
from specgauge.bench.models.gguf_files import gguf_settings
from specgauge.bench.models.load_errors import (
    check_config_file,
    check_tokenizer,
    check_vocabularies,
    quantization_options,
    quiet_loading,
    read_fault,
    refuse_incomplete_weights,
    refused,
)
from specgauge.bench.models.placement import (
    check_device_map,
    choose_device,
    device_map_of,
    devices_of,
    layout,
    refuse_mode,
    refuse_offloaded,
)
from specgauge.bench.models.rope import fix_rotary_factors
from specgauge.bench.models.static_graphs import StaticForward
from specgauge.bench.models.weights import how_it_lies, keep_settings, was_quantized, weight_notes
from specgauge.bench.notes import Note
from specgauge.bench.ranks import LOAD, Ranks, current_ranks, follow_model, in_step, shard_fault, sharding_options
from specgauge.configs.fields import Mode
from specgauge.configs.pairs import LayersDraft, ModelConfig, NgramConfig, NgramDraft, PairConfig
from specgauge.configs.reading import expanded
from specgauge.model.context import context_limit

EMBEDDED = Path(__file__).parent.parent / "embedded"


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to be measured."""

    name: str
    """Who it is in messages, e.g. ``pair 'qwen' target``."""
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    """Where its inputs go (the first device, when the model is spread over several)."""
    max_context: int | None
    """Positions it takes; None where its configuration does not say."""
    eos_token_ids: tuple[int, ...]
    notes: tuple[Note, ...] = ()
    """What was met while it was loaded."""
    ranks: int = 1
    """Processes that hold a shard of it each."""
    mode: Mode = "eager"
    """How forwards on caches of `new_cache` run."""
    static: StaticForward | None = field(init=False, repr=False, compare=False)
    """What runs them; None where they are eager."""

    def __post_init__(self) -> None:
        """Another mode, or another model under it, has its own compiled or captured forwards."""
        static = None
        if self.mode != "eager":
            static = StaticForward(self.model, self.mode, name=self.name, device=self.device)
        object.__setattr__(self, "static", static)

    def new_cache(self, *, batch_size: int, tokens: int) -> RowCache:
        """An empty cache for ``batch_size`` rows of up to ``tokens`` tokens each; forwards on it run in this mode."""
        if self.static is not None:
            return self.static.new_cache(batch_size=batch_size, tokens=tokens)
        return new_cache(self.model, batch_size=batch_size, tokens=tokens)

    def compile(self, *, batch_size: int, tokens: int, new_tokens: Iterable[int], keep: int = 0) -> None:
        """Compile or capture the forwards of so many new tokens on caches of ``tokens`` tokens; nothing where eager."""
        if self.static is not None:
            self.static.compile(batch_size=batch_size, tokens=tokens, new_tokens=new_tokens, keep=keep)

    def release(self) -> None:
        """Give up buffers, and graphs on them, that wait for the next cache of their size."""
        if self.static is not None:
            self.static.release()

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Every device that computes it, that of its inputs first."""
        return devices_of(self.model, self.device)

    @cached_property
    def placement(self) -> str:
        """How it lies in words, such as `float32 on cpu`, and how quantised weights do."""
        where = layout(self.model, self.device, self.ranks)
        quantised = how_it_lies(self.model)
        return where if quantised is None else f"{where} ({quantised})"

    @cached_property
    def vocabulary_rows(self) -> int:
        """Rows of the embedding: ids below this can be fed."""
        embedding = self.model.get_input_embeddings()
        assert isinstance(embedding, torch.nn.Module)
        return int(cast(torch.Tensor, embedding.weight).shape[0])


@dataclass(frozen=True, kw_only=True)
class LoadedPair:
    """Target and draft of one pair, loaded, with compatible tokenizers."""

    name: str
    target: LoadedModel
    draft: LoadedModel | None
    """The draft model, or the target's first layers with every weight shared; None where lookups draft."""
    ngram: NgramConfig | None = None
    """How lookups match, where they draft."""

    def __post_init__(self) -> None:
        """A pair has one kind of draft."""
        assert (self.draft is None) != (self.ngram is None), "a draft model or lookups"

    @property
    def draft_model(self) -> LoadedModel:
        """The draft of a pair in which a model drafts."""
        assert self.draft is not None, f"pair {self.name!r}: lookups draft, no model does"
        return self.draft

    @property
    def drafts_with_model(self) -> bool:
        """Whether a model drafts; lookups need none."""
        return self.draft is not None

    @property
    def transfers(self) -> bool:
        """Whether a draft model's tokens go to another device."""
        return self.draft is not None and len(distinct_devices([self.target.device, self.draft.device])) > 1

    @property
    def models(self) -> tuple[LoadedModel, ...]:
        """The target, and the draft where it is a model."""
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was met while its models were loaded; what is the same for both, once."""
        found: list[Note] = []
        of_target = {note.message.removeprefix(self.target.name): note for note in self.target.notes}
        of_draft = {} if self.draft is None else {n.message.removeprefix(self.draft.name): n for n in self.draft.notes}
        for said, note in of_target.items():
            message = f"{self.target.name} and draft{said}" if said in of_draft else note.message
            found.append(replace(note, message=message))
        return (*found, *(note for said, note in of_draft.items() if said not in of_target))

    @property
    def placement(self) -> str:
        """How its models lie, in words: `float32 on cpu`, or by model where they differ."""
        found = [model.placement for model in self.models]
        return found[0] if len(set(found)) == 1 else f"target {found[0]}, draft {found[-1]}"

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Where its models are, each device once, the target's first."""
        return distinct_devices(device for model in self.models for device in model.devices)

    @property
    def max_context(self) -> int | None:
        """The smaller of the two context limits, where known."""
        limits = [m.max_context for m in self.models if m.max_context is not None]
        return min(limits) if limits else None

    def release(self) -> None:
        """Give up what no cache uses; see `LoadedModel.release`."""
        for model in self.models:
            model.release()


def _source(spec: ModelConfig, role: str, name: str) -> str:
    """The path or hub id to load from, which must be there where it is a path."""
    if spec.model == "embedded":
        folder = EMBEDDED / role
        if not (folder / "config.json").exists():
            raise ValueError(
                f"{name}: the embedded weights are missing from this installation ({folder}); reinstall specgauge"
            )
        return str(folder)
    path = expanded(spec.model)
    if path.exists():
        if path.is_file():
            raise ValueError(
                f"{name}: '{spec.model}' is a file, not a model directory; for GGUF name its folder, set gguf_file"
            )
        if spec.gguf_file is not None and not (path / spec.gguf_file).exists():
            found = sorted(p.name for p in path.glob("*.gguf"))
            raise ValueError(
                f"{name}: no '{spec.gguf_file}' in '{spec.model}'; set gguf_file to one that is there: "
                f"{', '.join(found) or 'found no .gguf file'}"
            )
        if spec.gguf_file is None:
            if (fault := adapter_fault(path)) is not None:
                raise ValueError(f"{name}: {fault}")
            if not (path / "config.json").exists():
                raise ValueError(
                    f"{name}: '{spec.model}' is not a model directory: it has no config.json; name the directory that "
                    "has it, or set gguf_file"
                )
            check_config_file(path / "config.json", name)
        return str(path)
    if (fault := name_fault(spec.model)) is not None:
        raise ValueError(f"{name}: {fault}")
    return spec.model


def load_model(
    spec: ModelConfig, *, role: str, name: str, reach: int | None = None, cpu_dtype: str | None = None
) -> LoadedModel:
    """Load one model and its tokenizer as ``spec`` says; ``role`` is ``target`` or ``draft``.

    ``reach`` is the largest number of tokens in a row of the run, by which rotary factors that switch are chosen: those
    of short texts where it is None.  ``cpu_dtype`` is what is fast on the CPU (`specgauge.bench.cpu_type`), which
    `dtype: auto` takes there; None takes the type that is stored.  What shows from the configuration alone is refused
    before any weight is read.

    Raises:
        ValueError: it is missing, corrupt, unsupported, or cannot roll back.
    """
    ranks = None if spec.parallel is None else current_ranks()
    if spec.parallel is not None and ranks is None:
        raise ValueError(f"{name}: parallel: its ranks are started by `specgauge run` alone; leave parallel out here")
    source = _source(spec, role, name)
    if ranks is not None and ranks.is_leader:
        ranks.tell(LOAD)
        own = {"spec": spec, "role": role, "name": name, "reach": reach, "cpu_dtype": cpu_dtype}
        ranks.share({**own, "threads": torch.get_num_threads()})
    with nullcontext() if ranks is None else in_step():
        return _load(source, spec, name, reach, cpu_dtype, ranks)


def _load(
    source: str, spec: ModelConfig, name: str, reach: int | None, cpu_dtype: str | None, ranks: Ranks | None
) -> LoadedModel:
    """What `load_model` does where the model is there, on every rank of those that share it."""
    attention = ATTENTION_NAMES[spec.attention or "sdpa"]
    if spec.device_map is not None:
        check_device_map(spec.device_map, name)
    is_placed_whole = spec.device_map is None and ranks is None
    device = choose_device(spec.device, name) if is_placed_whole else None
    with quiet_loading():
        tokenizer, model = _read(source, spec, device, name, ranks)
        refuse_offloaded(device_map_of(model), name)
        refuse_cache_that_cannot_roll_back(model.config, name, model)
        switch = fix_rotary_factors(model, reach)
        model.eval()  # parameters stay as loaded: frozen ones make torch's bfloat16 linear 40 × slower on slices (CPU)
        placed = model.device if device is None else device
        kept_notes: list[Note] = []
        if spec.dtype == "auto" and placed.type == "cpu" and cpu_dtype is not None and not was_quantized(model):
            kept_notes = list(take_fast_dtype(model, cpu_dtype, name))
        stray_window = take_over_attention(model, attention, placed, name)
    if ranks is not None and ranks.is_leader:
        follow_model(model, ranks)
    limit = context_limit(model.config.get_text_config().to_dict(), reach)
    ends, end_notes = end_tokens(model, tokenizer, name)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        device=placed,
        max_context=limit,
        ranks=1 if ranks is None else ranks.count,
        eos_token_ids=ends,
        notes=(*_notes(model, name, stray=stray_window, switch=switch, limit=limit), *end_notes, *kept_notes),
    )


def _notes(
    model: PreTrainedModel, name: str, *, stray: int | None, switch: int | None, limit: int | None
) -> Iterator[Note]:
    """What a reader must know: an adapter, a window that is not applied, rotary factors fixed past a switch."""
    for adapter in (getattr(model, "peft_config", None) or {}).values():
        yield Note(
            code="adapter_used",
            message=f"{name}: measured with the adapter beside its weights, of {adapter.base_model_name_or_path}",
            remedy="merge it (peft's merge_and_unload) to measure the model as it will be served",
        )
    yield from weight_notes(model, name)
    if stray is not None:
        yield Note(
            code="stray_window",
            message=f"{name}: config.json names a sliding window of {stray} tokens, which {type(model).__name__} does "
            "not apply; none is applied here",
            remedy="take sliding_window out of config.json: transformers' generate shortens its cache by it",
        )
    if switch is not None and limit is not None and limit > switch:
        yield Note(
            code="rope_switch",
            message=f"{name}: its rotary factors switch with the longest text of a batch, past {switch} tokens; all "
            "texts were computed under the long factors, shorter ones too, as engines do that fix the context's length",
            remedy=f"for texts that stay shorter, keep contexts and what is written within {switch} tokens",
        )


def _read(
    source: str, spec: ModelConfig, device: torch.device | None, name: str, ranks: Ranks | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and model of a directory or hub id, on ``device`` or spread as the spec's device map says."""
    if spec.gguf_file is not None and (fault := quantized.missing("gguf", f"'{spec.gguf_file}' is a GGUF file")):
        raise ValueError(f"{name}: {fault}")
    given = {"revision": spec.revision, "gguf_file": spec.gguf_file}
    common: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
    common |= {option: value for option, value in given.items() if value is not None}
    with refused(lambda error: f"{name}: {read_fault('configuration', spec, error)}"):
        config = AutoConfig.from_pretrained(source, **common)
    refuse_cache_that_cannot_roll_back(config, name)
    adapter = None if spec.gguf_file is not None else find_adapter_config_file(source, revision=spec.revision)
    if ranks is not None and (fault := shard_fault(config, ranks.count)) is not None:
        raise ValueError(f"{name}: parallel.tensor: {fault}")
    if adapter is not None and (fault := adapter_fault(Path(adapter).parent)) is not None:
        raise ValueError(f"{name}: {fault}")
    with refused(lambda error: f"{name}: {read_fault('tokenizer', spec, error)}"):
        tokenizer = AutoTokenizer.from_pretrained(source, **common)
    check_tokenizer(tokenizer, spec, name)
    options: dict[str, Any] = {"dtype": spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype)}
    stored = getattr(config, "quantization_config", None)
    is_on_cpu = device is not None and device.type == "cpu"
    if (fault := quantized.fault(spec.quantization, stored, model=spec.model, is_on_cpu=is_on_cpu)) is not None:
        raise ValueError(f"{name}: {fault}")
    if spec.quantization is not None:
        options["quantization_config"] = quantization_options(spec.quantization, name)
    is_quantized = spec.quantization is not None or stored is not None
    if spec.device_map is not None:
        options["device_map"] = spec.device_map
    elif is_quantized and ranks is None:  # quantized weights cannot all be moved once they are loaded
        options["device_map"] = {"": str(device)}
    if ranks is not None:
        options |= sharding_options(ranks.count)
    with refused(lambda error: f"{name}: {read_fault('weights', spec, error)}"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, **common, **options, output_loading_info=True, ignore_mismatched_sizes=True
        )
        model, info = loaded
        if "device_map" not in options and ranks is None:
            model = model.to(device)
    refuse_incomplete_weights(info, model, spec, name)
    if spec.gguf_file is not None:
        stored = gguf_settings(Path(source) / spec.gguf_file)
    keep_settings(model, stored or options.get("quantization_config"))
    return tokenizer, model


def first_layers(target: LoadedModel, layers: int) -> LoadedModel:
    """The target cut after its first layers, then its final norm and head, every weight shared: a draft of its own.

    Raises:
        ValueError: a number of layers outside 1 … all but one, a model whose layers are not one list, or one spread
            over devices by hooks, which would run all of it.
    """
    every = int(target.model.config.get_text_config().num_hidden_layers)
    if not 1 <= layers < every:
        raise ValueError(f"{target.name}: draft layers: expected 1 to {every - 1} of its {every}, got {layers}")
    paths = [
        name for name, module in target.model.named_modules() if isinstance(module, ModuleList) and len(module) == every
    ]
    if len(paths) != 1:
        raise ValueError(
            f"{target.name}: expected one list of {every} layers in {type(target.model).__name__}, got {len(paths)}; "
            "its first layers cannot serve as a draft, name a draft model"
        )
    view: Module = _view(target, target.model, paths[0].split("."), layers)
    name = f"{target.name} (first {layers} layers)"
    return replace(target, name=name, model=cast(PreTrainedModel, view), notes=())


def _view(target: LoadedModel, module: Module, path: list[str], layers: int) -> Module:
    """A module that shares everything with the given one, but whose list of layers at ``path`` is cut."""
    if not path:
        return ModuleList(list(cast(ModuleList, module))[:layers])
    if "forward" in vars(module):
        raise ValueError(
            f"{target.name}: it is spread over devices by hooks; its first layers cannot serve as a draft, "
            "put it on one device or name a draft model"
        )
    view = copy.copy(module)
    view._modules = dict(module._modules)
    view._modules[path[0]] = _view(target, cast(Module, module._modules[path[0]]), path[1:], layers)
    if hasattr(module, "config"):
        vars(view)["config"] = _cut_config(module.config, layers)
    return view


def _cut_config(config: Any, layers: int) -> Any:
    """A copy of a configuration that says how many layers are left, and of which kind."""
    cut = copy.deepcopy(config)
    text = cut.get_text_config()
    kinds = getattr(text, "layer_types", None)
    text.num_hidden_layers = layers
    if kinds is not None:
        text.layer_types = list(kinds[:layers])
    return cut


def load_pair(
    pair: PairConfig,
    reach: int | None = None,
    *,
    cpu_dtype: str | None = None,
    progress: Callable[[], object] | None = None,
) -> LoadedPair:
    """Load what a pair consists of: lookups load the target alone, first layers are the target's own.

    ``reach`` and ``cpu_dtype`` are as in `load_model`; ``progress`` is told when each model is there.

    Raises:
        ValueError: as `load_model`, and where target and draft do not belong together.
    """
    options: dict[str, Any] = {"reach": reach, "cpu_dtype": cpu_dtype}
    target = load_model(pair.target, role="target", name=f"pair '{pair.name}' target", **options)
    if progress is not None:
        progress()
    if isinstance(pair.draft, NgramDraft):
        return LoadedPair(name=pair.name, target=target, draft=None, ngram=pair.draft.ngram)
    if isinstance(pair.draft, LayersDraft):
        return LoadedPair(name=pair.name, target=target, draft=first_layers(target, pair.draft.layers))
    draft = load_model(pair.draft, role="draft", name=f"pair '{pair.name}' draft", **options)
    if progress is not None:
        progress()
    check_vocabularies(target.tokenizer, draft.tokenizer, pair.name)
    return LoadedPair(name=pair.name, target=target, draft=draft)


def in_mode(loaded: LoadedModel, mode: Mode) -> LoadedModel:
    """The same model, its forwards in ``mode``; weights are shared.

    Whether it compiles, or can be captured, shows at its first forward.

    Raises:
        ValueError: as `refuse_mode`, and for a model that computes other logits over static shapes.
    """
    refuse_mode(mode, loaded.device, loaded.name, spread=len(loaded.devices) > 1)
    if loaded.mode == mode:
        return loaded
    found = replace(loaded, mode=mode)
    if found.static is not None:
        check_static_forward(found.static)
    return found


def pair_in_mode(pair: LoadedPair, mode: Mode) -> LoadedPair:
    """The same pair, the forwards of its models in ``mode``; raises as `in_mode`."""
    target, draft = in_mode(pair.target, mode), None if pair.draft is None else in_mode(pair.draft, mode)
    return replace(pair, target=target, draft=draft)


def refuse_mode_of(pair: PairConfig, mode: Mode) -> None:
    """`refuse_mode`, before anything is loaded, for the devices that the models of a pair would be on."""
    for role, spec in (("target", pair.target), ("draft", pair.draft)):
        if isinstance(spec, ModelConfig) and spec.device_map is None:
            name = f"pair '{pair.name}' {role}"
            refuse_mode(mode, choose_device(spec.device, name), name)
