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
    own = [*FRONT_DOOR.glob("*.py"), *(FRONT_DOOR / "cli").rglob("*.py")]
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
    return tuple(_imports(tree_of(path), at_import=True))


def _imports(node: ast.AST, *, at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue  # an expression imports nothing
        if isinstance(child, ast.Import):
            for name in child.names:
                yield Import(module=name.name, line=child.lineno, at_import=at_import)
        elif isinstance(child, ast.ImportFrom):
            yield from _from_import(child, at_import=at_import)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(child, at_import=False)
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in child.body:
                yield from _imports(ast.Module(body=[statement], type_ignores=[]), at_import=False)
            for statement in child.orelse:
                yield from _imports(ast.Module(body=[statement], type_ignores=[]), at_import=at_import)
        else:
            yield from _imports(child, at_import=at_import)


def _from_import(node: ast.ImportFrom, *, at_import: bool) -> Iterator[Import]:
    """``from specgauge.sweeps import plan`` imports specgauge.sweeps.plan; a name that is no module stays its home."""
    base = "." * node.level + (node.module or "")
    for name in node.names:
        inner = f"{base}.{name.name}"
        yield Import(module=inner if _is_own_module(inner) else base, line=node.lineno, at_import=at_import)


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
