"""A strict reader of the report's HTML: balanced elements, unique ids, nothing loaded, the text; and tables as text."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser

from specgauge.reports.tables import Table

VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}
BLOCKS = {
    *("p", "li", "td", "th", "dt", "dd", "h1", "h2", "h3", "figcaption", "summary", "title", "desc", "text", "div"),
    *("nav", "tr"),
}
LOADING = ("src", "srcset", "data", "action", "poster", "background", "xlink:href", "formaction", "ping")


@dataclass
class Page:
    """What a page is made of."""

    text: str = ""
    """Visible text, runs of blanks made one."""
    lines: list[str] = field(default_factory=list)
    """The same outside figures and preformatted text, a line a block; the cells of a table's row on one line."""
    marks: Counter[str] = field(default_factory=Counter)
    """Number of elements by class."""
    ids: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """Of anchors, and within figures."""
    labelled_by: list[str] = field(default_factory=list)
    css: str = ""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.open: list[str] = []
        self.words: list[str] = []
        self.outside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"attribute twice in <{tag}>: {names}"
        self.page.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"event handler {name} in <{tag}>"
            assert name not in LOADING, f"<{tag} {name}={value!r}> would load something"
            self.page.links.extend(re.findall(r"url\(([^)]*)\)", value or ""))
            if name == "class":
                self.page.marks[value or ""] += 1
            if name == "id":
                self.page.ids.append(value or "")
            if name == "href":
                self.page.links.append(value or "")
            if name in ("aria-labelledby", "aria-describedby"):
                self.page.labelled_by.extend((value or "").split())
        if tag in BLOCKS:
            self.words.append(" ")
            self.outside += " | " if tag in ("td", "th") else "\n"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise AssertionError(f"<{tag}/> means nothing in HTML")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> while <{self.open[-1]}> is open"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.page.css += data
        else:
            self.words.append(data)
            if not {"svg", "pre"} & set(self.open):
                self.outside += data.replace("\n", " ")


def read_page(html: str) -> Page:
    """The page, checked: balanced, every id once, every reference kept, no script, nothing from outside."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open, f"never closed: {reader.open}"
    page = reader.page
    page.text = re.sub("[ \\t\\n]+", " ", "".join(reader.words))
    lines = (re.sub("[ \\t]+", " ", line).strip(" |") for line in reader.outside.split("\n"))
    page.lines = [line for line in lines if line]
    assert html.startswith("<!DOCTYPE html>\n")
    assert len(set(page.ids)) == len(page.ids), sorted(one for one in page.ids if page.ids.count(one) > 1)
    assert set(page.labelled_by) <= set(page.ids)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links), page.links
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "image"} & set(page.tags)
    assert not re.search(r"url\(|@import|@font-face|expression\(|//", page.css)
    return page


def table_text(table: Table | None) -> str:
    """A line for the caption and the columns, for each heading and each row; chosen rows have a star."""
    if table is None:
        return "    none\n"
    lines = [f"{table.caption} words {sorted(table.words)} wide {sorted(table.wide)}", " | ".join(table.columns)]
    for group in table.groups:
        assert all(len(row.cells) == len(table.columns) for row in group.rows)
        lines += [group.heading, *(f"{'*' * row.chosen} {' | '.join(row.cells)}" for row in group.rows)]
    return "".join(f"    {line}\n" for line in lines)
