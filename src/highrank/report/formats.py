"""Numbers, durations, tokens and the environment as text, and the look of terminal tables."""

import math
import unicodedata
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from highrank.environment import Environment
from highrank.files import path_text

SPACE, NEWLINE = "␣", "⏎"
# How byte-level and SentencePiece vocabularies write a space, a newline and a tab.
MARKS = str.maketrans({"Ġ": SPACE, "▁": SPACE, "Ċ": NEWLINE, "ĉ": "\\t"})
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MAX_LENGTH = 24
MAX_CONTEXT = 120
MAX_NAME = 25
# Categories of unicodedata: control, format (those that turn the direction of text, too),
# surrogate, private, unassigned, separators of lines and paragraphs.
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def legible(token: str, source: str, max_length: int = MAX_LENGTH) -> str:
    """The token on one line: spaces and invisible characters are shown, long tokens cut.

    Args:
        source: of the model; a Hugging Face vocabulary has signs of its own for white space.
    """
    if not token:
        return "(empty)"
    marked = token.translate(MARKS) if source == "huggingface" else token
    shown = "".join(map(_visible, marked.replace(" ", SPACE)))
    if unicodedata.category(shown[0]).startswith("M"):
        # A mark needs something to stand on.
        shown = "◌" + shown
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def legible_context(text: str) -> str:
    """The end of a context, with its spaces as they are."""
    shown = "".join(map(_visible, " ".join(text.replace("\n", f" {NEWLINE} ").split())))
    return shown if len(shown) <= MAX_CONTEXT else "…" + shown[1 - MAX_CONTEXT :]


def printable(text: str) -> str:
    """The text with its lines and tabs as they are, and all else that is invisible escaped.

    No terminal can be made to move its cursor, to clear its screen or to turn text around by it.
    """
    kept = "\n\t"
    return "".join(
        _escaped(character) if _is_invisible(character) and character not in kept else character
        for character in path_text(text)
    )


def shortened(name: str) -> str:
    """Cut in the middle: models of a family differ at the end."""
    half = MAX_NAME // 2
    return name if len(name) <= MAX_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _visible(character: str) -> str:
    if character == "\n":
        return NEWLINE
    if _is_invisible(character):
        return _escaped(character)
    # The other spaces: no-break, thin, ideographic.
    return SPACE if character.isspace() and character != " " else character


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in INVISIBLE


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def nats(value: float) -> str:
    """Four decimals; two digits and a power of ten below 0.001."""
    if value == 0:
        return "0"
    return f"{value:.4f}" if value >= 1e-3 else f"{value:.1e}".replace("e-0", "e-")


def with_error(value: float, error: float | None) -> str:
    """ "4.763 ± 0.012": with enough digits that an error is not zero, and none if there is none."""
    if not error:
        return nats(value) if value < 1e-3 else f"{value:.3f}"
    # Those of the rounded error: 9.7e-5 is 0.0001.
    decimals = max(3, -math.floor(math.log10(float(f"{error:.0e}"))))
    if decimals <= 4:
        return f"{value:.{decimals}f}\u00a0±\u00a0{error:.{decimals}f}"
    shown = f"{value:.4f}" if value >= 1e-2 else f"{value:.1e}"
    return f"{shown}\u00a0±\u00a0{error:.0e}".replace("e-0", "e-")


def perplexity(nats: float) -> float:
    """exp of a mean loss; finite."""
    return math.exp(min(nats, 700.0))


def count(value: float | None, decimals: int = 0) -> str:
    """So many decimals, halves rounded up; a dash if it is not known."""
    if value is None:
        return "–"
    scale = 10**decimals
    return f"{math.floor(value * scale + 0.5) / scale:,.{decimals}f}"


def mib(num_bytes: int | None) -> str:
    """Whole MiB, without the unit; a dash if it is not known."""
    return count(None if num_bytes is None else num_bytes / 2**20)


def millions(number: int) -> str:
    return f"{number / 1e6:,.2f}\u00a0M" if number >= 1e5 else f"{number:,}"


def model_size(num_parameters: int, table: object | None = None) -> str:
    """Parameters, and a table beside them: "1.54 M parameters + 2.54 M n-grams, 54 MB"."""
    beside = "" if table is None else f" + {table}"
    return f"{millions(num_parameters)} parameters{beside}"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def environment_text(environment: Environment) -> str:
    commit = "" if environment.commit is None else f" ({environment.commit})"
    return (
        f"highrank {environment.highrank}{commit}, torch {environment.torch}, Python "
        f"{environment.python}, {environment.threads} "
        f"thread{'' if environment.threads == 1 else 's'}, {environment.cpu}, "
        f"{environment.platform}, {environment.date} UTC"
    )


def power(value: float) -> str:
    """10⁻³ for 0.001, 3·10⁻¹² for 3e-12; rounded up to one digit."""
    unit = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return scientific(math.ceil(value / unit - 1e-6) * unit)


def scientific(value: float) -> str:
    """10⁻³ for 0.001, 1.5·10⁻⁶ for 1.5e-6; three digits."""
    digits, exponent = f"{value:.2e}".split("e")
    text = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return text if float(digits) == 1 else f"{float(digits):g}·{text}"


def listed(items: Iterable[object]) -> str:
    """ "1, 2 and 3"."""
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


class WideTable(Table):
    """A table whose title and caption take the width of the terminal, not that of the columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title, caption = self.title, self.caption
        self.title = self.caption = None
        if title:
            yield Text(str(title), "table.title")
        yield from super().__rich_console__(console, options)
        if caption:
            yield Text(str(caption), "table.caption")
        self.title, self.caption = title, caption


def make_table(
    text: Iterable[str],
    numbers: Iterable[str] = (),
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table without rows.

    Args:
        text: titles of the first columns; long cells are folded, never cut.
        numbers: titles of the columns after them, aligned to the right.
    """
    table = WideTable(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False)
    for name in text:
        table.add_column(name, overflow="fold", min_width=len(name))
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def narrow(cells: Sequence[str]) -> list[str]:
    """Cells of a row with verdicts below their numbers, errors too beside more than two others.

    In a terminal of 80 columns the titles of rows then have room.
    """
    found = [cell.replace(", ", "\n") for cell in cells]
    if len(cells) > 3:
        found = [cell.replace("\u00a0", " ").replace(" ± ", "\n± ") for cell in found]
    return found
