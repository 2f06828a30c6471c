"""Finds configurations: the YAML files that ship with specgauge, by name, and a person's own, by path."""

from __future__ import annotations

from pathlib import Path

from specgauge.configs.faults import ConfigError, nearest

LARGEST_FILE_BYTES = 1 << 20
_FOLDER = Path(__file__).parent


def shipped_configs() -> list[str]:
    """Names of the configurations that ship with specgauge, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def shipped_text(name: str) -> str:
    """The YAML text of a shipped configuration, comments included; ConfigError where there is none of that name."""
    if name not in shipped_configs():
        raise ConfigError(f"no shipped config {name!r}{_suggestion(name)} shipped: {', '.join(shipped_configs())}")
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def read_config_text(source: str | Path) -> tuple[str, str, Path]:
    """(text, label for errors, folder that relative paths start from) of a path or shipped name.

    A file of that name comes first, then a shipped configuration.  Raises ConfigError where there is neither, for a
    directory, for a file over LARGEST_FILE_BYTES, and for text that is not UTF-8.
    """
    path = Path(source).expanduser()
    if path.is_dir() or not path.exists():
        if str(source) in shipped_configs():
            return shipped_text(str(source)), f"{source}.yaml", _FOLDER
        raise ConfigError(_not_a_file(source, path))
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise ConfigError(f"{source}: found a file of over {LARGEST_FILE_BYTES >> 20} MiB, allowed: a YAML config")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: found bytes that are not UTF-8, allowed: a UTF-8 text file") from error
    return text, str(source), path.parent


def _not_a_file(source: str | Path, path: Path) -> str:
    shipped = ", ".join(shipped_configs())
    allowed = f"allowed: the path of a YAML file, or a shipped name: {shipped}"
    if path.is_dir():
        inside = path / "config.yaml"
        guess = str(inside) if inside.is_file() else None
        return f"{source}: found a directory{_did_you_mean(guess)} {allowed}"
    return f"{source}: no such file{_suggestion(str(source), beside=path)} {allowed}"


def _suggestion(name: str, beside: Path | None = None) -> str:
    """``; did you mean 'quickstart'?``, from the shipped names and from YAML files in the folder that was named."""
    guess = nearest(Path(name).stem, shipped_configs())
    if beside is not None and beside.parent.is_dir():
        files = {path.name: str(path) for path in beside.parent.glob("*.y*ml")}
        close = nearest(beside.name, files)
        guess = files[close] if close is not None else guess
    return _did_you_mean(guess)


def _did_you_mean(guess: str | None) -> str:
    return f"; did you mean {guess!r}?" if guess else ","
