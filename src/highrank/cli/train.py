"""`highrank train [PRESET|TEXT]`: train a model, evaluate it, and show what came out."""

import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from highrank.cli.console import Threads, parse, plain_console, progress, unless_given
from highrank.config import RunConfig

if TYPE_CHECKING:
    from highrank.cli.options import Source
    from highrank.training.result import TrainingResult
    from highrank.training.session import Session


@dataclass(frozen=True, kw_only=True)
class Options:
    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: Annotated[Path | None, unless_given("a new run", "RUN")] = None
    """Resume this run from its last checkpoint."""
    budget: Annotated[str | None, unless_given("no limit", "TIME")] = None
    """Be done in time, tested and saved: 90s, 20m, 1.5h. Schedules then follow the clock. A run
    that is resumed keeps its budget."""
    tokenizer: Annotated[str | None, unless_given("words", "NAME")] = None
    """Tokens of your text: words, whitespace, characters, or subwords: bpe:8000, unigram:8000."""
    runs: Path = Path("runs")
    """Where runs go: runs/<preset>-<n>."""
    out: Annotated[Path | None, unless_given("the next free one in --runs", "PATH")] = None
    """The run's folder."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps."""
    threads: Threads = None
    """Threads of the matrix multiplies. Part of bit-for-bit equality."""
    test_batch_size: int = 1
    """Streams of the test at the end; 1 reads it in order, more are faster."""
    test: Annotated[bool, unless_given("it is done")] = True
    """Leave out the test at the end: `highrank evaluate` measures it later."""
    tensorboard: bool = False
    """Also write the numbers for TensorBoard, into the run's folder."""
    json: bool = False
    """Print the result as JSON."""


def run_train(arguments: list[str]) -> None:
    """Train a preset, `small` if none is given, or a text; options override what either has."""
    from highrank.cli.options import check_options, read_source
    from highrank.cli.training import show_training
    from highrank.report.training import run_text
    from highrank.run.folder import new_run
    from highrank.training.session import Session

    source = read_source(arguments, Options)
    checked, corpus, budget = check_options(options := _parse(source), source)
    name = source.preset if source.text is None else corpus.name
    text = run_text(checked, corpus, options.budget) + "\n" if options.resume is None else ""
    folder = options.resume or options.out or new_run(options.runs, name)
    plain_console(stderr=True).print(f"{text}Run: {folder}")
    with closing(Session(checked, folder)) as session:
        show_training(session, corpus, _train(session, options, budget), options.json)


def _parse(source: "Source") -> Options:
    """The options, with the configuration's values where there are none."""
    from highrank.cli.options import plain_config, with_own_options

    options = parse(
        Options,
        prog=f"highrank train {source.preset}",
        description=f"Train a language model, starting from the preset {source.preset}.\n\n"
        "Another preset comes first: highrank train ptb-mos; see highrank presets\n\n"
        "Or your own text does: highrank train my.txt",
        default=Options(config=with_own_options(source.default, source.options)),
        args=source.options,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
    return replace(options, config=plain_config(options.config))


def _train(session: "Session", options: Options, budget: float | None) -> "TrainingResult":
    """Train and test; a signal ends the command once the run is saved, a divergence at once."""
    from highrank.cli.console import training_progress
    from highrank.cli.options import resume_command
    from highrank.training.log import tensorboard_writer
    from highrank.training.result import Interrupted, set_budget, train_and_test
    from highrank.training.trainer import Diverged

    test, is_tested = session.corpus.split("test"), options.test
    console = plain_console(stderr=True)
    if budget is not None:
        found = set_budget(session, budget, test if is_tested else None, options.test_batch_size)
        if found is not None:
            is_tested = False
            console.print(
                f"The test would take about {found:.0f} s of {budget:g} s and is left out: "
                "`highrank evaluate` measures it later, a larger --test-batch-size is faster."
            )
    if options.tensorboard:
        session.on_event = tensorboard_writer(session.folder, session.trainer.num_steps)
    try:
        text, size = test if is_tested else None, options.test_batch_size
        return train_and_test(session, text, size, training_progress, progress)
    except Diverged as error:
        console.print(f"highrank: {error} {error.advice}")
        sys.exit(3)
    except Interrupted as error:
        where = "Interrupted in the test at the end. " if error.is_in_test else ""
        console.print(f"{where}Saved. Resume with: {resume_command(options, session.folder)}")
        sys.exit(128 + error.number)
