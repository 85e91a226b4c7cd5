"""`highrank compare [PRESET|TEXT|CORPUS]`: which output layer is best for this text?"""

import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from highrank.cli.console import (
    Threads,
    as_json,
    parse,
    plain_console,
    progress,
    unless_given,
    wide_console,
    write_outputs,
)
from highrank.cli.positional import take_positional
from highrank.report.formats import printable
from highrank.run.folder import new_run
from highrank.studies.compare import presets
from highrank.studies.compare.measure import summarise
from highrank.studies.compare.page import compare_page, compare_table, plan_table, write_beside
from highrank.studies.compare.plan import BudgetTooSmall, Plan, make_plan, read_plan, write_plan
from highrank.studies.compare.schedule import train
from highrank.training.signals import Stopped


@dataclass(frozen=True, kw_only=True)
class Options(presets.Comparison):
    corpus: tyro.conf.Suppress[str] = ""
    is_paper_size: tyro.conf.Suppress[bool] = False
    lr: Annotated[float | None, unless_given("the recipe's", "FLOAT")] = None
    max_tokens: Annotated[int | None, unless_given("all", "INT")] = None
    jobs: Annotated[int | None, unless_given("one for each core, at most 4", "INT")] = None
    threads: Threads = None
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
    """Compare on a preset, a text or a corpus; without one, on `senses` and `sotu`."""
    name, given = take_positional(arguments, Options)
    defaults = [presets.find_comparison(name)] if name else presets.DEFAULTS
    options = [_parse(given, default, name or "") for default in defaults]
    folder = options[0].resume
    if folder is None:
        # All plans come first: a budget that is too small is refused before anything is trained.
        for plan, one in [(_plan(one), one) for one in options]:
            if not one.plan:
                folder = new_run(one.runs, f"compare-{Path(plan.corpus).name}")
                write_plan(plan, folder)
                _run(plan, folder, one)
    elif name:
        raise ValueError(f"--resume must come without a corpus, got {name}")
    else:
        _run(read_plan(folder), folder, options[0])


def _parse(arguments: list[str], default: presets.Comparison, name: str) -> Options:
    return parse(
        Options,
        prog=f"highrank compare {name}".strip(),
        description="Compare output layers on a text: fairly, with several seeds, in a budget.\n\n"
        "Your own text or a corpus comes first: highrank compare my.txt --budget 12m\n\n"
        "It decides the defaults: highrank compare my.txt --help shows its own\n\n"
        "Or a preset:\n\n" + "\n\n".join(presets.COMPARISONS),
        default=Options(**vars(default)),
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _plan(options: Options) -> Plan:
    """Make the plan, and print it."""
    try:
        with progress(f"Planning a comparison on {Path(options.corpus).name}") as show:
            plan = make_plan(options, show)
    except BudgetTooSmall as error:
        raise ValueError(error.advice(sys.argv[1:])) from None
    wide_console(stderr=True).print(plan_table(plan))
    return replace(plan, command=printable(shlex.join(["highrank", *sys.argv[1:]])))


def _run(plan: Plan, folder: Path, options: Options) -> None:
    """Train what is left, and report, also after Ctrl-C."""
    plain_console(stderr=True).print(f"Comparison: {folder}")
    start, code = time.monotonic(), 0
    try:
        with progress("Comparing") as show:
            train(plan, folder, show)
    except Stopped as signal:
        code = 128 + signal.args[0]
    result = summarise(plan, folder, time.monotonic() - start)
    # Printed before anything is written: a full disk loses nothing.
    if options.json:
        print(as_json(result), flush=True)
    else:
        wide_console().print(compare_table(result))
    page = options.out or folder / "report.html"
    write_beside(result, page)
    write_outputs(result, compare_page(result, plan.command), page)
    if not options.json:
        plain_console().print(f"The page with pictures: {page.absolute().as_uri()}")
    if code:
        sys.exit(code)
