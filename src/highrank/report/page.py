"""The page: a few blocks in, one self-contained HTML file out.

All pages are made of the blocks below. Text is escaped; only the SVG of a `Figure`, which
`charts` draws, is taken as it is. The file refers to nothing outside itself and has no scripts.
"""

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import ClassVar

from highrank.files import write_atomically
from highrank.report.theme import DARK, LIGHT


@dataclass(frozen=True)
class Strong:
    text: str
    kind: ClassVar = "strong"


@dataclass(frozen=True)
class Code:
    text: str
    kind: ClassVar = "code"


@dataclass(frozen=True)
class Link:
    text: str
    url: str
    kind: ClassVar = "link"

    def __post_init__(self) -> None:
        if not self.url.startswith("https://"):
            raise ValueError(f"url must start with https://, got {self.url!r}")


@dataclass(frozen=True)
class Paragraph:
    parts: tuple[str | Strong | Code | Link, ...]
    kind: ClassVar = "paragraph"


@dataclass(frozen=True, kw_only=True)
class Figure:
    svg: str
    """Made by `charts.to_svg`; trusted."""
    title: str
    caption: str
    description: str
    """What the picture shows, for those who do not see it."""
    kind: ClassVar = "figure"


@dataclass(frozen=True)
class Grid:
    """Figures side by side where there is room."""

    figures: tuple[Figure, ...]
    kind: ClassVar = "grid"


@dataclass(frozen=True)
class Column:
    title: str
    is_number: bool = True


@dataclass(frozen=True, kw_only=True)
class Table:
    """The first cell of each row is its heading."""

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    highlighted: frozenset[int] = frozenset()
    """Indices of rows."""
    kind: ClassVar = "table"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"rows must have {len(self.columns)} cells, got {row}")


Block = Paragraph | Figure | Grid | Table


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    title: str
    lead: str
    sections: tuple[Section, ...]
    footer: str


def render_page(page: Page) -> str:
    """The page as HTML."""
    import jinja2

    template = resources.files("highrank.report").joinpath("page.html.j2").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["glued"] = _glued
    return environment.from_string(template).render(page=page, light=LIGHT, dark=DARK)


def write_page(page: Page, path: Path) -> None:
    """Write the page; a reader never sees half of it."""
    html = render_page(page)
    write_atomically(path, lambda temporary: temporary.write_text(html, encoding="utf-8"))


def _glued(text: str) -> str:
    """Keep "d = 16" and "1 %" on one line, by no-break spaces."""
    return re.sub(r"(?<=\S) (?=[=+−≤%])|(?<=[=+−≤]) (?=\S)", "\u00a0", text)
