"""The documentation as the tests read it: pages, fenced blocks, command lines; and the parts that are generated.

    python -m tests.docs        # writes the generated end of docs/configuration.md and docs/metrics.md anew

Such a page is written by hand up to the heading that stands in `GENERATED`.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from specgauge.configs.errors import field_words
from specgauge.configs.pairs import LayersDraft, ModelConfig, NgramConfig, PairConfig
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
from tests.house import ROOT

PAGES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))))
SECTIONS: dict[str, type[BaseModel]] = {
    "top level": Config,
    "pairs[…]": PairConfig,
    "pairs[…].target, pairs[…].draft": ModelConfig,
    "pairs[…].draft.ngram": NgramConfig,
    "pairs[…].draft, the target's first layers": LayersDraft,
    "workload": WorkloadConfig,
    "sampling[…]": SamplingConfig,
    "grid": GridConfig,
    "grid.include[…], grid.exclude[…]": CellRule,
    "precision": PrecisionConfig,
    "acceptance": AcceptanceConfig,
    "validate": ValidateConfig,
    "limits": LimitsConfig,
}
"""Where each section stands in a configuration."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block: what its fence says it is, and its lines."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command line, and the output that stands under it where it is shown as a console."""

    text: str
    output: str | None = None

    @property
    def words(self) -> list[str]:
        """The words a shell would make of it, comments left out."""
        return shlex.split(self.text, comments=True)


def page_text(page: str) -> str:
    """The Markdown of a page, by its path from the root."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    text = page_text(page)
    fences = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        Block(page=page, line=text.count("\n", 0, match.start()) + 1, language=match[1], text=match[2])
        for match in fences
    ]


def commands(page: str) -> list[Command]:
    """Every command line of a page in its order: of blocks `sh` and `console`, and inline."""
    found = [one for block in blocks(page) for one in _block_commands(block)]
    prose = re.sub(r"^```.*?^```$", "", page_text(page), flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`((?:specgauge|(?:\S*/)?python3?) [^`]+)`", prose)
    return found + [Command(text=" ".join(text.split())) for text in inline]


def _block_commands(block: Block) -> Iterator[Command]:
    if block.language == "sh":
        yield from (Command(text=line) for line in block.text.replace("\\\n", " ").splitlines() if line.strip())
    elif block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            text, _, output = part.partition("\n")
            yield Command(text=text, output=output)


def field_tables() -> str:
    """Every section of the configuration as a table of its fields, from the schema."""
    return "\n\n".join(_section_table(place, section) for place, section in SECTIONS.items())


def _section_table(place: str, section: type[BaseModel]) -> str:
    takes = field_words(section)
    lines = [f"### {place}", "", _one_line(section.__doc__ or ""), "", "| field | takes | default | meaning |"]
    lines.append("| --- | --- | --- | --- |")
    for name, field in section.model_fields.items():
        key = field.alias or name
        default = "required" if field.is_required() else _default_text(field.default)
        lines.append(
            f"| `{key}` | {_cell(takes[key])} | {_cell(default)} | {_cell(_one_line(field.description or ''))} |"
        )
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


def _escaped(text: str) -> str:
    return re.sub(r"([*<\\])", r"\\\1", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return re.sub(r"([|<])", r"\\\1", text)


GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "docs/configuration.md": ("## Every field", field_tables),
    "docs/metrics.md": ("## Words and symbols", glossary),
}
"""Pages with a generated end: the heading it stands under, and what writes it."""


def generated_page(page: str) -> str:
    """A page whose generated end is written anew."""
    heading, write = GENERATED[page]
    by_hand, found, _ = page_text(page).partition(f"\n{heading}\n")
    assert found, f"{page}: expected the heading {heading!r}"
    return f"{by_hand}\n{heading}\n\n{write()}\n"


if __name__ == "__main__":
    for name in GENERATED:
        content = generated_page(name)
        Path(ROOT / name).write_text(content, encoding="utf-8", newline="\n")
