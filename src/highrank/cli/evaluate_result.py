"""What `highrank evaluate` has found: as a result, as JSON, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from highrank.cli.evaluate_method import searches_as_json
from highrank.cli.evaluate_options import Options
from highrank.cli.evaluate_text import Text
from highrank.cli.run import LoadedRun

if TYPE_CHECKING:
    from highrank.evaluation.method import Method
    from highrank.evaluation.result import Result
    from highrank.evaluation.search import Search
    from highrank.evaluation.static import Evaluation

MOST_UNKNOWN = 10


def as_result(
    loaded: LoadedRun,
    options: Options,
    text: Text,
    method: "Method",
    searches: "Mapping[str, Search[Any]]",
    found: "Evaluation",
    elapsed: float,
) -> "Result":
    from highrank.environment import environment
    from highrank.evaluation.result import Result

    settings = {"columns": text.num_columns, "compat": options.compat, **method.settings}
    if text.lines is not None and options.is_static:
        settings["independent_lines"] = options.independent_lines
    return Result(
        value=found.perplexity,
        unit=f"perplexity per {_unit(loaded)}",
        nats=found.nats,
        bits=found.bits,
        num_tokens=found.num_tokens,
        unknown={} if text.lines is None else _counts(text),
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


def as_json(loaded: LoadedRun, results: "Mapping[Path, Result]") -> dict[str, Any]:
    from highrank.presets.published import published

    rows = published(loaded.config, loaded.corpus.name)
    return {
        "results": [{"file": str(path)} | asdict(result) for path, result in results.items()],
        "published": [row._asdict() for row in rows],
    }


def tell_searches(searches: "Mapping[str, Search[Any]]", on_stderr: bool) -> None:
    """What was tried, before the long evaluation that may yet fail."""
    from highrank.reports.evaluation import search_table

    console = Console(highlight=False, stderr=on_stderr)
    for name, search in searches.items():
        console.print(search_table(name, search))


def tell(loaded: LoadedRun, results: "Mapping[Path, Result]") -> None:
    """A table of the results beside the paper's rows."""
    from highrank.presets.published import published
    from highrank.reports.evaluation import results_table

    console = Console(highlight=False, markup=False)
    rows = published(loaded.config, loaded.corpus.name)
    console.print(results_table(list(results.values()), rows))
    for path in results:
        console.print(f"Result: {path}", soft_wrap=True)


def tell_of_words(loaded: LoadedRun, options: Options, texts: Sequence[Text]) -> None:
    """Of a file of the user's: which words are unknown, and where each has its row."""
    for text in texts:
        if text.unknown:
            count, (tokens, distinct) = len(text.tokens) - 1, _counts(text).values()
            words = _unit(loaded) + ("" if distinct == 1 else "s")
            shown = ", ".join(word for word, _ in text.unknown.most_common(MOST_UNKNOWN))
            print(
                f"Not in the vocabulary, read as <unk>: {tokens:,} of {count:,} tokens; "
                f"{distinct:,} distinct {words}: {shown}{', …' if distinct > MOST_UNKNOWN else ''}"
            )
    if options.per_token is not None:
        print(f"Word by word: {options.per_token}")


def _counts(text: Text) -> dict[str, int]:
    """Of what the vocabulary does not have."""
    return {"tokens": text.unknown.total(), "distinct": len(text.unknown)}


def _unit(loaded: LoadedRun) -> str:
    return "character" if loaded.corpus.level == "char" else "word"
