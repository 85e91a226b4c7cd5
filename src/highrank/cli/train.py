"""`highrank train [PRESET|TEXT]`: train a model, evaluate it, and show what came out."""

import shlex
import signal
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from highrank import presets
from highrank.cli.console import (
    Threads,
    as_json,
    did_you_mean,
    plain_console,
    progress,
    training_progress,
    unless_given,
)
from highrank.cli.head_options import plain_config, with_head_options
from highrank.config import RunConfig
from highrank.presets.small import small_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from highrank.data.corpus import Corpus
    from highrank.training.loop import Run
    from highrank.training.result import TrainingResult

# Below 1, as people read samples; `highrank generate` has all settings.
TEMPERATURE, NUM_SAMPLES, NUM_TOKENS = 0.8, 3, 60


@dataclass(frozen=True, kw_only=True)
class Options:
    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: Annotated[Path | None, unless_given("a new run", "RUN")] = None
    """Resume this run from its last checkpoint."""
    budget: Annotated[str | None, unless_given("no limit", "TIME")] = None
    """Be done in time, tested and saved: 90s, 20m, 1.5h. Schedules then follow the clock. A run
    that is resumed keeps its budget."""
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
    """The command itself. First comes a preset or the path of a text; the preset `small` if none.

    An option overrides what the preset has, or what is chosen for the text.
    """
    first = arguments[0] if arguments and not arguments[0].startswith("-") else None
    is_text = first is not None and first not in presets.PRESETS
    if first is not None and is_text:
        _check_text(first)
    preset = "small" if first is None or is_text else first
    rest = arguments[first is not None :]
    default = _default_config(preset, rest)
    options = _parsed(rest, default, preset)
    if first is not None and options.resume is not None:
        raise ValueError(f"--resume must come without a preset or a text, got {first}")
    if first is None or not is_text:
        _train(_with_prepared_corpus(options), preset)
        return
    if options.config.corpus != default.corpus:
        raise ValueError(f"--corpus must come without a text, got {first}")
    corpus = _prepared(Path(first))
    num_train = corpus.header.splits["train"].num_tokens
    options = _parsed(rest, small_for(_corpus_option(corpus), num_train), preset)
    _print_choice(options, corpus)
    _train(options, corpus.name)


def _check_text(path: str) -> None:
    """Raise unless there is something at the path that can be a text."""
    from highrank.data.catalog import CATALOG, prepared_folder
    from highrank.run import is_run

    if not Path(path).exists():
        is_corpus = path in CATALOG or prepared_folder(path) is not None
        guess = f": did you mean --corpus {path}?" if is_corpus else ""
        guess = guess or did_you_mean(path, presets.PRESETS)
        raise ValueError(
            "the first argument must be the path of a text or a preset of `highrank presets`, got "
            f"{path!r}{guess}"
        )
    if is_run(Path(path)):
        raise ValueError(f"{path} is a run: resume it with `highrank train --resume {path}`")


def _parsed(arguments: list[str], default: RunConfig, preset: str) -> Options:
    """The options, with the configuration's values where there are none."""
    options = tyro.cli(
        Options,
        prog=f"highrank train {preset}",
        description=f"Train a language model, starting from the preset {preset}.\n\n"
        "Another preset comes first: highrank train ptb-mos; see highrank presets\n\n"
        "Or your own text does: highrank train my.txt",
        default=Options(config=with_head_options(default, arguments)),
        args=arguments,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
    return replace(options, config=plain_config(options.config))


def _default_config(preset: str, arguments: list[str]) -> RunConfig:
    """The preset's configuration or, with --resume RUN, the run's."""
    from highrank.run import read_config

    for index, argument in enumerate(arguments):
        if argument.startswith("--resume="):
            return read_config(Path(argument.removeprefix("--resume=")))
        if argument == "--resume" and index + 1 < len(arguments):
            return read_config(Path(arguments[index + 1]))
    return presets.get(preset)


def _train(options: Options, preset: str) -> None:
    from highrank.run import new_run
    from highrank.training.loop import Run

    corpus, budget, is_tested = _checked(options)
    folder = options.resume or options.out or new_run(options.runs, preset)
    console = plain_console(stderr=True)
    console.print(f"Run: {folder}")
    run = Run(options.config, corpus, folder, budget=budget, device=options.device)
    test = corpus.split("test") if is_tested else None
    with closing(run):
        result = _trained(run, test, options, console)
    _show(run, corpus, result, options.json)


def _trained(
    run: "Run", test: "NDArray[np.integer] | None", options: Options, console: "Console"
) -> "TrainingResult":
    from highrank.training.log import tensorboard_writer
    from highrank.training.result import finish
    from highrank.training.signals import listening, stop
    from highrank.training.trainer import Diverged

    if options.tensorboard:
        run.on_event = tensorboard_writer(run.folder, run.trainer.step)
    with training_progress() as run.on_progress:
        try:
            outcome = run.go()
        except Diverged as error:
            print(f"highrank: {error} {error.advice}", file=sys.stderr)
            sys.exit(3)
    saved = f"Saved. Resume with: {_resume_command(options, run.folder)}"
    if outcome.reason == "interrupted":
        console.print(saved)
        sys.exit(128 + (run.stop_signal or signal.SIGINT))
    try:
        with listening(stop):
            return finish(run, test, outcome, progress, options.test_batch_size)
    except KeyboardInterrupt as error:
        console.print(f"Interrupted in the test at the end. {saved}")
        sys.exit(128 + (error.args or (signal.SIGINT,))[0])


def _checked(options: Options) -> "tuple[Corpus, float | None, bool]":
    """Find mistakes before a folder is made.

    Returns the corpus, the seconds to train for, and whether the test fits into the budget.
    """
    from highrank.build import build_model, check_config, check_size, check_streams
    from highrank.environment import check_device, set_threads
    from highrank.training.budget import LARGEST_TEST, parse_duration, seconds_of_test
    from highrank.training.log import check_tensorboard

    budget = None if options.budget is None else parse_duration(options.budget)
    if options.tensorboard:
        check_tensorboard()
    set_threads(options.threads)
    corpus, test_batch_size = _corpus(options), options.test_batch_size
    check_config(options.config, len(corpus.split("train")), len(corpus.split("valid")))
    test = corpus.split("test")
    if options.test:
        check_streams("test-batch-size", test_batch_size, len(test), 2, "test")
    check_device(options.device)
    check_size(options.config, len(corpus.vocabulary))
    if budget is None or not options.test:
        return corpus, budget, options.test
    model = build_model(options.config, len(corpus.vocabulary)).to(options.device)
    seconds = seconds_of_test(model, test, test_batch_size)
    if seconds <= LARGEST_TEST * budget:
        return corpus, budget - seconds, True
    plain_console(stderr=True).print(
        f"The test would take about {seconds:.0f} s of {budget:g} s and is left out: "
        "`highrank evaluate` measures it later, a larger --test-batch-size is faster."
    )
    return corpus, budget, False


def _corpus(options: Options) -> "Corpus":
    """A prepared corpus; the default one needs no download, so it is prepared on the way."""
    from highrank.data.catalog import corpus_folder, find_corpus
    from highrank.data.prepare import prepare_known
    from highrank.run import CORPUS_FILE, read_corpus

    name = options.config.corpus
    if options.resume is not None and (options.resume / CORPUS_FILE).exists():
        return read_corpus(options.resume, options.config).found
    if name == "sotu" and not corpus_folder(name).exists():
        with progress("Preparing the State of the Union addresses") as on_progress:
            return prepare_known(name, on_progress=on_progress).corpus
    return find_corpus(name)


def _with_prepared_corpus(options: Options) -> Options:
    """With --corpus PATH of a text, its corpus instead."""
    from highrank.data.catalog import CATALOG, prepared_folder

    name = options.config.corpus
    is_prepared = name in CATALOG or prepared_folder(name) is not None
    if options.resume is not None or is_prepared or not Path(name).exists():
        return options
    corpus = _corpus_option(_prepared(Path(name)))
    return replace(options, config=replace(options.config, corpus=corpus))


def _prepared(path: Path) -> "Corpus":
    """The corpus in a folder, or of a text, which is prepared unless it was."""
    from highrank.data.corpus import HEADER_FILE, load_corpus
    from highrank.data.prepare import find_or_prepare

    if (path / HEADER_FILE).is_file():
        return load_corpus(path)
    with progress(f"Preparing {path}") as on_progress:
        return find_or_prepare(path, on_progress=on_progress).corpus


def _corpus_option(corpus: "Corpus") -> str:
    """Its name or, if it is not among the user's prepared corpora, its folder."""
    from highrank.data.catalog import corpus_folder

    folder = corpus.path.absolute()
    return corpus.name if folder == corpus_folder(corpus.name).absolute() else str(folder)


def _print_choice(options: Options, corpus: "Corpus") -> None:
    """What the text became, and what is going to be trained on it."""
    import torch

    from highrank.build import build_model
    from highrank.heads import head_arguments

    config = options.config
    with torch.device("meta"):
        model = build_model(config, len(corpus.vocabulary))
    size = sum(parameter.numel() for parameter in model.parameters())
    head, epochs = config.head.kind, config.train.epochs
    if "num_components" in head_arguments(head):
        head += f" with K = {config.head.num_components}"
    sizes = "-".join(map(str, config.model.hidden_sizes))
    parameters = f"{size / 1e6:.1f} million" if size >= 1e5 else f"{size:,}"
    length = f"{epochs} epoch{'' if epochs == 1 else 's'}"
    if options.budget is None:
        length += ". --budget 10m ends in time, --help lists all options."
    else:
        length += f" at most, in {options.budget}. --help lists all options."
    plain_console(stderr=True).print(
        f"Corpus {corpus.name}: {corpus.header.splits['train'].num_tokens:,} tokens "
        f"({corpus.header.recipe.tokenizer}) to train on, {len(corpus.vocabulary):,} distinct, in "
        f"{corpus.path}\n"
        f"Preset small: AWD-LSTM {sizes}, head {head}, {parameters} parameters; {length}"
    )


def _show(run: "Run", corpus: "Corpus", result: "TrainingResult", json: bool) -> None:
    """The result and three samples; the learning curve goes to the run's folder."""
    from highrank.cli.console import print_samples
    from highrank.generation import Sampling, stream
    from highrank.report.training import learning_curve, training_summary
    from highrank.run import load

    learning_curve(run.log.read(), run.folder / "learning-curve.png")
    if json:
        print(as_json(result.as_json(), indent=2))
        return
    console, folder = plain_console(), shlex.quote(str(run.folder))
    console.print(training_summary(result, run.trainer.config))
    console.print(f"Samples at temperature {TEMPERATURE}:")
    model, vocabulary = load(run.folder, str(run.trainer.device))
    sampling = Sampling(temperature=TEMPERATURE)
    steps = stream(model, vocabulary, (), sampling, num_tokens=NUM_TOKENS, num_samples=NUM_SAMPLES)
    print_samples(console, corpus.level, steps, NUM_SAMPLES)
    console.print(
        f"More of it: highrank generate {folder} --temperature {TEMPERATURE}\n"
        f"Other perplexities: highrank evaluate {folder} --all"
    )


def _resume_command(options: Options, folder: Path) -> str:
    given = {"budget": options.budget, "threads": options.threads}
    if options.device != "cpu":
        given["device"] = options.device
    if options.test_batch_size != 1:
        given["test-batch-size"] = options.test_batch_size
    parts = [f"--{name} {value}" for name, value in given.items() if value is not None]
    parts += ["--tensorboard"] if options.tensorboard else []
    parts += [] if options.test else ["--no-test"]
    return " ".join([f"highrank train --resume {shlex.quote(str(folder))}", *parts])
