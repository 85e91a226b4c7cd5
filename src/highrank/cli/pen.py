"""Text on the terminal as it comes, word by word, coloured by the component that said it."""

from rich.console import Console

from highrank.data.tokenizer import readable
from highrank.data.vocabulary import EOS

# Readable on black and on white; from the ninth on they repeat in bold, then underlined.
COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_black", "bright_red")


class Pen:
    """Writes one text, with a space between words where people put one."""

    def __init__(self, console: Console, level: str) -> None:
        self.console, self.level = console, level
        self.line: list[str] = []
        self.text = ""

    def write(self, word: str, component: int | None = None) -> None:
        """The next word; its component, from 0, is its colour."""
        self.line.append(word)
        text = readable(self.line, self.level)
        new = text[len(self.text) :]
        if component is not None and word != EOS and not self.console.color_system:
            new += f"/{component + 1}"
        self.console.out(new, style=_style(component), highlight=False, end="")
        # What follows the end of a line does not depend on the line.
        self.line, self.text = ([], "") if word == EOS else (self.line, text)

    def end(self) -> None:
        """Begin a new line, unless one has begun."""
        if self.line:
            self.console.out("", highlight=False)


def print_legend(console: Console, num_components: int) -> None:
    """Which colour is which component."""
    console.out("component", style="dim", highlight=False, end="")
    for component in range(num_components):
        console.out(f" {component + 1}", style=_style(component), highlight=False, end="")
    console.out("", highlight=False)


def _style(component: int | None) -> str | None:
    if component is None:
        return None
    turn, index = divmod(component, len(COLORS))
    return COLORS[index] + ("", " bold", " underline")[turn % 3]
