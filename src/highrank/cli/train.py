"""`highrank train [PRESET]`: train a model, evaluate it, and show what came out."""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from highrank import presets
from highrank.cli.console import (
    as_json,
    plain_console,
    progress,
    training_progress,
    unless_given,
)
from highrank.cli.head_options import plain_config, with_head_options
from highrank.config import RunConfig

if TYPE_CHECKING:
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
    threads: Annotated[int | None, unless_given("all cores", "INT")] = None
    """Threads of the matrix multiplies. Part of bit-for-bit equality."""
    tensorboard: bool = False
    """Also write the numbers for TensorBoard, into the run's folder."""
    json: bool = False
    """Print the result as JSON."""


def run_train(arguments: list[str]) -> None:
    """The command itself. The preset comes first, `small` if there is none."""
    named = bool(arguments) and not arguments[0].startswith("-")
    preset = arguments[0] if named else "small"
    config = with_head_options(_default_config(preset, arguments), arguments)
    options = tyro.cli(
        Options,
        prog=f"highrank train {preset}",
        description=f"Train a language model, starting from the preset {preset}.\n\n"
        "Another preset comes first: highrank train ptb-mos; see highrank presets",
        default=Options(config=config),
        args=arguments[named:],
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
    options = replace(options, config=plain_config(options.config))
    if named and options.resume is not None:
        raise ValueError(f"--resume must come without a preset, got {preset}")
    _train(options, preset)


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
    from highrank.training.log import tensorboard_writer
    from highrank.training.loop import Run
    from highrank.training.result import finish
    from highrank.training.trainer import Diverged

    corpus, budget = _checked(options)
    folder = options.resume or options.out or new_run(options.runs, preset)
    console = plain_console(stderr=True)
    console.print(f"Run: {folder}")
    device = options.device
    with training_progress() as show:
        run = Run(options.config, corpus, folder, budget=budget, device=device, on_progress=show)
        if options.tensorboard:
            run.on_event = tensorboard_writer(folder, run.trainer.step)
        try:
            outcome = run.go()
        except Diverged as error:
            print(f"highrank: {error} {error.advice}", file=sys.stderr)
            sys.exit(3)
    saved = f"Saved. Resume with: {_resume_command(options, folder)}"
    if outcome.reason == "interrupted":
        console.print(saved)
        sys.exit(130)
    try:
        result = finish(run, corpus.split("test"), outcome, progress)
    except KeyboardInterrupt:
        console.print(f"Interrupted in the test at the end. {saved}")
        sys.exit(130)
    _show(run, corpus, result, options.json)


def _checked(options: Options) -> "tuple[Corpus, float | None]":
    """Find mistakes before a folder is made. Returns the corpus and the seconds to train for."""
    import torch

    from highrank.build import build_model, check_config
    from highrank.environment import check_device, set_threads
    from highrank.training.budget import parse_duration, without_test
    from highrank.training.log import check_tensorboard

    budget = None if options.budget is None else parse_duration(options.budget)
    if options.tensorboard:
        check_tensorboard()
    set_threads(options.threads)
    corpus = _corpus(options.config.corpus)
    check_config(options.config, len(corpus.split("train")), len(corpus.split("valid")))
    check_device(options.device)
    with torch.device("meta"):
        build_model(options.config, len(corpus.vocabulary))
    if budget is None:
        return corpus, None
    model = build_model(options.config, len(corpus.vocabulary)).to(options.device)
    return corpus, without_test(budget, model, corpus.split("test"))


def _corpus(name: str) -> "Corpus":
    """A prepared corpus; the default one needs no download, so it is prepared on the way."""
    from highrank.data.catalog import corpus_folder, find_corpus
    from highrank.data.prepare import prepare_known

    if name == "sotu" and not corpus_folder(name).exists():
        with progress("Preparing the State of the Union addresses") as on_progress:
            return prepare_known(name, on_progress=on_progress).corpus
    return find_corpus(name)


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
        f"Other perplexities: highrank evaluate {folder} --help"
    )


def _resume_command(options: Options, folder: Path) -> str:
    given = {"budget": options.budget, "threads": options.threads}
    if options.device != "cpu":
        given["device"] = options.device
    parts = [f"--{name} {value}" for name, value in given.items() if value is not None]
    parts += ["--tensorboard"] if options.tensorboard else []
    return " ".join([f"highrank train --resume {shlex.quote(str(folder))}", *parts])
