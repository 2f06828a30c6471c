"""The target's own first layers as its draft: first N layers, then its final norm and head, sharing every weight.

    drafter = EarlyExitDrafter(target, settings, layers=8)

It speaks the target's vocabulary by construction, needs no memory but its cache, and costs about N / layers of a step.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, cast

from torch.nn import Module, ModuleList
from transformers import PreTrainedModel

from specgauge.bench.decoding.drafters import ModelDrafter
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.exact import DraftSampling
from specgauge.model.sampling import SamplingSettings


class EarlyExitDrafter(ModelDrafter):
    """A draft model made of the target's first layers, with a cache of its own."""

    def __init__(
        self,
        target: LoadedModel,
        settings: SamplingSettings,
        *,
        layers: int,
        draft_sampling: DraftSampling = "same",
        signals: bool = False,
        prefill_takes_first_token: bool = False,
    ) -> None:
        """Take the first ``layers`` layers; raises ValueError as `first_layers` does."""
        super().__init__(
            first_layers(target, layers),
            settings,
            draft_sampling=draft_sampling,
            signals=signals,
            prefill_takes_first_token=prefill_takes_first_token,
        )


def first_layers(target: LoadedModel, layers: int) -> LoadedModel:
    """The target cut after its first layers, every weight shared.

    Raises ValueError for a number of layers outside 1 … all but one, for a model whose layers are not one list, and for
    one spread over devices by hooks, which would run all of it.
    """
    every = int(target.model.config.get_text_config().num_hidden_layers)
    if not 1 <= layers < every:
        raise ValueError(f"{target.name}: draft layers: found {layers}; allowed is 1 to {every - 1} of its {every}")
    paths = [
        name for name, module in target.model.named_modules() if isinstance(module, ModuleList) and len(module) == every
    ]
    if len(paths) != 1:
        raise ValueError(
            f"{target.name}: found {len(paths)} lists of {every} layers in {type(target.model).__name__}; "
            "its first layers cannot serve as a draft, name a draft model"
        )
    view: Module = _view(target, target.model, paths[0].split("."), layers)
    return replace(target, name=f"{target.name} (first {layers} layers)", model=cast(PreTrainedModel, view))


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
