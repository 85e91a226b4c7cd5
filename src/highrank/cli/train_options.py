"""The options of `highrank train`, and the mistakes in them."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from highrank.cli.duration import seconds
from highrank.cli.option import unless_given
from highrank.cli.progress import progress
from highrank.cli.threads import set_threads
from highrank.config import RunConfig

if TYPE_CHECKING:
    from highrank.data.corpus import Corpus

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

    from highrank.build import build_model
    from highrank.models.device import check_device
    from highrank.training.check import check_config
    from highrank.training.tensorboard import check_tensorboard

    budget = None if options.budget is None else seconds(options.budget)
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
    evaluate(model, piece[:20], num_columns=1)
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
