"""`highrank train [PRESET]`: parse, train, and say what came out."""

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from highrank import presets
from highrank.cli.duration import seconds
from highrank.cli.progress import progress
from highrank.cli.training_bar import training_bar
from highrank.config import RunConfig

if TYPE_CHECKING:
    from highrank.data.corpus import Corpus
    from highrank.evaluation.static import Evaluation
    from highrank.training.loop import Outcome, Run

# Of the test text, to find out how long the whole will take.
TIMED_TOKENS = 500


@dataclass(frozen=True, kw_only=True)
class Options:
    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: Path | None = None
    """Go on with this run, from its last checkpoint."""
    budget: str | None = None
    """Be done in time, tested and saved: 90s, 20m, 1.5h. Schedules then follow the clock."""
    runs: Path = Path("runs")
    """Where runs go: runs/<preset>-<n>."""
    out: Path | None = None
    """The run's folder, if it is not to be the next free one."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps."""
    threads: int | None = None
    """Threads of the matrix multiplies; all cores if not given. Part of bit-for-bit equality."""
    tensorboard: bool = False
    """Also write the numbers for TensorBoard, into the run's folder."""
    json: bool = False
    """Print the result as JSON."""


def train() -> None:
    """Train a language model: `highrank train [PRESET] [options]`; see `highrank presets`."""


def run_train(arguments: list[str]) -> None:
    """The command itself. The preset comes first, `small` if there is none."""
    named = bool(arguments) and not arguments[0].startswith("-")
    preset = arguments[0] if named else "small"
    options = tyro.cli(
        Options,
        prog=f"highrank train {preset}",
        description=f"Train a language model, starting from the preset {preset}. The preset comes "
        f"first: {', '.join(presets.PRESETS)}.",
        default=Options(config=_default_config(preset, arguments)),
        args=arguments[named:],
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff),
    )
    if named and options.resume is not None:
        raise ValueError(f"--resume must come without a preset, got {preset}")
    _train(options, preset)


def _default_config(preset: str, arguments: list[str]) -> RunConfig:
    """The preset's configuration or, with --resume RUN, the run's."""
    from highrank.training.directory import read_config

    for index, argument in enumerate(arguments):
        if argument.startswith("--resume="):
            return read_config(Path(argument.removeprefix("--resume=")))
        if argument == "--resume" and index + 1 < len(arguments):
            return read_config(Path(arguments[index + 1]))
    return presets.get(preset)


def _train(options: Options, preset: str) -> None:
    from highrank.training.directory import new_run
    from highrank.training.loop import Run
    from highrank.training.tensorboard import tensorboard_writer
    from highrank.training.trainer import Diverged

    corpus, budget = _check(options)
    folder = options.resume or options.out or new_run(options.runs, preset)
    console = Console(stderr=True, highlight=False)
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
            print(f"highrank: {error}", file=sys.stderr)
            sys.exit(3)
    if outcome.reason == "interrupted":
        console.print(f"Saved. Go on with: {_command_to_go_on(options, folder)}")
        sys.exit(130)
    valid, test = _evaluate(run, corpus, outcome)
    if options.json:
        print(json.dumps(_as_json(run, outcome, valid, test), indent=2))
    else:
        _tell(run, outcome, valid, test)


def _check(options: Options) -> tuple["Corpus", float | None]:
    """Find mistakes before a folder is made. Returns the corpus and the seconds to train for."""
    import torch

    from highrank.build import build_model
    from highrank.training.check import check_config
    from highrank.training.tensorboard import check_tensorboard

    budget = None if options.budget is None else seconds(options.budget)
    if options.tensorboard:
        check_tensorboard()
    if options.threads is not None:
        if options.threads < 1:
            raise ValueError(f"threads must be at least 1, got {options.threads}")
        torch.set_num_threads(options.threads)
    corpus = _corpus(options.config.corpus)
    check_config(options.config, len(corpus.split("train")), len(corpus.split("valid")))
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch has here, got {reason}") from None
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
    start = time.monotonic()
    evaluate(model, piece, num_columns=1)
    return (time.monotonic() - start) * len(test) / len(piece)


def _corpus(name: str) -> "Corpus":
    """A prepared corpus; the default one needs no download, so it is prepared on the way."""
    from highrank.data.cache import corpus_folder
    from highrank.data.corpus import find_corpus
    from highrank.data.prepare import prepare_known

    if name == "sotu" and not corpus_folder(name).exists():
        with progress("Preparing the State of the Union addresses") as on_progress:
            return prepare_known(name, on_progress=on_progress).corpus
    return find_corpus(name)


def _command_to_go_on(options: Options, folder: Path) -> str:
    given = {"budget": options.budget, "threads": options.threads}
    if options.device != "cpu":
        given["device"] = options.device
    words = [f"--{name} {value}" for name, value in given.items() if value is not None]
    words += ["--tensorboard"] if options.tensorboard else []
    return " ".join([f"highrank train --resume {folder}", *words])


def _evaluate(
    run: "Run", corpus: "Corpus", outcome: "Outcome"
) -> tuple["Evaluation", "Evaluation"]:
    """Of the best model: on valid as it was when it was saved, and on test. Draws the curve."""
    from highrank.build import load
    from highrank.evaluation.static import Evaluation, evaluate
    from highrank.reports.training import learning_curve

    num_columns = run.trainer.config.valid_columns
    num_tokens = (len(run.valid) // num_columns - 1) * num_columns
    valid = Evaluation(outcome.best_valid_loss, num_tokens)
    model, _ = load(run.folder, str(run.trainer.device))
    with progress("Evaluating on test") as on_progress:
        test = evaluate(model, corpus.split("test"), num_columns=1, on_progress=on_progress)
    if run.log.read()[-1]["event"] != "end":
        run.note(event="end", valid_loss=valid.nats, test_loss=test.nats)
        run.save()
    learning_curve(run.log.read(), run.folder / "learning-curve.png")
    return valid, test


def _as_json(
    run: "Run", outcome: "Outcome", valid: "Evaluation", test: "Evaluation"
) -> dict[str, object]:
    return {
        "run": str(run.folder),
        **dataclasses.asdict(outcome),
        "num_parameters": sum(p.numel() for p in run.trainer.model.parameters()),
        "valid": {"perplexity": valid.perplexity, **valid._asdict()},
        "test": {"perplexity": test.perplexity, **test._asdict()},
    }


def _tell(run: "Run", outcome: "Outcome", valid: "Evaluation", test: "Evaluation") -> None:
    """Perplexities, files and three samples."""
    from highrank.build import load
    from highrank.generation import generate

    console = Console(highlight=False, soft_wrap=True)
    for split, found, num_columns in (
        ("valid", valid, run.trainer.config.valid_columns),
        ("test ", test, 1),
    ):
        console.print(
            f"{split} perplexity {found.perplexity:.2f} (static, {num_columns} "
            f"{'column' if num_columns == 1 else 'columns'}, {found.num_tokens:,} tokens "
            f"predicted, {found.nats:.4f} nats each)"
        )
    console.print(
        f"The run is {outcome.reason}: {outcome.num_tokens:,} tokens in {outcome.seconds:.0f} s.\n"
        f"  {run.folder}/model.safetensors     the best model; highrank.load reads it\n"
        f"  {run.folder}/metrics.jsonl         all numbers\n"
        f"  {run.folder}/learning-curve.png    a picture of them"
    )
    console.print("It writes:")
    model, vocabulary = load(run.folder, str(run.trainer.device))
    for sample in generate(model, vocabulary, num_words=40, num_samples=3, seed=0):
        console.print("  " + " ".join(sample).replace("<eos>", "\n ").strip(), markup=False)
