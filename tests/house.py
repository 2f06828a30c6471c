"""Reads the project's own source for test_house: which file imports what, and where."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("bench", "configs", "model", "reports", "sweeps")
FRONT_DOOR = ROOT / "src" / "specgauge"


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module: its dotted name, the line, and whether it runs as soon as the file is imported."""

    module: str
    line: int
    at_import: bool


def product_files() -> list[Path]:
    """Every module of the product, the front door included."""
    own = [*FRONT_DOOR.glob("*.py"), *(FRONT_DOOR / "api").rglob("*.py"), *(FRONT_DOOR / "cli").rglob("*.py")]
    return sorted([path for name in FOLDERS for path in (ROOT / name).rglob("*.py")] + own)


def python_files() -> list[Path]:
    """The product's modules and the tests'."""
    return product_files() + sorted((ROOT / "tests").rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Every import of a file; those for type checkers and those within functions do not run at import."""
    late = {
        id(inner)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return tuple(
        Import(module=module, line=node.lineno, at_import=id(node) not in late)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in _modules_of(node)
    )


def _modules_of(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """``from specgauge.sweeps import plan`` imports specgauge.sweeps.plan; a name that is no module stays its home."""
    for name in node.names:
        if isinstance(node, ast.Import):
            yield name.name
        else:
            base = "." * node.level + (node.module or "")
            yield f"{base}.{name.name}" if _is_own_module(f"{base}.{name.name}") else base


@cache
def _is_own_module(name: str) -> bool:
    package, *parts = name.split(".")
    if package != "specgauge" or not parts:
        return False
    bases = [FRONT_DOOR.joinpath(*parts)] if parts[0] not in FOLDERS else [ROOT.joinpath(*parts)]
    return any(base.with_suffix(".py").is_file() or (base / "__init__.py").is_file() for base in bases)


def module_of(path: Path) -> str:
    """The dotted name of one of the product's modules; a package's is that of its __init__."""
    base = FRONT_DOOR if path.is_relative_to(FRONT_DOOR) else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(["specgauge", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def import_circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules that import one another in turn, the first again at the end; empty where there is no such circle."""
    own = {module: found & imports.keys() - {module} for module, found in imports.items()}
    try:
        TopologicalSorter(own).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def tracked_files() -> list[str]:
    """What git tracks, as paths from the root; empty where this is no checkout."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return []
    listed = subprocess.run([git, "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]
