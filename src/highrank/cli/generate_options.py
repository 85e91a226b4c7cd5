"""The options of `highrank generate`, and the mistakes in them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from highrank.cli.option import unless_given

if TYPE_CHECKING:
    from highrank.generation import Sampling


# A text in several lines keeps its line breaks in the help: each is one line.
@dataclass(frozen=True, kw_only=True)
class Options:
    prompt: Annotated[str, tyro.conf.arg(help_behavior_hint="(default: the model begins)")] = ""
    """How the text begins; it starts a line."""
    words: int = 100
    """How many words each sample has (characters for a model of characters)."""
    samples: int = 1
    """How many samples; they are written side by side."""
    temperature: float = 1.0
    """Divides log-probabilities: below 1 bolder, above 1 wilder, 0 takes the likeliest word."""
    top_k: Annotated[int | None, unless_given("all", "INT")] = None
    """Draw from so many likeliest words only."""
    top_p: Annotated[float | None, unless_given("all words", "FLOAT")] = None
    """Draw from the fewest likeliest words that together have this probability."""
    seed: int = 0
    """The same seed writes the same text."""
    show_components: bool = False
    """Colour each word by the softmax most responsible for it; without colours: word/number."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps."""
    json: bool = False
    """Print samples, words and unknown words of the prompt as JSON instead of text."""

    def sampling(self) -> "Sampling":
        from highrank.generation import Sampling

        return Sampling(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed
        )


def check(options: Options) -> None:
    """Raise for numbers that cannot be."""
    for name, count in (("words", options.words), ("samples", options.samples)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if not 0 <= options.seed < 1 << 63:
        raise ValueError(f"seed must be between 0 and {(1 << 63) - 1}, got {options.seed}")
    options.sampling()
