"""`highrank compare [PRESET|TEXT|CORPUS]`: which output layer is best for this text?"""

import os
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from highrank.cli.console import (
    Threads,
    as_json,
    did_you_mean,
    plain_console,
    progress,
    unless_given,
    write_outputs,
)
from highrank.files import write_atomically

if TYPE_CHECKING:
    from highrank.studies.compare.plan import Plan
    from highrank.studies.compare.presets import Comparison
    from highrank.studies.compare.question import Question

# Of tables where there is no terminal.
WIDTH = 120
# More runs at the same time wait for memory rather than for cores.
MOST_JOBS = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    heads: tuple[str, ...] = ()
    """KIND[:K][,option=value …]: kinds of `highrank train --head.kind`; tied-softmax, without a
    context of its own; repeat, the control with other seeds. The control, a softmax over
    tanh(Linear(hidden)), is always there."""
    components: tuple[int, ...] = ()
    """K of each head that has components and names no K of its own."""
    embedding: tuple[int, ...] = ()
    """E, the d of the paper."""
    seeds: int = 3
    """Runs of each variant. One seed decides nothing."""
    budget: str = "12m"
    """Time for everything: 90s, 20m, 1.5h."""
    equal: tuple[Literal["parameters", "context", "time", "tokens"], ...] = ()
    """What is the same for all: parameters, through the layers before the last; context, D and E;
    time, CPU seconds of training; tokens."""
    baselines: bool = False
    """Also an adaptive softmax, and the control with a cache at evaluation."""
    hidden_sizes: tuple[int, ...] = ()
    """Of the LSTM, for the control of the largest d; the last is D."""
    lr: Annotated[float | None, unless_given("the recipe's", "FLOAT")] = None
    """Learning rate, constant."""
    max_tokens: Annotated[int | None, unless_given("all", "INT")] = None
    """Train on the beginning of the corpus only."""
    jobs: Annotated[int | None, unless_given("one for each core, at most 4", "INT")] = None
    """Runs that are trained at the same time, each by one thread on a core of its own."""
    threads: Threads = None
    """Train one run at a time, with so many threads of the matrix multiplies."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps. Equal time needs cpu."""
    test_batch_size: int = 10
    """Streams of the test; 1 reads it in order, more are faster."""
    runs: Path = Path("runs")
    """Where comparisons go: runs/compare-<corpus>-<n>."""
    resume: Annotated[Path | None, unless_given("a new comparison", "FOLDER")] = None
    """Continue this comparison; finished runs are kept."""
    out: Annotated[Path | None, unless_given("report.html in its folder", "FILE")] = None
    """Where the page goes; JSON, CSV and PNG of the same name stand beside it."""
    plan: bool = False
    """Print the plan, and stop."""
    json: bool = False
    """Print the result as JSON."""


def run_compare(arguments: list[str]) -> None:
    """The command itself. First comes a preset, a text or a corpus, which decides the defaults.

    Without one: the exact language `senses`, and the beginning of `sotu`.
    """
    from highrank.studies.compare.presets import DEFAULT_TEXT, LANGUAGE, comparison_of

    first = arguments[0] if arguments and not arguments[0].startswith("-") else None
    rest = arguments[first is not None :]
    found = [LANGUAGE, DEFAULT_TEXT] if first is None else [comparison_of(_checked(first))]
    options = [_parsed(rest, comparison, first) for comparison in found]
    if options[0].resume is not None:
        if first is not None:
            raise ValueError(f"--resume must come without a corpus, got {first}")
        _resume(options[0])
        return
    for comparison, option in zip(found, options, strict=True):
        _compare(comparison, option)


def _checked(name: str) -> str:
    """Raise unless it is something that heads can be compared on."""
    from highrank.data.catalog import CATALOG, prepared_folder
    from highrank.studies.compare.presets import COMPARISONS
    from highrank.studies.compare.source import LANGUAGES

    known = (*COMPARISONS, *LANGUAGES, *CATALOG)
    if name in known or prepared_folder(name) is not None or Path(name).exists():
        return name
    raise ValueError(
        f"the first argument must be the path of a text, a prepared corpus or one of "
        f"{', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
    )


def _parsed(arguments: list[str], comparison: "Comparison", name: str | None) -> Options:
    names = ("heads", "components", "embedding", "seeds", "budget", "equal", "hidden_sizes")
    default = Options(
        max_tokens=comparison.max_tokens, **{name: getattr(comparison, name) for name in names}
    )
    from highrank.studies.compare.presets import COMPARISONS

    newline = "\n\n"
    return tyro.cli(
        Options,
        prog=f"highrank compare {name or ''}".strip(),
        description="Compare output layers on a text: fairly, with several seeds, in a budget.\n\n"
        "Your own text or a corpus comes first: highrank compare my.txt --budget 12m\n\n"
        "It decides the defaults: highrank compare my.txt --help shows its own\n\n"
        f"Or a preset:\n\n{newline.join(COMPARISONS)}",
        default=default,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _compare(comparison: "Comparison", options: Options) -> None:
    from highrank.report.formats import printable
    from highrank.run import new_run
    from highrank.studies.compare.plan import write_plan
    from highrank.studies.compare.question import make_plan
    from highrank.studies.compare.table import plan_table

    question = _question(comparison, options)
    with progress(f"Measuring each variant's speed on {Path(question.corpus).name}") as show:
        plan = make_plan(question, show)
    wide_console(stderr=True).print(plan_table(plan))
    if options.plan:
        return
    plan = replace(plan, command=printable(shlex.join(["highrank", *sys.argv[1:]])))
    folder = new_run(options.runs, f"compare-{Path(question.corpus).name}")
    write_plan(plan, folder)
    _run(plan, folder, options)


def _question(comparison: "Comparison", options: Options) -> "Question":
    """What was asked, with the corpus prepared and the baselines chosen."""
    from highrank.environment import check_device, set_threads
    from highrank.studies.compare.presets import base_config
    from highrank.studies.compare.question import Question
    from highrank.studies.compare.source import open_source
    from highrank.training.budget import parse_duration

    check_device(options.device)
    jobs = _num_jobs(options)
    set_threads(1 if jobs > 1 else options.threads)
    name = _prepared(comparison.corpus)
    comparison = replace(comparison, corpus=name, hidden_sizes=options.hidden_sizes)
    corpus = open_source(name, options.max_tokens)
    base = base_config(comparison, len(corpus.split("train")))
    if options.lr is not None:
        base = replace(base, train=replace(base.train, lr=options.lr))
    has_baselines = options.baselines
    return Question(
        corpus=name,
        base=base,
        heads=(*options.heads, *(("adaptive-softmax",) if has_baselines else ())),
        components=options.components,
        embedding_sizes=options.embedding,
        num_seeds=options.seeds,
        equal=options.equal,
        budget=parse_duration(options.budget),
        max_tokens=options.max_tokens,
        cache=has_baselines,
        test_batch_size=options.test_batch_size,
        jobs=jobs,
        threads=_num_threads(),
        device=options.device,
    )


def _resume(options: Options) -> None:
    from highrank.environment import check_device, set_threads
    from highrank.studies.compare.plan import read_plan

    assert options.resume is not None
    plan = read_plan(options.resume)
    check_device(plan.device)
    set_threads(plan.threads)
    _run(plan, options.resume, options)


def _run(plan: "Plan", folder: Path, options: Options) -> None:
    """Train what is left, and report, also after Ctrl-C."""
    from highrank.studies.compare.schedule import train
    from highrank.training.signals import Stopped

    plain_console(stderr=True).print(f"Comparison: {folder}")
    start, stopped = time.monotonic(), None
    try:
        with progress("Comparing") as show:
            train(plan, folder, show)
    except Stopped as error:
        (stopped,) = error.args
    _report(plan, folder, options, time.monotonic() - start)
    if stopped is not None:
        sys.exit(128 + stopped)


def _report(plan: "Plan", folder: Path, options: Options, elapsed: float) -> None:
    from highrank.studies.compare.measure import summarise
    from highrank.studies.compare.page import compare_csv, compare_page, compare_picture
    from highrank.studies.compare.table import compare_table

    result, page = summarise(plan, folder, elapsed), options.out or folder / "report.html"
    # Printed before anything is written: a full disk loses nothing.
    if options.json:
        print(as_json(result), flush=True)
    else:
        wide_console().print(compare_table(result))
    table = compare_csv(result)
    write_atomically(page.with_suffix(".csv"), lambda new: new.write_text(table, "utf-8"))
    write_outputs(result, compare_page(result, plan.command), page)
    if result.regimes:
        compare_picture(result, page.with_suffix(".png"))
    if not options.json:
        plain_console().print(f"The page with pictures: {page.absolute().as_uri()}")


def wide_console(*, stderr: bool = False) -> Console:
    """Where there is no terminal, tables are as wide as they need to be."""
    console = Console(stderr=stderr, highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


def _num_jobs(options: Options) -> int:
    """One for each core, unless a run is to have several, or a device of its own."""
    from highrank.studies.compare.schedule import available_cores

    if options.jobs is not None and options.threads is not None and options.jobs > 1:
        raise ValueError(f"threads must be left out with several jobs, got {options.threads}")
    if options.jobs is not None:
        return options.jobs
    if options.threads is not None or options.device != "cpu":
        return 1
    return min(MOST_JOBS, max(1, len(available_cores())))


def _num_threads() -> int:
    import torch

    return torch.get_num_threads()


def _prepared(name: str) -> str:
    """The name of a prepared corpus; a text is prepared on the way."""
    from highrank.data.catalog import CATALOG, corpus_folder, prepared_folder
    from highrank.data.prepare import find_or_prepare, prepare_known
    from highrank.studies.compare.source import LANGUAGES

    if name in LANGUAGES or prepared_folder(name) is not None:
        return name
    if name == "sotu":
        with progress("Preparing the State of the Union addresses") as on_progress:
            prepare_known(name, on_progress=on_progress)
        return name
    if name in CATALOG:
        return name
    with progress(f"Preparing {name}") as on_progress:
        corpus = find_or_prepare(Path(name), on_progress=on_progress).corpus
    folder = corpus.path.absolute()
    return corpus.name if folder == corpus_folder(corpus.name).absolute() else str(folder)
