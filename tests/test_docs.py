"""The documentation holds: every command and YAML block runs, generated parts are fresh, and nothing is left out.

    python -m pytest tests/test_docs.py --snapshot-update

writes the end of docs/configuration.md and docs/metrics.md anew, each from the heading that stands in `GENERATED`.
"""

import ast
import html
import json
import re
import shlex
import sys
import tempfile
import tomllib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

import specgauge
from specgauge.bench.end_to_end import benchmark
from specgauge.cli.main import COMMANDS
from specgauge.configs.engines import EngineArm, EngineConfig, LaunchConfig
from specgauge.configs.errors import field_words
from specgauge.configs.executor import ExecutorConfig
from specgauge.configs.fields import Section, field_docstrings
from specgauge.configs.loader import json_schema, load_config, shipped_text
from specgauge.configs.pairs import LayersDraft, ModelConfig, NgramConfig, PairConfig, ParallelConfig
from specgauge.configs.schema import (
    AcceptanceConfig,
    Config,
    GridConfig,
    LimitsConfig,
    PrecisionConfig,
    SamplingConfig,
    ValidateConfig,
    WorkloadConfig,
)
from specgauge.configs.variants import CellRule
from specgauge.configs.yaml_reader import Source, dump_yaml, read_yaml
from specgauge.sweeps import proof
from specgauge.sweeps.analysis import warnings
from specgauge.sweeps.store import rundir
from specgauge.sweeps.store.schema import PredictionRow, ValidationRow
from tests.benchmarks import coverage, memory, model_speed, search, served
from tests.cli.conftest import Run, command
from tests.conftest import check_snapshot
from tests.reports.synthetic import Shape, build_run
from tests.sweeps.analysis.test_decoded import forced_run
from tests.test_house import FILES, ROOT, tree_of

__all__ = ["command"]  # a fixture

PAGES = tuple(
    sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
)
SECTIONS: dict[str, type[Section]] = {
    "top level": Config,
    "pairs[…]": PairConfig,
    "pairs[…].target, pairs[…].draft": ModelConfig,
    "pairs[…].target.parallel": ParallelConfig,
    "pairs[…].draft.ngram": NgramConfig,
    "pairs[…].draft, the target's first layers": LayersDraft,
    "pairs[…].engine, pairs[…].engine[…]": EngineConfig,
    "pairs[…].engine.launch": LaunchConfig,
    "pairs[…].engine.arms[…]": EngineArm,
    "workload": WorkloadConfig,
    "sampling[…]": SamplingConfig,
    "grid": GridConfig,
    "grid.include[…], grid.exclude[…]": CellRule,
    "precision": PrecisionConfig,
    "acceptance": AcceptanceConfig,
    "validate": ValidateConfig,
    "limits": LimitsConfig,
    "executor": ExecutorConfig,
}
"""Where each section stands in a configuration."""


class Block(NamedTuple):
    """One fenced block: what its fence says it is, and its lines."""

    line: int
    language: str
    text: str


class Command(NamedTuple):
    """One command line, and the output that stands under it where it is shown as a console."""

    text: str
    output: str | None = None


def page_text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    text = page_text(page)
    fences = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in fences]


def commands(page: str) -> list[Command]:
    """Every command line of a page in its order: of blocks `sh` and `console`, and inline."""
    found = [one for block in blocks(page) for one in _block_commands(block)]
    prose = re.sub(r"^```.*?^```$", "", page_text(page), flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`((?:specgauge|(?:\S*/)?python3?) [^`]+)`", prose)
    return found + [Command(_one_line(text)) for text in inline]


def _block_commands(block: Block) -> Iterator[Command]:
    if block.language == "sh":
        yield from (Command(line) for line in block.text.replace("\\\n", " ").splitlines() if line.strip())
    elif block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            text, _, output = part.partition("\n")
            yield Command(text, output)


def field_tables() -> str:
    """Every section of the configuration as a table of its fields, from the schema."""
    return "\n\n".join(_section_table(place, section) for place, section in SECTIONS.items())


def _section_table(place: str, section: type[Section]) -> str:
    takes, texts = field_words(section), field_docstrings(section)
    lines = [f"### {place}", "", _one_line(section.__doc__ or ""), "", "| field | takes | default | meaning |"]
    lines.append("| --- | --- | --- | --- |")
    for name, field in section.model_fields.items():
        key = field.alias or name
        default = "required" if field.is_required() else _default_text(field.default)
        cells = [_escaped(cell, "[|<]") for cell in (takes[key], default, _one_line(texts.get(name, "")))]
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _default_text(value: object) -> str:
    if isinstance(value, BaseModel):
        return "its defaults"

    def plain(part: object) -> Any:
        return part.model_dump(exclude_unset=True) if isinstance(part, BaseModel) else part

    shown = [plain(part) for part in value] if isinstance(value, tuple) else value
    return f"`{shown}`" if isinstance(shown, str) else f"`{json.dumps(shown, ensure_ascii=False)}`"


def glossary() -> str:
    """The report's words and symbols as a Markdown list."""
    text = (ROOT / "reports" / "glossary.jinja").read_text(encoding="utf-8")
    entries = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text)
    assert len(entries) == text.count("<dt>")
    return "\n".join(
        f"- **{_escaped(html.unescape(term))}**: {_escaped(html.unescape(words))}" for term, words in entries
    )


def _escaped(text: str, marks: str = r"[*<\\]") -> str:
    return re.sub(f"({marks})", r"\\\1", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "docs/configuration.md": ("## Every field", field_tables),
    "docs/metrics.md": ("## Words and symbols", glossary),
}
"""Pages with a generated end: the heading it stands under, and what writes it."""

LANGUAGES = {"sh", "console", "text", "yaml", "mermaid", "python"}
PLACEHOLDERS = {"CONFIG": "quickstart", "RUN": "runs/small"}
SET_UP = ("python3 -m venv ", ".venv/bin/pip install -q -c constraints.txt -e ", ". .venv/bin/activate", "bash .ci/run")
CHECKS = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace(".venv/bin/", "").splitlines()
"""What every change must pass, run by its own script."""


def made_up_run(config: Config, out: Path) -> None:
    """A finished run of a configuration's cells, nothing measured; of several pairs or drafts one like another."""
    if out.name in ("proof", "policies", "lookups"):  # whose texts are held against what was predicted
        forced_run(out)
        return
    grid = config.grid
    shape = Shape(
        name=config.name,
        pairs=[pair.name for pair in config.pairs],
        alphas={one.name: 0.8 for one in config.sampling},
        batch_sizes=grid.batch_size,
        contexts=grid.context,
        gammas=grid.gamma,
        verify_slope=dict.fromkeys(grid.batch_size, 0.05),
        prompts=4,
        positions=16,
    )
    build_run(out, shape)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stands in for the part that measures, with runs that pages speak of already there."""

    def run(config: Config, *, out: Path, **_: Any) -> int:
        if not out.exists():
            made_up_run(config, out)
        return 0

    module = types.ModuleType("specgauge.sweeps.run.runner")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specgauge.sweeps.run.runner", module)
    for name in ("quickstart", "before", "after", "small"):
        batch_sizes = "[1,4]" if name == "quickstart" else "1"
        smaller = ["grid.context=256", "grid.gamma=1:2", f"grid.batch_size={batch_sizes}"]
        made_up_run(load_config("quickstart", smaller), tmp_path / "runs" / name)
    (tmp_path / "tests").symlink_to(ROOT / "tests")


def pytest_arguments(arguments: Sequence[str]) -> int:
    """The tests named are there; they run with all others."""
    flags = {"-q", "-n", "auto", "-m", "gpu", "--snapshot-update", "TESTS"}
    assert not [one for one in arguments if one not in flags and not (ROOT / one).exists()]
    return 0


def memory_case() -> int:
    """A case of the benchmark of memory is read; to measure it takes most of a minute."""
    with tempfile.TemporaryDirectory() as folder:
        return int(load_config(memory.case_config("two models", "cpu", Path(folder))).name != "memory")


MODULES: dict[str, Callable[[Sequence[str]], int]] = {
    "pytest": pytest_arguments,
    "specgauge.bench.end_to_end.benchmark": lambda given: benchmark.main(
        [*given, "--tokens", "2", "--repeats", "1", "--limit", "1"]
    ),
    "specgauge.sweeps.proof": proof.main,
    "tests.benchmarks.coverage": lambda _: coverage.main(count=2),
    "tests.benchmarks.memory": lambda _: memory_case(),
    "tests.benchmarks.model_speed": lambda _: model_speed.main(),
    "tests.benchmarks.search": lambda _: search.main(runs=2),
    "tests.benchmarks.served": lambda _: served.main("1"),
}
"""`python -m`: exit code 1 is a promise that is not kept here, where nothing is measured as it should be."""


def run_command(line: Command, run: Run) -> None:
    """Run a command line as a shell would, in the folder of the test."""
    *first, last = line.text.split(" && ")
    words = shlex.split(last, comments=True)
    name = words[0].removeprefix(".venv/bin/")
    assert all(part.startswith(SET_UP) for part in first)
    if name in ("python", "python3") and words[1:2] == ["-m"] and words[2] in MODULES:
        assert MODULES[words[2]](words[3:]) in (0, 1), line.text
    elif name != "specgauge":
        assert last.startswith(SET_UP) or " ".join(words) in CHECKS, line.text
    else:
        run_specgauge(line, words[1:], run)


def run_specgauge(line: Command, words: list[str], run: Run) -> None:
    target = None
    if ">" in words:
        words, (target,) = words[: words.index(">")], words[words.index(">") + 1 :]
    given = [PLACEHOLDERS.get(word, word) for word in words]
    if given == ["compare", *[PLACEHOLDERS["RUN"]] * 2]:
        given[-1] = "runs/after"
    if words[0] == "replay":
        given += ["--replicates", "1"]
    elif len(words) == 1 and words[0] in ("predict", "plan", "explain", "export", "import", "check", "compare"):
        given += ["--help"]
    code, out, err = run(*given)
    assert code == 0, f"{line.text}: {err}"
    if target is not None:
        Path(target).write_text(out, encoding="utf-8")
    if line.output is not None:
        assert out == line.output


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_runs(page: str, command: Run, runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_speed.main, "__defaults__", ({"nothing": (1.0, lambda: 0.0)},))
    for line in commands(page):
        run_command(line, command)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_holds(page: str) -> None:
    assert page_text(page).count("\n```") == 2 * len(blocks(page))
    assert not [f"{page}:{one.line}" for one in blocks(page) if one.language not in LANGUAGES]


@pytest.mark.parametrize("page", [page for page in PAGES if "```yaml" in page_text(page)])
def test_every_piece_of_yaml_is_taken(page: str, tmp_path: Path) -> None:
    """A piece replaces those of the quickstart's sections that it has."""
    whole: Any = read_yaml(shipped_text("quickstart"), Source("quickstart")).value
    for one in blocks(page):
        if one.language == "yaml":
            path = tmp_path / f"line-{one.line}.yaml"
            piece: Any = read_yaml(one.text, Source(page)).value
            path.write_text(dump_yaml(whole | piece), encoding="utf-8")
            assert load_config(path)


@pytest.mark.parametrize("page", GENERATED)
def test_generated_parts_are_fresh(page: str, pytestconfig: pytest.Config) -> None:
    heading, write = GENERATED[page]
    by_hand, found, _ = page_text(page).partition(f"\n{heading}\n")
    assert found, f"{page}: expected the heading {heading!r}"
    update: bool = pytestconfig.getoption("--snapshot-update")
    check_snapshot(ROOT / page, f"{by_hand}\n{heading}\n\n{write()}\n", update=update)


def test_every_section_of_the_configuration_has_its_table() -> None:
    named = {section.__name__ for section in SECTIONS.values()} - {"Config"}
    short_forms = {"NgramDraft", "JsonValue", *(name for name in json_schema()["$defs"] if name.endswith("Range"))}
    assert named | short_forms == set(json_schema()["$defs"])


def anchors(page: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page_text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page_text(page)):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.resolve().relative_to(ROOT).as_posix()), link


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page: str) -> None:
    named = re.findall(r"`((?:bench|configs|docs|model|reports|src|sweeps|tests)/[\w/.]*)`", page_text(page))
    assert not [name for name in named if not (ROOT / name).exists()]
    assert page != "docs/architecture.md" or len(named) > 20


def warning_codes() -> set[str]:
    """The codes of all warnings, as the source writes them."""
    found: set[str] = set()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("WarningRow", "Note", "gap"):
                code = next((one.value for one in node.keywords if one.arg == "code"), *node.args[:1])
                found.add(str(code.value) if isinstance(code, ast.Constant) else f"{path.name}: {ast.unparse(code)}")
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "remedies":
                found |= set(ast.literal_eval(node.value))
    return found - {"records.py: code", "warnings.py: status", "session.py: note.code"}  # of `gap`, `remedies`, notes


def entries() -> dict[str, str]:
    """The entries of the page on warnings, by code."""
    parts = re.split(r"^### `(\w+)`\n", page_text("docs/troubleshooting.md"), flags=re.MULTILINE)[1:]
    codes = parts[::2]
    assert len(set(codes)) == len(codes)
    return dict(zip(codes, parts[1::2], strict=True))


def test_every_warning_has_an_entry() -> None:
    assert set(entries()) == warning_codes()
    assert not [
        code
        for code, text in entries().items()
        if re.findall(r"^- (\w+):", text, re.MULTILINE) != ["Means", "Why", "Do"]
    ]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("light_machine", f"{warnings.LOADED_GAMMA} drafts takes less than {warnings.LOADED_RATIO:g} ×"),
        ("drift", f"over {100 * warnings.MOST_DRIFT:g} %"),
        ("degenerate_text", f"over {100 * warnings.MOST_REPEATED:g} %"),
        ("few_prompts", f"fewer than {warnings.FEWEST_PROMPTS} prompts"),
        ("gamma_uncertain", f"over {100 * warnings.MOST_EXPECTED_LOSS:g} %"),
        ("slow_baseline", f"less than {warnings.SLOW_BASELINE:g} ×"),
        ("cost_error", f"over {100 * warnings.LARGE_COST_ERROR:g} %"),
        ("prediction_contradicted", f"at least {100 * warnings.CLEARLY:g} %"),
    ],
)
def test_entries_have_the_thresholds_of_their_warnings(code: str, words: str) -> None:
    assert words in entries()[code]


@pytest.mark.parametrize(("file", "row"), [("predictions.csv", PredictionRow), ("validation.csv", ValidationRow)])
def test_every_column_is_explained_once(file: str, row: type) -> None:
    _, _, after = page_text("docs/metrics.md").partition(f"## Columns of {file}\n")
    table = after.partition("\n## ")[0]
    named = [
        name for line in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)
    ]
    assert sorted(named) == sorted(field.name for field in fields(row))


def test_every_section_of_the_report_is_explained_in_its_order() -> None:
    template = (ROOT / "reports" / "report.jinja").read_text(encoding="utf-8")
    sections = re.findall(r'^  \("\w+", "([^"]+)", \w+\),$', template, re.MULTILINE)
    assert len(sections) > 10
    assert re.findall(r"^### (.*)$", page_text("docs/reading-the-report.md"), re.MULTILINE) == sections


def test_every_file_of_a_run_is_listed() -> None:
    (listing,) = [one.text for one in blocks("docs/reading-the-report.md") if one.language == "text"]
    constants = [value for name, value in vars(rundir).items() if re.fullmatch("[A-Z]+", name)]
    files = {value for value in constants if isinstance(value, str) and re.fullmatch(r"\w+\.\w+", value)}
    assert len(files) > 10
    assert files <= set(re.findall(r"^  (\S+)", listing, re.MULTILINE))


def test_the_readme_is_short_and_names_every_command() -> None:
    text = page_text("README.md")
    assert len(text.splitlines()) <= 150
    assert not [one.__name__ for one in COMMANDS if f"`specgauge {one.__name__}" not in text]


def test_the_test_command_is_the_one_that_every_change_must_pass() -> None:
    found = re.findall(r"python3 -m venv \.venv && .*-m pytest -q -n auto$", page_text("README.md"), re.MULTILINE)
    install = '.venv/bin/pip install -q -c constraints.txt -e ".[dev]"'
    assert found == [f"python3 -m venv .venv && {install} && .venv/bin/python -m pytest -q -n auto"]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert install in script
    assert "README.md" in script


def test_licence_and_changelog_are_those_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert re.findall(r"^## (\S+)", page_text("CHANGELOG.md"), re.MULTILINE)[0] == specgauge.__version__
