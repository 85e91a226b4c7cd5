"""`highrank compare [TEXT|CORPUS]`: which output layer is best for this text in this time?"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from highrank.cli.console import Threads, as_json, plain_console, progress, unless_given
from highrank.config import RunConfig

if TYPE_CHECKING:
    from highrank.studies.compare.plan import Plan

WIDTH = 120
Equal = Literal["parameters", "context", "time", "tokens"]


def compare(
    corpus: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT|CORPUS]")] = "senses",
    *,
    heads: tuple[str, ...] = ("mos", "moc"),
    components: tuple[int, ...] = (4,),
    embedding: tuple[int, ...] = (64,),
    seeds: int = 3,
    budget: str = "30m",
    equal: tuple[Equal, ...] = ("parameters", "context", "tokens"),
    baselines: bool = False,
    hidden_sizes: tuple[int, ...] = (320, 256),
    lr: Annotated[float | None, unless_given("2e-3; exact languages 3e-3", "FLOAT")] = None,
    max_tokens: Annotated[int | None, unless_given("all", "INT")] = None,
    jobs: int = 1,
    threads: Threads = None,
    test_batch_size: int = 10,
    runs: Path = Path("runs"),
    resume: Annotated[Path | None, unless_given("a new comparison", "FOLDER")] = None,
    out: Annotated[Path | None, unless_given("report.html in the folder", "FILE")] = None,
    plan_only: bool = False,
    json: bool = False,
) -> None:
    """Compare output layers on a text: fairly, with several seeds, within a budget.

    Args:
        corpus: Your own text, a prepared corpus, or an exact language: senses, factorised,
            low-rank.
        heads: KIND[:K][,option=value ...]: keys of `highrank train --head.kind`, tied-softmax,
            or repeat, the control with other seeds. The control with one component is always there.
        components: K of each head that has components and names no K of its own.
        embedding: E, the d of the paper.
        seeds: Runs of each cell.
        budget: Time for everything: 90s, 20m, 1.5h.
        equal: What is the same for all: parameters, through the layers before the last; context, D
            and E; time, CPU seconds of training; tokens.
        baselines: Also an adaptive softmax, and the control with a cache at evaluation.
        hidden_sizes: Of the LSTM of the control of the largest d; the last is D.
        lr: Learning rate, constant.
        max_tokens: Train on the beginning of the corpus only.
        jobs: Runs that are trained at the same time, each by a thread on a core of its own.
        threads: Of the matrix multiplies, with one job.
        test_batch_size: Streams of the test; 1 reads it in order, more are faster.
        runs: Where comparisons go: runs/compare-<corpus>-<n>.
        resume: Continue this comparison: finished runs are kept.
        out: Where the page goes.
        plan_only: Print the plan and stop.
        json: Print the result as JSON.
    """
    from highrank.environment import set_threads
    from highrank.run import new_run
    from highrank.studies.compare.measure import train
    from highrank.studies.compare.plan import read_plan, write_plan
    from highrank.studies.compare.question import Question, make_plan
    from highrank.studies.compare.table import plan_table
    from highrank.training.budget import parse_duration

    console = plain_console(stderr=True)
    if resume is not None:
        plan, folder = read_plan(resume), resume
        set_threads(plan.threads)
    else:
        threads = 1 if jobs > 1 else threads
        set_threads(threads)
        question = Question(
            corpus=_corpus(corpus),
            base=_base(corpus, embedding, hidden_sizes, lr),
            heads=(*heads, *(("adaptive-softmax",) if baselines else ())),
            components=components,
            embedding_sizes=embedding,
            num_seeds=seeds,
            equal=tuple(equal),
            budget=parse_duration(budget),
            max_tokens=max_tokens,
            cache=baselines,
            test_batch_size=test_batch_size,
            jobs=jobs,
            threads=_num_threads(),
        )
        with progress("Measuring each cell's speed") as show:
            plan = make_plan(question, show)
        wide_console(stderr=True).print(plan_table(plan))
        if plan_only:
            return
        folder = new_run(runs, f"compare-{Path(corpus).stem}")
        write_plan(plan, folder)
    console.print(f"Comparison: {folder}")
    with progress("Comparing") as show:
        stopped = train(plan, folder, show)
    _show(plan, folder, out, json)
    if stopped is not None:
        sys.exit(128 + stopped)


def wide_console(*, stderr: bool = False) -> Console:
    """Where there is no terminal, tables are as wide as they need to be."""
    console = Console(stderr=stderr, highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


def _num_threads() -> int:
    import torch

    return torch.get_num_threads()


def _corpus(name: str) -> str:
    """The name of a prepared corpus; a text is prepared on the way."""
    from highrank.data.catalog import corpus_folder, prepared_folder
    from highrank.data.prepare import find_or_prepare, prepare_known
    from highrank.studies.compare.source import LANGUAGES

    if name in LANGUAGES or prepared_folder(name) is not None:
        return name
    if name == "sotu":
        with progress("Preparing the State of the Union addresses") as on_progress:
            prepare_known(name, on_progress=on_progress)
        return name
    if not Path(name).exists():
        return name
    with progress(f"Preparing {name}") as on_progress:
        corpus = find_or_prepare(Path(name), on_progress=on_progress).corpus
    folder = corpus.path.absolute()
    return corpus.name if folder == corpus_folder(corpus.name).absolute() else str(folder)


def _base(
    corpus: str, embedding: tuple[int, ...], hidden_sizes: tuple[int, ...], lr: float | None
) -> RunConfig:
    from dataclasses import replace

    from highrank.studies.compare.presets import base_config, language_config
    from highrank.studies.compare.source import LANGUAGES

    make = language_config if corpus in LANGUAGES else base_config
    config = make(corpus, embedding[0], hidden_sizes)
    return config if lr is None else replace(config, train=replace(config.train, lr=lr))


def _show(plan: "Plan", folder: Path, out: Path | None, json: bool) -> None:
    from highrank.files import write_atomically
    from highrank.studies.compare.measure import summarise
    from highrank.studies.compare.table import compare_table

    result = summarise(plan, folder)
    text = as_json(result, indent=2) + "\n"
    write_atomically(folder / "result.json", lambda new: new.write_text(text, encoding="utf-8"))
    if json:
        print(text)
    else:
        wide_console().print(compare_table(result))
