"""The training of `highrank train`, and its end: numbers, samples, a learning curve, a page."""

import shlex
import sys
from typing import TYPE_CHECKING

from highrank.cli.console import as_json, plain_console, progress, training_progress
from highrank.cli.samples import print_samples
from highrank.files import write_atomically

if TYPE_CHECKING:
    from highrank.cli.train import Options
    from highrank.data.corpus import Corpus
    from highrank.generation import Step
    from highrank.training.result import TrainingResult
    from highrank.training.session import Session

# Below 1, as people read samples; `highrank generate` has all settings.
TEMPERATURE, NUM_SAMPLES, NUM_TOKENS = 0.8, 3, 60
PAGE_FILE = "report.html"


def train(session: "Session", options: "Options", budget: float | None) -> "TrainingResult":
    """Train and test; a signal ends the command once the run is saved, a divergence at once."""
    from highrank.cli.options import resume_command
    from highrank.training.log import tensorboard_writer
    from highrank.training.result import Interrupted, set_budget, train_and_test
    from highrank.training.trainer import Diverged

    test, is_tested = session.corpus.split("test"), options.test
    is_first = session.world.is_first
    console = plain_console(stderr=True, quiet=not is_first)
    if budget is not None:
        found = set_budget(session, budget, test if is_tested else None, options.test_batch_size)
        if found is not None:
            is_tested = False
            console.print(
                f"The test would take about {found:.0f} s of {budget:g} s and is left out: "
                "`highrank evaluate` measures it later, a larger --test-batch-size is faster."
            )
    if options.tensorboard and is_first:
        session.on_event = tensorboard_writer(session.folder, session.trainer.num_steps)
    try:
        text, size = test if is_tested else None, options.test_batch_size
        if not is_first:
            return train_and_test(session, text, size)
        return train_and_test(session, text, size, training_progress, progress)
    except Diverged as error:
        console.print(f"highrank: {error} {error.advice}")
        sys.exit(3)
    except Interrupted as error:
        where = "Interrupted in the test at the end. " if error.is_in_test else ""
        console.print(f"{where}Saved. Resume with: {resume_command(options, session.folder)}")
        sys.exit(128 + error.number)


def show_training(
    session: "Session", corpus: "Corpus", result: "TrainingResult", json: bool
) -> None:
    """Print the result and three samples; learning curve and page go to the run's folder."""
    from highrank.data.tokenizer import readable
    from highrank.generation import can_generate
    from highrank.report.formats import printable
    from highrank.report.run_page import run_page, samples_command
    from highrank.report.training import learning_curve, training_summary

    metrics = session.log.read()
    title = printable(f"Learning curve of {session.folder.name} on {corpus.name}")
    learning_curve(metrics, session.folder / "learning-curve.png", title)
    console, folder, steps = plain_console(), shlex.quote(str(session.folder)), []
    if json:
        print(as_json(result.as_json(), indent=2))
    else:
        console.print(training_summary(result, session.config))
    if can_generate(session.model):
        steps = _samples(session, corpus, json)
    drawn = zip(*(step.tokens for step in steps), strict=True)
    texts = [readable(tokens, corpus.level) for tokens in drawn]
    command = printable(shlex.join(["highrank", *sys.argv[1:]]))
    page = run_page(result, session.config, corpus, metrics, texts, TEMPERATURE, command)
    path = session.folder / PAGE_FILE
    write_atomically(path, lambda new: new.write_text(page, encoding="utf-8"))
    if json:
        return
    if steps:
        console.print(f"More of it: {samples_command(result.run, TEMPERATURE, corpus)}")
    console.print(
        f"Other perplexities: highrank evaluate {folder} --all --dynamic.segment 20\n"
        f"The page with curve, samples and settings: {path.absolute().as_uri()}"
    )


def _samples(session: "Session", corpus: "Corpus", is_quiet: bool) -> "list[Step]":
    """Draw the samples, and print them unless it is to be quiet."""
    from highrank.data.vocabulary import UNK
    from highrank.generation import Sampling, stream
    from highrank.run.loading import load

    sampling = Sampling(temperature=TEMPERATURE, no_unk=True)
    # The session's own model may be in shards.
    model, vocabulary = load(session.folder, str(session.trainer.device))
    steps = stream(model, vocabulary, (), sampling, num_tokens=NUM_TOKENS, num_samples=NUM_SAMPLES)
    if is_quiet:
        return list(steps)
    console = plain_console()
    without = ", without <unk>" if UNK in vocabulary else ""
    console.print(f"Samples at temperature {TEMPERATURE}{without}:")
    return print_samples(console, corpus.level, steps, NUM_SAMPLES)
