"""specgauge: does speculative decoding pay for this pair, on this machine, and with which gamma?

Importing this package is cheap: each name below is loaded when it is first used.

    import specgauge
    config = specgauge.load_config("quickstart")
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"

_FOLDERS = ("bench", "configs", "model", "reports", "sweeps")
_HOMES = {
    "Config": "specgauge.configs.schema",
    "ConfigError": "specgauge.configs.faults",
    "config_hash": "specgauge.configs.loader",
    "config_to_yaml": "specgauge.configs.loader",
    "load_config": "specgauge.configs.loader",
    "shipped_configs": "specgauge.configs.loader",
}

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
    return sorted({*globals(), *__all__})


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
