"""`highrank generate RUN`: text from a trained model, printed token by token."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from highrank.cli.console import Threads, as_json, unless_given
from highrank.environment import set_threads

if TYPE_CHECKING:
    from highrank.heads import Head


# A help text in several lines keeps its line breaks: each is one line.
@dataclass(frozen=True, kw_only=True)
class Options:
    prompt: Annotated[str, unless_given("the model begins")] = ""
    """How the text begins; it starts a line."""
    num_tokens: int = 100
    """How many tokens each sample has: words, subwords or characters, as the model has them."""
    num_samples: int = 1
    """How many samples; they are generated side by side."""
    temperature: float = 1.0
    """Divides log-probabilities: below 1 bolder, above 1 wilder, 0 takes the likeliest token."""
    top_k: Annotated[int | None, unless_given("all", "INT")] = None
    """Draw from so many likeliest tokens only."""
    top_p: Annotated[float | None, unless_given("all tokens", "FLOAT")] = None
    """Draw from the fewest likeliest tokens that together have this probability."""
    seed: int = 0
    """The same seed gives the same text."""
    no_unk: bool = False
    """Never draw <unk>, which stands for all words outside the vocabulary."""
    show_components: bool = False
    """Colour each token by the softmax most responsible for it; without colours: token/number."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps."""
    threads: Threads = None
    """Threads of the matrix multiplies."""
    json: bool = False
    """Print samples, tokens and unknown tokens of the prompt as JSON instead of text."""


DEFAULTS = Options()


# The help shows each paragraph on a line of its own: none is longer than 80 columns.
def generate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    options: Annotated[Options, tyro.conf.arg(name="")] = DEFAULTS,
) -> None:
    """Generate text with a trained model, such as `highrank generate runs/small-1`.

    Temperature and cuts act on the whole mixture, not on each of its components.

    Args:
        run: Folder of a run or of a Hugging Face model, or the name of one on the hub.
        options: How to generate.
    """
    from highrank.cli.generate.huggingface import generate_foreign, is_foreign
    from highrank.cli.samples import print_legend, print_samples, samples_json
    from highrank.data.text import check_known
    from highrank.generation import Sampling, stream
    from highrank.predictor import prompt_tokens
    from highrank.run.loading import load_run

    sampling = Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        no_unk=options.no_unk,
    )
    set_threads(options.threads)
    # Under LC_ALL=C arguments are bytes in disguise; text is UTF-8, whatever the locale.
    text = os.fsencode(options.prompt).decode(errors="replace")
    if is_foreign(run):
        generate_foreign(run, text, sampling, options)
        return
    loaded = load_run(run, options.device)
    if options.show_components and not component_names(loaded.model.head):
        raise ValueError(
            "show-components must go with a mixture of softmaxes or a head with components, got a "
            f"run with --head.kind {loaded.config.head.kind}"
        )
    prompt, unknown = prompt_tokens(text, loaded.corpus.header.recipe), []
    if text.strip():
        unknown = check_known(prompt, loaded.vocabulary, "the prompt")
    steps = stream(
        loaded.model,
        loaded.vocabulary,
        prompt,
        sampling,
        num_tokens=options.num_tokens,
        num_samples=options.num_samples,
        with_components=options.show_components,
    )
    if options.json:
        samples = samples_json(steps, prompt, loaded.corpus.level, options.num_tokens)
        found = {"run": str(loaded.folder), "prompt": prompt, "unknown": unknown}
        print(as_json(found | {"samples": samples}))
    else:
        _warn_of(unknown)
        console = Console()
        print_samples(console, loaded.corpus.level, steps, options.num_samples, prompt)
        if options.show_components:
            print_legend(console, component_names(loaded.model.head))


def _warn_of(unknown: list[str]) -> None:
    """Say which words of the prompt the model does not know, beside what it generates."""
    from highrank.report.formats import printable

    if unknown:
        text = f"Not in the vocabulary, read as <unk>: {', '.join(unknown)}"
        Console(stderr=True).out(printable(text), highlight=False)


def component_names(head: "Head") -> list[str]:
    """Its softmaxes, or all of them as one and what stands beside; empty if it mixes none."""
    from highrank.heads import Composed, MixtureHead, MixtureOfContexts, Softmax

    if isinstance(head, Composed):
        return ["softmax", *head.beside]
    if isinstance(head, MixtureHead) and not isinstance(head, Softmax | MixtureOfContexts):
        return [str(k + 1) for k in range(head.num_components)]
    return []
