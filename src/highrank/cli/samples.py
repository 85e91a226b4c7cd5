"""Generated text in the terminal and as JSON."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from highrank.cli.console import progress
from highrank.report.formats import printable

if TYPE_CHECKING:
    from highrank.generation import Step

# Readable on black and on white; from the ninth on they repeat in bold, then underlined.
COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_black", "bright_red")


class Printer:
    """Prints one text, with a space between tokens where people put one."""

    def __init__(self, console: Console, level: str) -> None:
        self.console, self.level = console, level
        self.line: list[str] = []
        self.text = ""

    def print(self, token: str, component: int | None = None) -> None:
        """Print a token; its component, from 0, is its colour, or a number from 1 after it."""
        from highrank.data.tokenizer import readable
        from highrank.data.vocabulary import EOS

        space = " " if self.line else ""
        self.line.append(token)
        text = readable(self.line, self.level)
        new = text[len(self.text) :]
        if component is not None and token != EOS and not has_colors(self.console):
            # Signs stand apart, too: in no/1,/2 one cannot tell what the numbers are of.
            new = f"{space}{visible(token, self.level)}/{component + 1}"
        self.console.out(printable(new), style=_style(component), highlight=False, end="")
        # What follows the end of a line does not depend on the line.
        self.line, self.text = ([], "") if token == EOS else (self.line, text)

    def end(self) -> None:
        """Begin a new line, unless one has begun."""
        if self.line:
            self.console.out("", highlight=False)


def visible(token: str, level: str) -> str:
    """A token with its spaces as ␣; bytes of a part of a character as the tokenizer writes them."""
    from highrank.data.tokenizer import readable

    text = readable([token], level) or token
    return "".join("␣" if sign.isspace() else sign for sign in text)


def print_samples(
    console: Console,
    level: str,
    steps: "Iterable[Step]",
    num_samples: int,
    prompt: Sequence[str] = (),
) -> "list[Step]":
    """Print the first sample as its tokens come, and the others when it has ended.

    Returns the steps.

    Args:
        level: of the corpus, word or char.
        steps: as `highrank.generation.stream` yields them.
    """
    written: list[Step] = []
    for index in range(num_samples):
        if num_samples > 1:
            console.out(f"--- {index + 1}", style="dim", highlight=False)
        printer = Printer(console, level)
        for token in prompt:
            printer.print(token)
        for step in steps if index == 0 else written:
            if index == 0:
                written.append(step)
            component = None if step.components is None else step.components[index]
            printer.print(step.tokens[index], component)
        printer.end()
    return written


def samples_json(
    steps: "Iterable[Step]", prompt: list[str], level: str, num_tokens: int
) -> list[dict[str, Any]]:
    """Each sample's text, tokens and components, for JSON."""
    from highrank.data.tokenizer import readable

    written: list[Step] = []
    with progress("Generating") as on_progress:
        for step in steps:
            written.append(step)
            on_progress(len(written) / num_tokens, "generating")
    samples: list[dict[str, Any]] = []
    for index, tokens in enumerate(zip(*(step.tokens for step in written), strict=True)):
        samples.append({"text": readable([*prompt, *tokens], level), "tokens": tokens})
        components = [step.components[index] + 1 for step in written if step.components is not None]
        if components:
            samples[-1]["components"] = components
    return samples


def print_words(console: Console, words: Iterable[tuple[str, int]]) -> None:
    """Print words on a line, each with its component, from 0: its colour, or a number after it."""
    for place, (word, component) in enumerate(words):
        text = word if has_colors(console) else f"{word}/{component + 1}"
        space = " " if place else ""
        console.out(space + printable(text), style=_style(component), highlight=False, end="")
    console.out("", highlight=False)


def has_colors(console: Console) -> bool:
    """Whether there is a terminal that has colours, and nobody has set NO_COLOR."""
    return console.color_system is not None and not console.no_color


def print_legend(console: Console, names: Sequence[str]) -> None:
    """Print the colour of each component, or, without colours, the numbers of those with names."""
    if has_colors(console):
        console.out("component", style="dim", highlight=False, end="")
        for component, name in enumerate(names):
            console.out(f" {name}", style=_style(component), highlight=False, end="")
        console.out("", highlight=False)
    elif names[0] != "1":
        text = ", ".join(f"/{number} {name}" for number, name in enumerate(names, 1))
        Console(stderr=True).out(text, highlight=False)


def _style(component: int | None) -> str | None:
    if component is None:
        return None
    turn, index = divmod(component, len(COLORS))
    return COLORS[index] + ("", " bold", " underline")[turn % 3]
