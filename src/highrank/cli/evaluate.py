"""`highrank evaluate RUN`: perplexity of a trained run, or of each word of a text."""

import math
import time
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from highrank.cli.evaluate_method import find_method, plan
from highrank.cli.evaluate_options import Options, check
from highrank.cli.evaluate_result import as_json, as_result, tell, tell_of_words, tell_searches
from highrank.cli.evaluate_text import Text, evaluate_words, find_texts
from highrank.cli.output import check_writable
from highrank.cli.progress import progress
from highrank.cli.run import LoadedRun, load_run

if TYPE_CHECKING:
    from highrank.evaluation.method import Method
    from highrank.evaluation.static import Evaluation

AS_USUAL = Options()


# The help shows each paragraph on a line of its own: none is longer than 80 columns.
def evaluate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    options: Annotated[Options, tyro.conf.arg(name="")] = AS_USUAL,
) -> None:
    """Measure a run's perplexity: static, with a model that learns, with a cache.

    Prints a table, and writes each result into the run's folder: docs/evaluation.md

    Args:
        run: Folder of a run that `highrank train` made.
        options: All that may be said of it.
    """
    from highrank.evaluation.result import write_result

    check(options)
    planned = plan(options)
    loaded = load_run(run, options.device)
    texts = find_texts(loaded, options)
    folder = _result_folder(loaded)
    method, searches = find_method(planned, loaded)
    tell_searches(searches, on_stderr=options.json)
    results = {}
    for text in texts:
        start = time.monotonic()
        found = _evaluate(loaded, options, text, method)
        elapsed = time.monotonic() - start
        result = as_result(loaded, options, text, method, searches, found, elapsed)
        results[write_result(folder, result)] = result
    if options.json:
        print(dumps(as_json(loaded, results)))
        return
    tell(loaded, results)
    tell_of_words(loaded, options, texts)


def _result_folder(loaded: LoadedRun) -> Path:
    """Where results go. It is made with the first of them, so that Ctrl-C leaves nothing behind."""
    folder = loaded.folder / "results"
    check_writable((folder if folder.exists() else loaded.folder) / "result.json")
    return folder


def _evaluate(loaded: LoadedRun, options: Options, text: Text, method: "Method") -> "Evaluation":
    from highrank.evaluation.method import evaluate_by
    from highrank.evaluation.static import as_the_original_divides

    with progress(f"Evaluating on {text.name}, {method.name}") as on_progress:
        if text.lines is not None and options.is_static:
            return evaluate_words(loaded, text.lines, options, on_progress)
        found = evaluate_by(method, loaded.model, text.tokens, text.num_columns, on_progress)
    if not math.isfinite(found.nats):
        raise ValueError(
            f"the loss on {text.name} must be finite, got {found.nats} with {method.settings}"
        )
    if options.compat is None:
        return found
    return as_the_original_divides(found, text.num_columns)
