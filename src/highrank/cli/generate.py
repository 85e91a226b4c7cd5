"""The options of `highrank generate`, and the mistakes in them.

`highrank generate RUN`: text from a trained model, printed as it is written.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from highrank.cli.console import progress, unless_given
from highrank.cli.printer import has_colors, print_legend, print_samples
from highrank.run import LoadedRun, load_run

if TYPE_CHECKING:
    from highrank.generation import Sampling

if TYPE_CHECKING:
    from highrank.generation import Step


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


AS_USUAL = Options()


# The help shows each paragraph on a line of its own: none is longer than 80 columns.
def generate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    options: Annotated[Options, tyro.conf.arg(name="")] = AS_USUAL,
) -> None:
    """Write text with a trained model, such as `highrank generate runs/small-1`.

    Temperature and cuts act on the whole mixture, not on each of its components.

    Args:
        run: Folder of a run that `highrank train` made.
        options: How to write.
    """
    from highrank.data.text import check_known

    check(options)
    loaded = load_run(run, options.device)
    if options.show_components and loaded.config.head.kind != "mos":
        raise ValueError(
            "show-components must go with a mixture of softmaxes, got a run with "
            f"--head.kind {loaded.config.head.kind}"
        )
    prompt, unknown = _tokens(options.prompt, loaded), []
    if options.prompt.strip():
        unknown = check_known(prompt, loaded.vocabulary, "the prompt")
    if options.json:
        with progress("Writing") as on_progress:
            steps = _watched(_steps(loaded, prompt, options), options.words, on_progress)
        print(dumps(_as_json(loaded, prompt, unknown, steps), ensure_ascii=False))
    else:
        _write(loaded, prompt, unknown, options)


def _steps(loaded: LoadedRun, prompt: list[str], options: Options) -> "Iterator[Step]":
    from highrank.generation import stream

    return stream(
        loaded.model,
        loaded.vocabulary,
        prompt,
        options.sampling(),
        num_tokens=options.words,
        num_samples=options.samples,
        with_components=options.show_components,
    )


def _write(loaded: LoadedRun, prompt: list[str], unknown: list[str], options: Options) -> None:
    """The samples; unknown words of the prompt are told on stderr, apart from the text."""
    if unknown:
        text = f"Not in the vocabulary, read as <unk>: {', '.join(unknown)}"
        Console(stderr=True).out(text, highlight=False)
    console, steps = Console(), _steps(loaded, prompt, options)
    print_samples(console, loaded.corpus.level, steps, options.samples, prompt)
    if options.show_components and has_colors(console):
        print_legend(console, loaded.model.head.num_components)


def _watched(
    steps: "Iterable[Step]", num_words: int, on_progress: Callable[[float, str], None]
) -> list["Step"]:
    written = []
    for step in steps:
        written.append(step)
        on_progress(len(written) / num_words, "writing")
    return written


def _tokens(prompt: str, loaded: LoadedRun) -> list[str]:
    """The prompt's tokens; its last line has ended only if the prompt says so."""
    from highrank.data.text import tokenized_lines

    lines = [list(line) for line in tokenized_lines(prompt, loaded.corpus.header.recipe)]
    # A line without tokens may have no end.
    if lines and lines[-1] and not prompt.endswith("\n"):
        lines[-1].pop()
    return list(chain.from_iterable(lines))


def _as_json(
    loaded: LoadedRun, prompt: list[str], unknown: list[str], written: list["Step"]
) -> dict[str, Any]:
    from highrank.data.tokenizer import readable

    samples = []
    for index, words in enumerate(zip(*(step.tokens for step in written), strict=True)):
        sample: dict[str, Any] = {
            "text": readable([*prompt, *words], loaded.corpus.level),
            "words": words,
        }
        if written[0].components is not None:
            sample["components"] = [
                step.components[index] + 1 for step in written if step.components is not None
            ]
        samples.append(sample)
    return {"run": str(loaded.folder), "prompt": prompt, "unknown": unknown, "samples": samples}
