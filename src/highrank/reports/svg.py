"""Turn the SVG that matplotlib writes into an element of a page.

Each colour becomes a variable of the page (`var(--ink)`) and text takes the page's font, so that a
chart follows the reader's theme; without a size of its own it fills the width that it is given.
"""

import hashlib
import re

from highrank.reports.theme import LIGHT

NAMES = {color: name for name, color in LIGHT.items()}


def embedded(document: str) -> str:
    """The `<svg>` element of the document. It must be drawn in the colours of `theme.LIGHT`."""
    svg = document[document.index("<svg") :].strip()
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    # Styles of an inline SVG would apply to the whole page.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    # matplotlib before 3.11 writes the shorthand.
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    svg = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _variable, svg)
    return _with_own_ids(svg)


def _variable(match: re.Match[str]) -> str:
    return f"{match[1]}: var(--{NAMES[match[2]]})"


def _with_own_ids(svg: str) -> str:
    """Drop the ids that nothing refers to; mark the others, so that charts can share a page."""
    own = "chart" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))

    def kept(match: re.Match[str]) -> str:
        return f' id="{own}-{match[1]}"' if match[1] in used else ""

    svg = re.sub(r' id="([^"]+)"', kept, svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{own}-", svg)
