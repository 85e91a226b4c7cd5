"""Pages: a study's template in, one self-contained HTML file out.

Text is escaped; only the SVG of a `Figure`, which `figure` draws, is taken as it is. The file loads
nothing from outside itself. Its only script copies commands; no other can run.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from highrank.report.figure import DARK, LIGHT
from highrank.report.formats import listed

# Where templates are found.
TEMPLATES = [Path(__file__).parents[1]]
# Without it there are no buttons.
SCRIPT = Path(__file__).with_name("copy.js")


@dataclass(frozen=True, kw_only=True)
class Figure:
    svg: str
    """Made by `figure.to_svg`; trusted."""
    description: str
    """The picture in words, for those who do not see it."""
    title: str = ""
    caption: str = ""


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

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"rows must have {len(self.columns)} cells, got {row}")


def render(
    template: str, *, title: str, answer: str, footer: str, verdict: str = "", **values: object
) -> str:
    """A study's page as HTML.

    Args:
        template: its path in the package. It extends "report/page.html.j2", fills its block `main`,
            and places figures and tables with the macros of "report/blocks.html.j2".
        answer: a sentence or two, which the page opens with.
        verdict: the answer in at most twelve words, in bold before it.
        values: what the template shows. Text is escaped.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(glued=_glued, listed=listed, whole_options=_whole_options)
    heading = {"title": title, "verdict": verdict, "answer": answer, "footer": footer}
    script = SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    heading |= {"script": script, "script_hash": f"sha256-{digest}"}
    found = environment.get_template(template)
    return found.render(**heading, light=LIGHT, dark=DARK, **values)


def _whole_options(text: str) -> str:
    """The text, escaped, with options such as --budget that are not broken at their hyphens."""
    from markupsafe import Markup, escape

    spans = re.sub(r"(?<![\w-])--\w[\w-]*", r'<span class="whole">\g<0></span>', str(escape(text)))
    return Markup(spans)


def _glued(text: str) -> str:
    """Keep "d = 16", "d + 1", "1 %" and "I(a; b)" on one line, by no-break spaces.

    Names such as "Adaptive softmax + pointer" are broken at the plus only.
    """
    spaces = (
        r"(?<=\S)\s(?=[=−≤≥%]|\+\d)|(?<=[=−≤≥])\s(?=\S)|(?<=;)\s(?=\w+\))"
        # Sums of a letter or digit; two words of a name before a plus.
        r"|(?<=\b\w)\s(?=\+\s)|(?<=\b\w\s\+)\s(?=\S)"
        r"|(?<=\w)\s(?=\w{2,}\s\+\s)"
    )
    return re.sub(spaces, "\u00a0", text)
