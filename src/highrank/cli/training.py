"""The end of `highrank train`: its numbers, samples, a learning curve and a page."""

import shlex
from typing import TYPE_CHECKING

from highrank.cli.console import as_json, plain_console
from highrank.cli.samples import print_samples
from highrank.files import write_atomically

if TYPE_CHECKING:
    from highrank.data.corpus import Corpus
    from highrank.generation import Step
    from highrank.training.result import TrainingResult
    from highrank.training.session import Session

# Below 1, as people read samples; `highrank generate` has all settings.
TEMPERATURE, NUM_SAMPLES, NUM_TOKENS = 0.8, 3, 60
PAGE_FILE = "report.html"


def show_training(
    session: "Session", corpus: "Corpus", result: "TrainingResult", json: bool
) -> None:
    """Print the result and three samples; learning curve and page go to the run's folder."""
    from highrank.data.tokenizer import readable
    from highrank.generation import can_generate
    from highrank.report.run_page import run_page
    from highrank.report.training import learning_curve, training_summary

    metrics = session.log.read()
    learning_curve(metrics, session.folder / "learning-curve.png")
    console, folder, steps = plain_console(), shlex.quote(str(session.folder)), []
    if json:
        print(as_json(result.as_json(), indent=2))
    else:
        console.print(training_summary(result, session.config))
    if can_generate(session.model):
        steps = _samples(session, corpus, json)
    drawn = zip(*(step.tokens for step in steps), strict=True)
    texts = [readable(tokens, corpus.level) for tokens in drawn]
    page = run_page(result, session.config, corpus, metrics, texts, TEMPERATURE)
    path = session.folder / PAGE_FILE
    write_atomically(path, lambda new: new.write_text(page, encoding="utf-8"))
    if json:
        return
    if steps:
        options = f"--temperature {TEMPERATURE} --no-unk"
        console.print(f"More of it: highrank generate {folder} {options}")
    console.print(
        f"Other perplexities: highrank evaluate {folder} --all --dynamic.segment 20\n"
        f"The page with curve, samples and settings: {path.absolute().as_uri()}"
    )


def _samples(session: "Session", corpus: "Corpus", is_quiet: bool) -> "list[Step]":
    """Draw the samples, and print them unless it is to be quiet."""
    from highrank.generation import Sampling, stream

    sampling = Sampling(temperature=TEMPERATURE, no_unk=True)
    vocabulary = corpus.vocabulary
    with session.best_model() as model:
        steps = stream(
            model, vocabulary, (), sampling, num_tokens=NUM_TOKENS, num_samples=NUM_SAMPLES
        )
        if is_quiet:
            return list(steps)
        console = plain_console()
        console.print(f"Samples at temperature {TEMPERATURE}, without <unk>:")
        return print_samples(console, corpus.level, steps, NUM_SAMPLES)
