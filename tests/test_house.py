"""The rules of the house, read from the source: who imports whom, what stays out, what every file has."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import specgauge
from tests.conftest import check_snapshot
from tests.reports.synthetic import Shape, build_run

ROOT = Path(__file__).parent.parent
WITHOUT_TORCH = ("specgauge.bench.serving", "specgauge.bench.processor", "specgauge.bench.models.quantized")
FOLDERS = ("bench", "configs", "model", "reports", "sweeps")
FRONT_DOOR = ROOT / "src" / "specgauge"
EVERYWHERE = {"version", "exits"}
MAY_IMPORT = {
    "model": {"model"},
    "configs": {"configs"},
    "bench": {"bench", "model", "configs"},
    "sweeps": {"sweeps", "bench", "model", "configs"},
    "reports": {"reports", "model", "configs", "sweeps"},
}
ONLY_IN_BENCH = {"torch", "transformers", "tokenizers", "accelerate", "gguf"}
HEAVY = {"torch", "transformers", "pandas", "pyarrow", "scipy", "matplotlib", "pydantic", "numpy", "jinja2", "rich"}
LATE = {"pandas", "pyarrow", "scipy", "matplotlib"}
IMPURE = {
    *("argparse", "click", "typer", "rich", "jinja2", "matplotlib", "pandas", "pyarrow", "pydantic"),
    *("csv", "io", "json", "os", "pathlib", "pickle", "shutil", "subprocess", "sys", "tempfile", "tomllib"),
    *("xml", "yaml"),
}
IMPURE_CALLS = {"input", "open", "print", "savefig", "read_bytes", "read_text", "write_bytes", "write_text"}
LONGEST_FILE = 500

FRONT_FILES = [*FRONT_DOOR.glob("*.py"), *(FRONT_DOOR / "api").rglob("*.py"), *(FRONT_DOOR / "cli").rglob("*.py")]
FILES = sorted([path for name in FOLDERS for path in (ROOT / name).rglob("*.py")] + FRONT_FILES)
"""Every module of the product, the front door included."""
PYTHON_FILES = FILES + sorted((ROOT / "tests").rglob("*.py"))


class Import(NamedTuple):
    """One imported module: its dotted name, the line, and whether it runs as soon as the file is imported."""

    module: str
    line: int
    at_import: bool


@cache
def tree_of(path: Path) -> ast.Module:
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
            yield f"{base}.{name.name}" if f"{base}.{name.name}" in MODULES else base


def module_of(path: Path) -> str:
    """The dotted name of one of the product's modules; a package's is that of its __init__."""
    base = FRONT_DOOR if path.is_relative_to(FRONT_DOOR) else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(["specgauge", *(parts[:-1] if parts[-1] == "__init__" else parts)])


MODULES = {module_of(path): path for path in FILES}


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


def folder_of(path: Path) -> str | None:
    """The root folder a module belongs to; None for the front door."""
    first = path.relative_to(ROOT).parts[0]
    return first if first in FOLDERS else None


def package_of(found: Import) -> str:
    return found.module.split(".")[0]


def own_part(module: str) -> str | None:
    """``sweeps`` for specgauge.sweeps.plan; None for modules that are not the product's."""
    parts = module.split(".")
    return parts[1] if parts[0] == "specgauge" and len(parts) > 1 else None


def wrong_imports(folders: Collection[str | None], is_wrong: Callable[[Import], bool]) -> list[str]:
    """``file:line imports module`` of each wrong import in modules of these folders (None is the front door)."""
    return [
        f"{path.relative_to(ROOT)}:{found.line} imports {found.module}"
        for path in FILES
        if folder_of(path) in folders
        for found in imports_of(path)
        if is_wrong(found)
    ]


def test_no_import_circle() -> None:
    """Imports for type checkers and those within functions count: two files that need each other are one file."""
    assert import_circle({"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert not import_circle({"a": {"b", "elsewhere"}, "b": set()})
    assert not import_circle({name: {found.module for found in imports_of(path)} for name, path in MODULES.items()})


def test_the_model_calls_nothing_that_reads_or_writes() -> None:
    calls = [
        (path, node.lineno, name)
        for path in FILES
        if folder_of(path) == "model"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        for name in [getattr(node.func, "id", getattr(node.func, "attr", ""))]
    ]
    assert not [f"{path.relative_to(ROOT)}:{line} calls {name}" for path, line, name in calls if name in IMPURE_CALLS]


@cache
def reaches_bench(module: str) -> bool:
    """Whether a module of sweeps imports bench anywhere, or a module of sweeps that does."""
    found = {found.module for found in imports_of(MODULES[module])} - {module}
    return any(own_part(name) == "bench" or (own_part(name) == "sweeps" and reaches_bench(name)) for name in found)


def goes_beyond(allowed: Collection[str]) -> Callable[[Import], bool]:
    return lambda one: own_part(one.module) not in {None, *allowed, *EVERYWHERE}


WRONG_IMPORTS: dict[str, tuple[Collection[str | None], Callable[[Import], bool]]] = {
    **{f"the arrows of {folder}": ([folder], goes_beyond(allowed)) for folder, allowed in MAY_IMPORT.items()},
    "the model parses, reads, prints and draws nothing": (["model"], lambda one: package_of(one) in IMPURE),
    "imports are absolute and go through the package": (
        [*FOLDERS, None],
        lambda one: one.module.startswith(".") or package_of(one) in FOLDERS,
    ),
    "only bench imports torch": ([*(set(FOLDERS) - {"bench"}), None], lambda one: package_of(one) in ONLY_IN_BENCH),
    "sweeps import bench late, but for what has no torch": (
        ["sweeps"],
        lambda one: own_part(one.module) == "bench" and one.at_import and not one.module.startswith(WITHOUT_TORCH),
    ),
    "reports use the part of sweeps that reads": (
        ["reports"],
        lambda one: own_part(one.module) == "sweeps" and reaches_bench(one.module),
    ),
    "the model and the configs load large libraries late": (
        ["model", "configs"],
        lambda one: one.at_import and package_of(one) in LATE,
    ),
}


@pytest.mark.parametrize("rule", WRONG_IMPORTS)
def test_the_rules_of_imports(rule: str) -> None:
    assert not wrong_imports(*WRONG_IMPORTS[rule])


LIGHT_FILES = ["cli/__init__", "cli/main", "cli/errors", "cli/export", "cli/model_commands", "cli/run_commands"]


def test_the_front_door_is_light() -> None:
    light = [*FRONT_DOOR.glob("*.py"), *(FRONT_DOOR / f"{name}.py" for name in LIGHT_FILES)]
    found = [one for path in light for one in imports_of(path) if one.at_import]
    assert not [one for one in found if package_of(one) in HEAVY or own_part(one.module) in FOLDERS]


def test_every_module_says_what_it_is_for_in_its_first_line() -> None:
    first_lines = {path: (ast.get_docstring(tree_of(path)) or "").partition("\n")[0] for path in FILES}
    assert not [str(path.relative_to(ROOT)) for path, line in first_lines.items() if len(line) < 10]


def test_no_file_is_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON_FILES}
    assert not [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in lengths.items() if lines > LONGEST_FILE]


def test_every_folder_is_a_package() -> None:
    folders = {path.parent for path in PYTHON_FILES}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]


@pytest.mark.parametrize("name", FOLDERS)
def test_the_package_links_to_the_folders(name: str) -> None:
    link = FRONT_DOOR / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", name)
    assert (link / "__init__.py").is_file()


def test_nothing_else_is_at_the_root() -> None:
    folders = {Path(name).parts[0] for name in tracked_files() if "/" in name}
    assert folders <= {*FOLDERS, "src", "tests", "docs", ".ci"}


def test_the_version_is_told_once() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "specgauge.version.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", specgauge.__version__)


def test_the_public_names_exist() -> None:
    assert len(set(specgauge.__all__)) == len(specgauge.__all__)
    for name in specgauge.__all__:
        assert getattr(specgauge, name) is not None, name
        assert name in dir(specgauge)
    with pytest.raises(AttributeError, match="module 'specgauge' has no attribute 'nothing'"):
        _ = specgauge.nothing


def test_type_checkers_see_the_public_names_where_they_live() -> None:
    (block,) = [node for node in tree_of(FRONT_DOOR / "__init__.py").body if isinstance(node, ast.If)]
    seen = {node.names[0].name: node.module for node in block.body if isinstance(node, ast.ImportFrom)}
    assert set(seen) == set(specgauge.__all__) - {"__version__"}
    assert {name: getattr(specgauge, name).__module__ for name in seen} == seen


# What may not stand in a tracked file: paths of one machine, and words about how the project was made.  The patterns
# are written so that they do not match themselves.
BANNED = re.compile(
    rb"/(?:home|Users|root|wor[k]|far[m])/\w|[A-Z]:\\\\?Users|/tm[p]/studio|farm-(?:bench|studio)|\.librar[y]|"
    rb"\bthis sess[i]on\b|\bCE[O]\b"
)
UNFINISHED = re.compile(rb"\bTOD[O]\b|\bFIXM[E]\b|\bXX[X]\b")
LEARNT = "tokenizer.json"
"""Its words were learnt from source code, not written here: marks of unfinished work mean nothing in it."""


def test_no_banned_words_in_tracked_files() -> None:
    found = []
    for name in tracked_files():
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if b"\0" not in content[:8192]:
                patterns = [BANNED] if path.name == LEARNT else [BANNED, UNFINISHED]
                found += [f"{name}: {match.group().decode()}" for one in patterns for match in one.finditer(content)]
    assert not found


def test_a_snapshot_is_written_once_and_then_held_against_the_text(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    with pytest.raises(AssertionError, match="--snapshot-update"):
        check_snapshot(path, "", update=False)
    check_snapshot(path, "a\nb\n", update=True)
    check_snapshot(path, "a\nb\n", update=False)
    with pytest.raises(AssertionError, match=r"-b\n\+c\n"):
        check_snapshot(path, "a\nc\n", update=False)


def run_python(code: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        check=False,
    )


COMMANDS = """
import contextlib, io, json, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in sys.argv[2:]:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Block())
before = set(sys.modules)
from specgauge.cli.main import main
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(arguments)
    loaded = sorted({name.split('.')[0] for name in set(sys.modules) - before})
    print(json.dumps([code, out.getvalue(), error.getvalue(), loaded]))
"""
LIGHT = [
    ["--help"], ["--version"], ["run", "--help"], ["predict", "--help"], ["plan", "--help"], ["replay", "--help"],
    ["nonsense"],
]  # fmt: skip


def run_commands(commands: list[list[str]], *without: str, cwd: Path) -> list[Any]:
    """[exit code, stdout, stderr, modules loaded so far] of each, one after the other in one process."""
    done = run_python(COMMANDS, json.dumps(commands), *without, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_help_loads_nothing_large(tmp_path: Path) -> None:
    found = run_commands(LIGHT, cwd=tmp_path)
    assert [code for code, *_ in found] == [0] * (len(LIGHT) - 1) + [2]
    for arguments, (*_, loaded) in zip(LIGHT, found, strict=True):
        # some releases of typer import pydantic and rich themselves
        assert not set(loaded) & (HEAVY - {"pydantic", "rich"}), arguments


def test_a_run_that_is_not_there_is_refused_before_what_draws_it_is_loaded(tmp_path: Path) -> None:
    ((code, _, error, loaded),) = run_commands([["report", "nowhere", "--plot", "a.png"]], cwd=tmp_path)
    assert (code, error.count("\n")) == (2, 1)
    assert "matplotlib" not in loaded


def test_the_package_itself_loads_nothing_large(tmp_path: Path) -> None:
    code = "import sys, json, specgauge; print(json.dumps(sorted(sys.modules)))"
    done = run_python(code, cwd=tmp_path)
    assert not HEAVY & set(json.loads(done.stdout))


TORCH_FREE = [
    ["configs", "quickstart"],
    ["schema"],
    ["check", "quickstart"],
    ["predict", "--alpha", "0.8", "--t-decode", "20ms", "--t-draft", "2ms", "--t-verify", "22ms"],
    ["predict", "--table", str(Path(__file__).parent / "golden" / "magicdec.csv"), "--json"],
    [
        *("plan", "--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--hardware", "h100-sxm", "--alpha", ".8"),
        *("--batch-size", "1,64", "--context", "1k", "--json"),
    ],
    ["plan", "--calibrate", str(Path(__file__).parent / "golden" / "magicdec.csv")],
    ["explain", "--target-probs", ".2,.4,.4", "--draft-probs", ".1,.1,.8"],
    ["explain", "--logits", "2,1,0", "--top-k", "2"],
    ["import", "vllm-bench", str(Path(__file__).parent / "golden" / "engines" / "vllm" / "sweep"), "--out", "imported"],
    ["recommend", "RUN"],
    ["recommend", "imported"],
    ["export", "RUN", "--engine", "tensorrt-llm"],
    ["replay", "RUN", "--replicates", "1", "--sampling", "greedy", "--batch-size", "1", "--context", "64"],
    ["compare", "RUN", "AGAIN"],
    ["compare", "RUN", "AGAIN", "--json"],
    ["report", "RUN"],
]


def test_without_torch(tmp_path: Path) -> None:
    """One after the other in one process, `run` the last."""
    small = Shape(alphas={"greedy": 0.8}, batch_sizes=(1,), contexts=(64,), gammas=(1, 2))
    for name in ("RUN", "AGAIN"):
        build_run(tmp_path / name, small)
    *found, measuring = run_commands([*TORCH_FREE, ["run"]], "torch", "transformers", cwd=tmp_path)
    for arguments, (code, out, error, _) in zip(TORCH_FREE, found, strict=True):
        assert (code, bool(out)) == (0, True), (arguments, error)
        assert not error or arguments[0] in ("replay", "export")  # they say on stderr where they are, what they chose
    code, _, error, _ = measuring
    assert code == 1
    assert error.splitlines()[-1].startswith("specgauge: needs the package 'torch', which is not installed")


def test_a_checkout_without_links_gives_one_clear_error(tmp_path: Path) -> None:
    package = tmp_path / "specgauge"
    package.mkdir()
    for name in ("__init__.py", "version.py"):
        (package / name).write_bytes((FRONT_DOOR / name).read_bytes())
    for name in FOLDERS:
        (package / name).write_text(f"../../{name}", encoding="utf-8")  # what git writes where it cannot link
    done = run_python("import specgauge", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {package / 'bench'} is not a folder: this checkout was made without symbolic links; make it "
        "again with `git clone -c core.symlinks=true` (on Windows with developer mode on), or install a wheel"
    )
