"""A strict reader of the report's HTML: balanced elements, unique ids, nothing loaded, the text; and tables as text."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from specgauge.reports import html
from specgauge.reports.tables import Table

SCRIPT = Path(html.__file__).parent / "report.js"
VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}
BLOCKS = {
    *("p", "li", "td", "th", "dt", "dd", "h1", "h2", "h3", "figcaption", "summary", "title", "desc", "text", "div"),
    *("nav", "tr"),
}
LOADING = ("src", "srcset", "data", "action", "poster", "background", "xlink:href", "formaction", "ping")


class Page(HTMLParser):
    """A page, checked: balanced, every id once, every reference kept, no script but its own, nothing from outside."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.marks: Counter[str] = Counter()  # elements by class
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []  # of anchors, and within figures
        self._open: list[str] = []
        self._labelled_by: set[str] = set()
        self._copied: list[str] = []
        self._words = self._outside = self._css = self._script = ""
        self.copies: dict[str, str] = {}  # what the buttons copy, by id
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"
        self.text = re.sub("[ \\t\\n]+", " ", self._words)  # visible
        lines = (re.sub("[ \\t]+", " ", line).strip(" |") for line in self._outside.split("\n"))
        self.lines = [line for line in lines if line]
        """The text outside figures and preformatted text, a line a block; the cells of a table's row on one line."""
        assert text.startswith("<!DOCTYPE html>\n")
        assert len(set(self.ids)) == len(self.ids), sorted(one for one in self.ids if self.ids.count(one) > 1)
        assert self._labelled_by <= set(self.ids)
        assert all(link.startswith("#") and link[1:] in self.ids for link in self.links), self.links
        own = SCRIPT.read_text(encoding="utf-8").strip()
        assert [self._script.strip()] == [own] * self.tags.count("script") or self.tags.count("script") == 0
        assert set(self.copies) == set(self._copied), "a button for each text"
        assert not {"link", "img", "iframe", "object", "embed", "base", "image"} & set(self.tags)
        assert not re.search(r"url\(|@import|@font-face|expression\(|//", self._css)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"attribute twice in <{tag}>: {names}"
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"event handler {name} in <{tag}>"
            assert name not in LOADING, f"<{tag} {name}={value!r}> would load something"
            self.links += re.findall(r"url\(([^)]*)\)", value or "")
            if name == "class":
                self.marks[value or ""] += 1
            if name == "id":
                self.ids.append(value or "")
            if name == "data-text":
                self._copied.append(value or "")
            if name == "href":
                self.links.append(value or "")
            if name in ("aria-labelledby", "aria-describedby"):
                self._labelled_by.update((value or "").split())
        if tag in BLOCKS:
            self._words += " "
            self._outside += " | " if tag in ("td", "th") else "\n"
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise AssertionError(f"<{tag}/> means nothing in HTML")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> while <{self._open[-1]}> is open"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        match self._open:
            case [*_, "style"]:
                self._css += data
                return
            case [*_, "script"]:
                self._script += data
                return
            case [*_, "textarea"]:
                self.copies[self.ids[-1]] = self.copies.get(self.ids[-1], "") + data
                return
        self._words += data
        if not {"svg", "pre"} & set(self._open):
            self._outside += data.replace("\n", " ")


def table_text(table: Table | None) -> str:
    """A line for the caption and the columns, for each heading and each row; chosen rows have a star."""
    if table is None:
        return "    none\n"
    lines = [f"{table.caption} words {sorted(table.words)} wide {sorted(table.wide)}", " | ".join(table.columns)]
    for group in table.groups:
        assert all(len(row.cells) == len(table.columns) for row in group.rows)
        lines += [group.heading, *(f"{'*' * row.chosen} {' | '.join(row.cells)}" for row in group.rows)]
    return "".join(f"    {line}\n" for line in lines)
