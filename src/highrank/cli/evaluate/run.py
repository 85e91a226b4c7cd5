"""`highrank evaluate RUN`: a run's splits, or a text, by one method or all."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from highrank.cli.console import plain_console, progress, show
from highrank.cli.evaluate.options import Options

if TYPE_CHECKING:
    from highrank.evaluation.result import Dataset, Result
    from highrank.evaluation.search import Method
    from highrank.run.loading import LoadedRun


def evaluate_run(run: Path, options: Options) -> None:
    """Evaluate a run's splits or a text by all methods that are asked for."""
    from highrank.evaluation import result as module
    from highrank.evaluation.ngram import ngram_result
    from highrank.run.loading import load_run

    # Settings that cannot be are found before the run is loaded.
    options.grids()
    loaded = load_run(run, options.device)
    splits = ("valid", "test") if options.split == "both" else (options.split,)
    datasets = module.find_datasets(loaded, options.text, splits)
    folder = module.result_folder(loaded.folder)
    results: list[Result] = []
    files: list[Path] = []
    try:
        for dataset, method in product(datasets, _methods(loaded, options)):
            result = module.evaluate_dataset(
                loaded,
                dataset,
                method,
                # Other methods have one stream.
                batch_size=_batch_size(options, method),
                compat=options.compat,
                per_token=options.per_token,
                independent_lines=options.independent_lines,
                progress=progress,
            )
            found = [result]
            if options.baselines and method.is_static:
                found.append(ngram_result(loaded, dataset, result))
            results += found
            files += [module.write_result(folder, one) for one in found]
    finally:
        # What there is, whatever happened to the next or to its file.
        if results:
            _show_results(loaded, datasets, results, files, options)


def _methods(loaded: "LoadedRun", options: Options) -> "Iterator[Method]":
    """The methods with their settings; what a search tried is printed before they are used."""
    from highrank.evaluation.grids import FIT_TOKENS, QUICK_TOKENS
    from highrank.evaluation.search import find_method, find_temperature
    from highrank.report.tables import search_table

    for ways, caches in options.grids(loaded.corpus.is_found):
        method = find_method(
            loaded,
            ways,
            caches,
            convention=options.dynamic_options.convention,
            # Without a search, several settings are always default ones.
            widen=not (options.search and options.is_given),
            search_tokens=options.search_tokens if options.search else QUICK_TOKENS,
            progress=progress,
        )
        for name, search in method.searches.items() if options.search else ():
            Console(stderr=options.json, highlight=False).print(search_table(name, search))
        yield method
        if options.baselines and method.is_static:
            valid = loaded.corpus.split("valid")[: (options.search_tokens or FIT_TOKENS) + 1]
            yield find_temperature(loaded.model, valid, progress)


def _batch_size(options: Options, method: "Method") -> int | None:
    """The number of streams; 1 wherever static evaluation stands beside another method."""
    if options.all or not method.is_static:
        return 1
    return 1 if options.baselines and options.batch_size is None else options.batch_size


def _show_results(
    loaded: "LoadedRun",
    datasets: "Sequence[Dataset]",
    results: "Sequence[Result]",
    files: Sequence[Path],
    options: Options,
) -> None:
    """The results beside the papers' rows, their files, and what is outside the vocabulary."""
    from highrank.presets import published
    from highrank.report.tables import (
        best_results,
        results_table,
        searched_parts,
        trained_on_text,
        unknown_text,
    )

    rows = published(loaded.config, loaded.corpus.name)
    found = {
        "results": [
            {"file": None if path is None else str(path)}
            | asdict(result)
            | {"is_best": result in best_results(results)}
            for result, path in zip_longest(results, files)
        ],
        "published": [row._asdict() for row in rows],
    }
    show(found, lambda _: results_table(results, rows), json=options.json)
    for note in filter(None, (trained_on_text(dataset, loaded.folder) for dataset in datasets)):
        plain_console(stderr=options.json).print(note)
    if options.json:
        return
    notes = [f"Result: {path}" for path in files]
    if not options.search and any(map(searched_parts, results)):
        notes.insert(0, "--search tries more settings, on all of valid.")
    notes += filter(None, (unknown_text(dataset, results[0].unit) for dataset in datasets))
    notes += [] if options.per_token is None else [f"Token by token: {options.per_token}"]
    plain_console().print("\n".join(notes))
