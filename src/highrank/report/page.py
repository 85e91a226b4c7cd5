"""Pages: a study's template in, one self-contained HTML file out.

Text is escaped; only the SVG of a `Figure`, which `figure` draws, is taken as it is. The file loads
nothing from outside itself and has no scripts.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from highrank.files import write_atomically
from highrank.report.formats import listed
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
    """Made by `figure.to_svg`; trusted."""
    description: str
    """What the picture shows, for those who do not see it."""
    title: str = ""
    caption: str = ""
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

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    caption: str = ""
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


def render(template: str, *, title: str, answer: str, footer: str, **values: object) -> str:
    """A study's page as HTML.

    Args:
        template: its path in the package. It extends "report/page.html.j2", fills its block `main`,
            and places figures and tables with the macros of "report/blocks.html.j2".
        answer: the sentence that the page opens with.
        values: what the template shows. Text is escaped.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(glued=_glued, listed=listed)
    heading = {"title": title, "answer": answer, "footer": footer}
    found = environment.get_template(template)
    return found.render(**heading, light=LIGHT, dark=DARK, **values)


def write_html(html: str, path: Path) -> None:
    """A reader never sees half of a page."""
    write_atomically(path, lambda temporary: temporary.write_text(html, encoding="utf-8"))


def render_page(page: Page) -> str:
    """The page as HTML."""
    heading = {"title": page.title, "answer": page.lead, "footer": page.footer}
    return render("report/sections.html.j2", **heading, page=page)


def write_page(page: Page, path: Path) -> None:
    write_html(render_page(page), path)


def _glued(text: str) -> str:
    """Keep "d = 16" and "1 %" on one line, by no-break spaces."""
    return re.sub(r"(?<=\S)\s(?=[=+−≤%])|(?<=[=+−≤])\s(?=\S)", "\u00a0", text)
