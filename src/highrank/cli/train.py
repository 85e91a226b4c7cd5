"""The options of `highrank train`, and the mistakes in them.

What a run has come to: evaluated, drawn, told.

What is seen while a model trains: a bar on a terminal, a line now and then elsewhere.

`highrank train [PRESET]`: parse, train, and say what came out.
"""

import dataclasses
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from highrank import presets
from highrank.cli.console import progress, unless_given
from highrank.cli.printer import print_samples
from highrank.config import RunConfig
from highrank.environment import set_threads
from highrank.training.budget import parse_duration

if TYPE_CHECKING:
    from highrank.data.corpus import Corpus

if TYPE_CHECKING:
    from highrank.data.corpus import Corpus
    from highrank.evaluation.static import Evaluation
    from highrank.training.loop import Outcome, Run

if TYPE_CHECKING:
    from highrank.training.loop import Progress


# Of the test text, to find out how long the whole will take.
TIMED_TOKENS = 500


@dataclass(frozen=True, kw_only=True)
class Options:
    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: Annotated[Path | None, unless_given("a new run", "RUN")] = None
    """Go on with this run, from its last checkpoint."""
    budget: Annotated[str | None, unless_given("no limit", "TIME")] = None
    """Be done in time, tested and saved: 90s, 20m, 1.5h. Schedules then follow the clock. A run
    that goes on keeps its budget."""
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


def checked(options: Options) -> tuple["Corpus", float | None]:
    """Find mistakes before a folder is made. Returns the corpus and the seconds to train for."""
    import torch

    from highrank.build import build_model, check_config
    from highrank.environment import check_device
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
    test_seconds = _time_test(options, corpus)
    if budget <= test_seconds:
        raise ValueError(
            f"budget must be longer than the test, which takes about {test_seconds:.0f} s here, "
            f"got {options.budget}"
        )
    return corpus, budget - test_seconds


def _time_test(options: Options, corpus: "Corpus") -> float:
    """About how many seconds the test at the end will take, from a piece of it."""
    from highrank.build import build_model
    from highrank.evaluation.static import evaluate

    model = build_model(options.config, len(corpus.vocabulary)).to(options.device)
    test = corpus.split("test")
    piece = test[:TIMED_TOKENS]
    # What is slow the first time is not slow in the test.
    evaluate(model, piece[:20], batch_size=1)
    start = time.monotonic()
    evaluate(model, piece, batch_size=1)
    return (time.monotonic() - start) * len(test) / len(piece)


def _corpus(name: str) -> "Corpus":
    """A prepared corpus; the default one needs no download, so it is prepared on the way."""
    from highrank.data.catalog import corpus_folder, find_corpus
    from highrank.data.prepare import prepare_known

    if name == "sotu" and not corpus_folder(name).exists():
        with progress("Preparing the State of the Union addresses") as on_progress:
            return prepare_known(name, on_progress=on_progress).corpus
    return find_corpus(name)


# Below 1, as people read samples; `highrank generate` has all settings.
TEMPERATURE, NUM_SAMPLES = 0.8, 3


class Found(NamedTuple):
    """Of the best model."""

    valid: "Evaluation"
    """As it was when the model was saved."""
    test: "Evaluation"
    specialisation: float | None
    """Of the components on valid, in nats; None without a mixture of softmaxes."""


def evaluate_run(run: "Run", corpus: "Corpus", outcome: "Outcome") -> Found:
    """Evaluate the best model and draw the learning curve."""
    from highrank.analysis.components import specialisation
    from highrank.evaluation.static import Evaluation, evaluate
    from highrank.report.training import learning_curve
    from highrank.run import load

    batch_size = run.trainer.config.valid_batch_size
    num_tokens = (len(run.valid) // batch_size - 1) * batch_size
    valid = Evaluation(outcome.best_valid_loss, num_tokens)
    model, _ = load(run.folder, str(run.trainer.device))
    with progress("Evaluating on test") as on_progress:
        test = evaluate(model, corpus.split("test"), batch_size=1, on_progress=on_progress)
    if run.log.read()[-1]["event"] != "end":
        run.note(event="end", valid_loss=valid.nats, test_loss=test.nats)
        run.save()
    learning_curve(run.log.read(), run.folder / "learning-curve.png")
    return Found(valid, test, specialisation(model, run.valid))


def _parting(nats: float, run: "Run") -> str:
    """Whether the components have parted, and what to do if not."""
    from highrank.analysis.components import SPECIALISED

    text = f"Which component speaks tells {nats:.3f} nats about the next word (start of valid)."
    if nats >= SPECIALISED:
        return f"{text} More: highrank audit {_quoted(run)}"
    earlier = "grows earlier (--head.grow-at), " if run.trainer.config.head.grow_at else ""
    return (
        f"{text} They have hardly parted: the model is close to one softmax. They may part if the "
        f"mixture {earlier}trains longer, or has smaller embeddings (--model.embedding-size)."
    )


def _quoted(run: "Run") -> str:
    return shlex.quote(str(run.folder))


def as_json(run: "Run", outcome: "Outcome", found: Found) -> dict[str, object]:
    return {
        "run": str(run.folder),
        **dataclasses.asdict(outcome),
        "num_parameters": sum(p.numel() for p in run.trainer.model.parameters()),
        "specialisation": found.specialisation,
        "valid": {"perplexity": found.valid.perplexity, **found.valid._asdict()},
        "test": {"perplexity": found.test.perplexity, **found.test._asdict()},
    }


def tell(run: "Run", corpus: "Corpus", outcome: "Outcome", found: Found) -> None:
    """Perplexities, files, whether components parted, and three samples."""
    from highrank.generation import Sampling, stream
    from highrank.run import load

    console = Console(highlight=False, soft_wrap=True, markup=False)
    for split, score, batch_size in (
        ("valid", found.valid, run.trainer.config.valid_batch_size),
        ("test ", found.test, 1),
    ):
        console.print(
            f"{split} perplexity {score.perplexity:.2f} (static, {batch_size} "
            f"{'column' if batch_size == 1 else 'columns'}, {score.num_tokens:,} tokens "
            f"predicted, {score.nats:.4f} nats each)"
        )
    console.print(
        f"The run is {outcome.reason}: {outcome.num_tokens:,} tokens in {outcome.seconds:.0f} s.\n"
        f"  {run.folder}/model.safetensors     the best model; highrank.load reads it\n"
        f"  {run.folder}/metrics.jsonl         all numbers\n"
        f"  {run.folder}/learning-curve.png    a picture of them"
    )
    head = run.trainer.config.head
    if found.specialisation is None and head.grow_at is not None and head.num_components > 1:
        console.print("It is one softmax: the run ended before the head could grow.")
    elif found.specialisation is not None:
        console.print(_parting(found.specialisation, run))
    console.print(f"It writes, at temperature {TEMPERATURE}:")
    model, vocabulary = load(run.folder, str(run.trainer.device))
    steps = stream(
        model,
        vocabulary,
        (),
        Sampling(temperature=TEMPERATURE),
        num_tokens=60,
        num_samples=NUM_SAMPLES,
    )
    print_samples(console, corpus.level, steps, NUM_SAMPLES)
    console.print(
        f"More of it: highrank generate {_quoted(run)} --temperature {TEMPERATURE}\n"
        f"Other perplexities: highrank evaluate {_quoted(run)} --help"
    )


SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def training_bar() -> Iterator[Callable[["Progress"], None]]:
    """Yield a function that shows progress on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("starting", total=1.0, numbers="", stage="train")

        def show(progress: "Progress") -> None:
            if progress.stage != bar.tasks[0].fields["stage"]:
                # A bar that was full would show no time left for ever.
                bar.reset(task, stage=progress.stage, numbers="")
            bar.update(
                task,
                completed=progress.fraction,
                description=f"{progress.stage} epoch {progress.epoch} step {progress.step}",
                numbers=_numbers(progress),
            )

        yield show


def _lines(console: Console) -> Callable[["Progress"], None]:
    last, valid = -math.inf, None

    def show(progress: "Progress") -> None:
        nonlocal last, valid
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES and progress.valid_loss == valid:
            return
        last, valid = now, progress.valid_loss
        console.print(
            f"{progress.fraction:4.0%} {progress.stage} epoch {progress.epoch} step "
            f"{progress.step}: {_numbers(progress)}",
            highlight=False,
            soft_wrap=True,
        )

    return show


def _numbers(progress: "Progress") -> str:
    """Perplexities: of training with dropout, of validation as the saved model will have it."""
    valid = "" if progress.valid_loss is None else f", valid {_perplexity(progress.valid_loss)}"
    train, speed = _perplexity(progress.train_loss), progress.tokens_per_second
    pace = "" if speed is None else f"; {speed:,.0f} tokens/s"
    return f"perplexity train {train}{valid}{pace}"


def _perplexity(loss: float) -> str:
    return f"{math.exp(min(loss, 700)):.4g}"


def train() -> None:
    """Train a language model: `highrank train [PRESET] [options]`; see `highrank presets`."""


def run_train(arguments: list[str]) -> None:
    """The command itself. The preset comes first, `small` if there is none."""
    named = bool(arguments) and not arguments[0].startswith("-")
    preset = arguments[0] if named else "small"
    options = tyro.cli(
        Options,
        prog=f"highrank train {preset}",
        description=f"Train a language model, starting from the preset {preset}.\n\n"
        "Another preset comes first: highrank train ptb-mos; see highrank presets",
        default=Options(config=_default_config(preset, arguments)),
        args=arguments[named:],
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
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
    from highrank.training.trainer import Diverged

    corpus, budget = checked(options)
    folder = options.resume or options.out or new_run(options.runs, preset)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"Run: {folder}")
    with training_bar() as show:
        run = Run(
            options.config,
            corpus,
            folder,
            budget=budget,
            device=options.device,
            on_progress=show,
        )
        if options.tensorboard:
            run.on_event = tensorboard_writer(folder, run.trainer.step)
        try:
            outcome = run.go()
        except Diverged as error:
            print(f"highrank: {error} {error.advice}", file=sys.stderr)
            sys.exit(3)
    go_on = f"Saved. Go on with: {_command_to_go_on(options, folder)}"
    if outcome.reason == "interrupted":
        console.print(go_on)
        sys.exit(130)
    try:
        found = evaluate_run(run, corpus, outcome)
    except KeyboardInterrupt:
        console.print(f"Interrupted in the test at the end. {go_on}")
        sys.exit(130)
    if options.json:
        print(json.dumps(as_json(run, outcome, found), indent=2))
    else:
        tell(run, corpus, outcome, found)


def _command_to_go_on(options: Options, folder: Path) -> str:
    given = {"budget": options.budget, "threads": options.threads}
    if options.device != "cpu":
        given["device"] = options.device
    words = [f"--{name} {value}" for name, value in given.items() if value is not None]
    words += ["--tensorboard"] if options.tensorboard else []
    return " ".join([f"highrank train --resume {shlex.quote(str(folder))}", *words])
