"""`highrank evaluate RUN`: perplexity of a trained run, or of each word of a text."""

import math
import time
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from highrank.cli.evaluate_method import find_method, plan, searches_as_json
from highrank.cli.evaluate_options import CacheOptions, DynamicOptions
from highrank.cli.evaluate_text import (
    Text,
    check_per_token,
    corpus_texts,
    evaluate_words,
    own_text,
)
from highrank.cli.output import check_writable
from highrank.cli.progress import progress
from highrank.cli.run import LoadedRun, load_run

if TYPE_CHECKING:
    from highrank.evaluation.method import Method
    from highrank.evaluation.result import Result
    from highrank.evaluation.search import Search
    from highrank.evaluation.static import Evaluation

NO_DYNAMIC, NO_CACHE = DynamicOptions(), CacheOptions()


def evaluate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    split: Literal["both", "valid", "test"] = "both",
    columns: int | None = None,
    compat: Literal["mos"] | None = None,
    dynamic: bool = False,
    cache: bool = False,
    search: bool = False,
    search_tokens: int | None = None,
    text: Path | None = None,
    per_token: Path | None = None,
    independent_lines: bool = False,
    device: str = "cpu",
    json: bool = False,
    dynamic_options: Annotated[DynamicOptions, tyro.conf.arg(name="dynamic")] = NO_DYNAMIC,
    cache_options: Annotated[CacheOptions, tyro.conf.arg(name="cache")] = NO_CACHE,
) -> None:
    """Perplexity of a trained run: static, with a model that learns (--dynamic), with a --cache.

    Prints a table, with the paper's numbers if the run is a preset that has some, and writes each
    result as JSON into the run's folder. What each method is: docs/evaluation.md.

    Args:
        run: Folder of a run that `highrank train` made.
        split: Which texts of the corpus.
        columns: Columns of text that are read side by side; static evaluation only. Default, as in
            the paper: 10 for valid (--valid-columns of the training), 1 for test.
        compat: Divide the loss as the original code, mos, does, to compare with its logs.
        dynamic: Learn from each segment after it was scored. Reads the training text once first.
        cache: Make words likelier that followed similar states before: a neural cache.
        search: Try many settings of --dynamic and --cache on valid, and take the best.
        search_tokens: Search on so many first tokens of valid only.
        text: Evaluate this file instead of the corpus; it is read as the corpus was prepared.
        per_token: Write probability, surprisal, rank and mixture weights of each word of --text
            to this file, .csv or .jsonl.
        independent_lines: Forget everything at the end of each line of --text.
        device: As torch names it: cpu, cuda, mps.
        json: Print the results as JSON instead of a table.
        dynamic_options: How the model learns.
        cache_options: What the cache remembers.
    """
    from highrank.evaluation.result import write_result

    is_static = not (dynamic or cache)
    _check("--dynamic.…", dynamic_options != NO_DYNAMIC, "--dynamic", dynamic)
    _check("--cache.…", cache_options != NO_CACHE, "--cache", cache)
    _check("--search", search, "--dynamic or --cache", not is_static)
    _check("--search-tokens", search_tokens is not None, "--search", search)
    _check("--compat", compat is not None, "static evaluation", is_static)
    _check("--columns", columns not in (None, 1), "static evaluation", is_static)
    _check("--columns and --compat", bool(columns or compat), "a split, not --text", text is None)
    _check("--per-token", per_token is not None, "--text", text is not None)
    _check("--per-token", per_token is not None, "static evaluation", is_static)
    _check("--independent-lines", independent_lines, "--text", text is not None)
    _check("--independent-lines", independent_lines, "static evaluation", is_static)
    if columns is not None and columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    if per_token is not None:
        check_per_token(per_token)
    planned = plan(
        dynamic_options if dynamic else None,
        cache_options if cache else None,
        search,
        search_tokens,
    )
    loaded = load_run(run, device)
    own = None if text is None else own_text(loaded, text)
    texts = corpus_texts(loaded, split, columns if is_static else 1) if own is None else [own.text]
    folder = loaded.folder / "results"
    folder.mkdir(exist_ok=True)
    check_writable(folder / "result.json")
    method, searches = find_method(planned, loaded)
    results, paths = [], []
    for each in texts:
        start = time.monotonic()
        settings = {"columns": each.num_columns, "compat": compat, **method.settings}
        with progress(f"Evaluating on {each.name}, {method.name}") as on_progress:
            if own is not None and is_static:
                settings["independent_lines"] = independent_lines
                found = evaluate_words(loaded, own, per_token, independent_lines, on_progress)
            else:
                found = _evaluate(loaded, each, method, compat, on_progress)
        elapsed = time.monotonic() - start
        results.append(_result(loaded, each, method, found, settings, searches, elapsed))
        paths.append(write_result(folder, results[-1]))
    _tell(loaded, results, paths, searches, json)
    if own is not None and own.unknown and not json:
        shown = ", ".join(own.unknown[:10]) + (", …" if len(own.unknown) > 10 else "")
        print(f"Not in the vocabulary, read as <unk>: {shown} ({len(own.unknown):,} in all)")
    if per_token is not None and not json:
        print(f"Word by word: {per_token}")


def _check(option: str, is_given: bool, partner: str, is_there: bool) -> None:
    if is_given and not is_there:
        raise ValueError(f"{option} must go with {partner}")


def _evaluate(
    loaded: LoadedRun, text: Text, method: "Method", compat: str | None, on_progress: Any
) -> "Evaluation":
    from highrank.evaluation.method import evaluate_by
    from highrank.evaluation.static import as_the_original_divides

    found = evaluate_by(method, loaded.model, text.tokens, text.num_columns, on_progress)
    if not math.isfinite(found.nats):
        raise ValueError(
            f"the loss on {text.name} must be finite, got {found.nats} with {method.settings}"
        )
    return found if compat is None else as_the_original_divides(found, text.num_columns)


def _result(
    loaded: LoadedRun,
    text: Text,
    method: "Method",
    found: "Evaluation",
    settings: dict[str, Any],
    searches: "dict[str, Search[Any]]",
    elapsed: float,
) -> "Result":
    from highrank.environment import environment
    from highrank.evaluation.result import Result

    per = "character" if loaded.corpus.level == "char" else "word"
    return Result(
        value=found.perplexity,
        unit=f"perplexity per {per}",
        nats=found.nats,
        bits=found.bits,
        num_tokens=found.num_tokens,
        split=text.name,
        method=method.name,
        settings=settings,
        search=searches_as_json(searches),
        run=str(loaded.folder),
        model_sha256=loaded.sha256,
        corpus=loaded.corpus.name,
        data_sha256=text.sha256,
        seconds=elapsed,
        environment=environment(),
    )


def _tell(
    loaded: LoadedRun,
    results: "list[Result]",
    paths: list[Path],
    searches: "dict[str, Search[Any]]",
    as_json: bool,
) -> None:
    """Print the results as JSON, or as a table beside the paper's rows."""
    from highrank.presets.published import published
    from highrank.reports.evaluation import results_table, search_table

    rows = published(loaded.config, loaded.corpus.name)
    if as_json:
        found = [
            {"file": str(path)} | asdict(result)
            for path, result in zip(paths, results, strict=True)
        ]
        print(dumps({"results": found, "published": [row._asdict() for row in rows]}))
        return
    console = Console(highlight=False)
    for name, search in searches.items():
        console.print(search_table(name, search))
    console.print(results_table(results, rows))
    for path in paths:
        console.print(f"Result: {path}", soft_wrap=True)
