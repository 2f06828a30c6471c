"""specgauge: does speculative decoding pay for this pair, on this machine, and with which gamma?

Importing this package is cheap: each name below is loaded when it is first used.

    import specgauge as sg
    run = sg.open("runs/quickstart")
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.version import __version__ as __version__

if TYPE_CHECKING:
    from specgauge.api.runs import Run as Run
    from specgauge.api.runs import compare as compare
    from specgauge.api.runs import open as open
    from specgauge.api.runs import run as run
    from specgauge.configs.errors import ConfigError as ConfigError
    from specgauge.configs.loader import config_hash as config_hash
    from specgauge.configs.loader import config_to_yaml as config_to_yaml
    from specgauge.configs.loader import load_config as load_config
    from specgauge.configs.loader import shipped_configs as shipped_configs
    from specgauge.configs.schema import Config as Config
    from specgauge.model.acceptance.renewal import renewal as renewal
    from specgauge.model.exact import position_distribution as position_distribution
    from specgauge.model.sampling import SamplingSettings as SamplingSettings
    from specgauge.model.sampling import processed_probs as processed_probs
    from specgauge.model.speedup import accepted_draft_tokens as accepted_draft_tokens
    from specgauge.model.speedup import best_gamma as best_gamma
    from specgauge.model.speedup import recommended_gamma as recommended_gamma
    from specgauge.model.speedup import round_time_s as round_time_s
    from specgauge.model.speedup import speedup as speedup
    from specgauge.model.speedup import survival_iid as survival_iid
    from specgauge.model.speedup import tokens_per_round as tokens_per_round
    from specgauge.model.speedup import tokens_per_round_iid as tokens_per_round_iid
    from specgauge.reports.html import write_report as write_report

_FOLDERS = ("bench", "configs", "model", "reports", "sweeps")
_NAMES = {
    "api.runs": ("Run", "compare", "open", "run"),
    "configs.errors": ("ConfigError",),
    "configs.loader": ("config_hash", "config_to_yaml", "load_config", "shipped_configs"),
    "configs.schema": ("Config",),
    "model.acceptance.renewal": ("renewal",),
    "model.exact": ("position_distribution",),
    "model.sampling": ("SamplingSettings", "processed_probs"),
    "model.speedup": (
        *("accepted_draft_tokens", "best_gamma", "recommended_gamma", "round_time_s", "speedup", "survival_iid"),
        *("tokens_per_round", "tokens_per_round_iid"),
    ),
    "reports.html": ("write_report",),
}
_HOMES = {name: f"specgauge.{module}" for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    """The public name, imported from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)


def _check_links() -> None:
    """Refuse a checkout whose links are text files, before anything fails in a way that tells less."""
    here = Path(__file__).parent
    broken = [name for name in _FOLDERS if not (here / name).is_dir()]
    if broken:
        raise ImportError(
            f"{here / broken[0]} is not a folder: this checkout was made without symbolic links; make it again with "
            f"`git clone -c core.symlinks=true` (on Windows with developer mode on), or install a wheel"
        )


_check_links()
