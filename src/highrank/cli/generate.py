"""`highrank generate RUN`: text from a trained model, printed as it is written."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from highrank.cli.pen import Pen, print_legend
from highrank.cli.progress import progress
from highrank.cli.run import LoadedRun, load_run

if TYPE_CHECKING:
    from highrank.generation import Step


def generate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    prompt: str = "",
    words: int = 100,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    show_components: bool = False,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Write text with a trained model: `highrank generate runs/small-1 --prompt "My fellow"`.

    At temperature 1 without cuts, a mixture draws one component and then a word of it, which is
    exact and takes one softmax a word. All other settings act on the whole mixture.

    Args:
        run: Folder of a run that `highrank train` made.
        prompt: How the text begins; it starts a line. Empty: the model begins.
        words: How many words each sample has (characters for a model of characters).
        samples: How many samples; they are written side by side.
        temperature: Divides log-probabilities: below 1 bolder, above 1 wilder, 0 always takes the
            likeliest word.
        top_k: Draw from so many likeliest words only.
        top_p: Draw from the fewest likeliest words that together have this probability.
        seed: The same seed writes the same text.
        show_components: Colour each word by the softmax most responsible for it. Where there are
            no colours, its number follows the word.
        device: As torch names it: cpu, cuda, mps.
        json: Print samples, words and unknown words of the prompt as JSON instead of text.
    """
    from highrank.data.reading import check_known
    from highrank.generation import Sampling, stream

    for name, count in (("words", words), ("samples", samples)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    loaded = load_run(run, device)
    if show_components and loaded.config.head.kind != "mos":
        raise ValueError(
            "show-components must go with a mixture of softmaxes, got a run with "
            f"--head.kind {loaded.config.head.kind}"
        )
    start = _tokens(prompt, loaded)
    unknown = check_known(start, loaded.vocabulary, "the prompt") if prompt.strip() else []
    steps = stream(
        loaded.model,
        loaded.vocabulary,
        start,
        sampling,
        num_words=words,
        num_samples=samples,
        with_components=show_components,
    )
    if json:
        with progress("Writing") as on_progress:
            written = _watched(steps, words, on_progress)
        print(dumps(_as_json(loaded, start, unknown, written), ensure_ascii=False))
        return
    if unknown:
        text = f"Not in the vocabulary, read as <unk>: {', '.join(unknown)}"
        Console(stderr=True).out(text, highlight=False)
    _print(loaded, start, steps, samples)
    if show_components and Console().color_system:
        print_legend(Console(), loaded.model.head.num_components)


def _print(
    loaded: LoadedRun, start: Sequence[str], steps: "Iterable[Step]", num_samples: int
) -> None:
    """The first sample as its words come; the others, which grew beside it, when it has ended."""
    console = Console()
    written: list[Step] = []
    for index in range(num_samples):
        if num_samples > 1:
            console.out(f"--- {index + 1}", style="dim", highlight=False)
        pen = Pen(console, loaded.corpus.level)
        for word in start:
            pen.write(word)
        for step in steps if index == 0 else written:
            if index == 0:
                written.append(step)
            component = None if step.components is None else step.components[index]
            pen.write(step.words[index], component)
        pen.end()


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
    from highrank.data.reading import tokenized_lines

    lines = [list(line) for line in tokenized_lines(prompt, loaded.corpus.header.recipe)]
    # A blank line may have no tokens, not even an end.
    if prompt.splitlines()[-1:] and prompt.splitlines()[-1].strip() and not prompt.endswith("\n"):
        lines[-1].pop()
    return list(chain.from_iterable(lines))


def _as_json(
    loaded: LoadedRun, start: list[str], unknown: list[str], written: list["Step"]
) -> dict[str, Any]:
    from highrank.data.tokenizer import readable

    samples = []
    for index, words in enumerate(zip(*(step.words for step in written), strict=True)):
        sample: dict[str, Any] = {
            "text": readable([*start, *words], loaded.corpus.level),
            "words": words,
        }
        if written[0].components is not None:
            sample["components"] = [
                step.components[index] + 1 for step in written if step.components is not None
            ]
        samples.append(sample)
    return {"run": str(loaded.folder), "prompt": start, "unknown": unknown, "samples": samples}
