"""`highrank train [PRESET]`: parse, train, and say what came out."""

import sys
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
    from highrank.training.loop import Outcome, Run


@dataclass(frozen=True, kw_only=True)
class Options:
    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: Path | None = None
    """Go on with this run, from its last checkpoint."""
    budget: str | None = None
    """Stop in time, everything saved: 90s, 20m, 1.5h. Schedules then follow the clock."""
    runs: Path = Path("runs")
    """Where runs go: runs/<preset>-<n>."""
    out: Path | None = None
    """The run's folder, if it is not to be the next free one."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps."""
    threads: int | None = None
    """Threads of the matrix multiplies; all cores if not given. Part of bit-for-bit equality."""


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
    import torch

    from highrank.training.directory import new_run
    from highrank.training.loop import Run
    from highrank.training.trainer import Diverged

    budget = None if options.budget is None else seconds(options.budget)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    corpus = _corpus(options.config.corpus)
    _check(options, len(corpus.vocabulary))
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
        try:
            outcome = run.go()
        except Diverged as error:
            print(f"highrank: {error}", file=sys.stderr)
            sys.exit(3)
    if outcome.reason == "interrupted":
        console.print(f"Saved. Go on with: highrank train --resume {folder}")
        sys.exit(130)
    _tell(run, corpus, outcome)


def _check(options: Options, vocab_size: int) -> None:
    """Find mistakes before a folder is made: build the model without memory, ask for the device."""
    import torch

    from highrank.build import build_model

    with torch.device("meta"):
        build_model(options.config, vocab_size)
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch has here, got {reason}") from None


def _corpus(name: str) -> "Corpus":
    """A prepared corpus; the default one needs no download, so it is prepared on the way."""
    from highrank.data.cache import corpus_folder
    from highrank.data.corpus import find_corpus
    from highrank.data.prepare import prepare_known

    if name == "sotu" and not corpus_folder(name).exists():
        with progress("Preparing the State of the Union addresses") as on_progress:
            return prepare_known(name, on_progress=on_progress).corpus
    return find_corpus(name)


def _tell(run: "Run", corpus: "Corpus", outcome: "Outcome") -> None:
    """Perplexities, files, a picture and three samples."""
    from highrank.build import load
    from highrank.evaluation.static import evaluate
    from highrank.generation import generate
    from highrank.reports.training import learning_curve

    console = Console(highlight=False, soft_wrap=True)
    model, vocabulary = load(run.folder, str(run.trainer.device))
    found = {}
    for split, num_columns in (("valid", run.trainer.config.valid_columns), ("test", 1)):
        with progress(f"Evaluating on {split}") as on_progress:
            tokens = corpus.split(split)
            found[split] = evaluate(model, tokens, num_columns, on_progress=on_progress)
        console.print(
            f"{split:5} perplexity {found[split].perplexity:.2f} (static, {num_columns} columns, "
            f"{found[split].num_tokens:,} tokens predicted, {found[split].nats:.4f} nats each)"
        )
    run.log.write(event="end", **{f"{k}_loss": v.nats for k, v in found.items()})
    learning_curve(run.log.read(), run.folder / "learning-curve.png")
    console.print(
        f"The run is {outcome.reason}: {outcome.num_tokens:,} tokens in {outcome.seconds:.0f} s.\n"
        f"  {run.folder}/model.safetensors     the best model; highrank.load reads it\n"
        f"  {run.folder}/metrics.jsonl         all numbers\n"
        f"  {run.folder}/learning-curve.png    a picture of them"
    )
    console.print("It writes:")
    for sample in generate(model, vocabulary, num_words=40, num_samples=3, seed=0):
        console.print("  " + " ".join(sample).replace("<eos>", "\n ").strip())
