"""The options of `highrank evaluate`, and the mistakes in them.

The options of `highrank evaluate` that belong to a method, and the settings they mean.

What `highrank evaluate` has found: as a result, as JSON, as a table.

`highrank evaluate RUN`: perplexity of a trained run, or of each word of a text.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from highrank.cli.console import progress, unless_given
from highrank.cli.evaluate_method import find_method, plan, searches_as_json
from highrank.cli.evaluate_text import Text, evaluate_words, find_texts
from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.dynamic import DynamicSettings
from highrank.evaluation.search import CacheGrid, dynamic_grid
from highrank.files import check_writable
from highrank.run import LoadedRun, load_run

if TYPE_CHECKING:
    from highrank.evaluation.method import Method
    from highrank.evaluation.result import Result
    from highrank.evaluation.search import Search
    from highrank.evaluation.static import Evaluation

if TYPE_CHECKING:
    from highrank.evaluation.method import Method
    from highrank.evaluation.static import Evaluation


def _default(text: str) -> Any:
    return tyro.conf.arg(help_behavior_hint=f"(default: {text})")


@dataclass(frozen=True, kw_only=True)
class DynamicOptions:
    """For --dynamic. With --search, give several values to try all combinations of them."""

    lr: Annotated[tuple[float, ...], _default("5e-5; with --search six from 3e-5 to 1e-4")] = ()
    """η, the learning rate."""
    epsilon: Annotated[tuple[float, ...], _default("2e-5")] = ()
    """ε, added to the gradients' root mean square."""
    decay: Annotated[tuple[float, ...], _default("2e-3; with --search four from 1e-3 to 5e-3")] = ()
    """λ, the pull toward the trained weights."""
    convention: Literal["paper", "original", "ms"] = "paper"
    """Whose lr, epsilon and decay: of Krause et al., or of Yang et al.'s code (ms: with --ms)."""
    segment: int = DynamicSettings.segment
    """Tokens that are scored, then learned from, at once."""
    rule: Literal["rms", "sgd"] = "rms"
    """rms: steps scaled by gradient statistics of the training text. sgd: plain steps."""
    adapt: Annotated[tuple[str, ...], _default("all")] = ()
    """Parameters or modules that learn, such as head or backbone.layers.1."""

    def grid(self, is_search: bool) -> tuple[DynamicSettings, ...]:
        """What to try, in the options' own convention; one setting unless it is a search."""
        given = {"lr": self.lr, "epsilon": self.epsilon, "decay": self.decay}
        missing = [f"dynamic.{name}" for name, values in given.items() if not values]
        if self.convention != "paper" and missing:
            raise ValueError(
                f"{' and '.join(missing)} must be given with --dynamic.convention {self.convention}"
            )
        if self.rule == "sgd":
            if not self.lr:
                raise ValueError("dynamic.lr must be given with --dynamic.rule sgd")
            if self.epsilon:
                raise ValueError("dynamic.epsilon must go with the rule rms: sgd has none")
            if self.convention != "paper":
                raise ValueError(
                    f"dynamic.convention must be paper for the rule sgd, got {self.convention}"
                )
        if not is_search:
            _check_single("dynamic", given)
        base = DynamicSettings(segment=self.segment, rule=self.rule, adapt=self.adapt or None)
        if is_search:
            return dynamic_grid(base, self.lr or None, self.decay or None, self.epsilon or None)
        return dynamic_grid(
            base,
            self.lr or (base.lr,),
            self.decay or (base.decay,),
            self.epsilon or (base.epsilon,),
        )


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """For --cache. With --search, give several values to try all combinations of them."""

    window: Annotated[tuple[int, ...], _default("2000; with --search 100, 500, 2000")] = ()
    """Words that are remembered."""
    theta: Annotated[tuple[float, ...], _default("0.3; with --search seven from 0 to 1")] = ()
    """θ: 0 counts all remembered words alike, 1 mostly those after similar states."""
    weight: Annotated[tuple[float, ...], _default("0.1; with --search seven from 0 to 0.3")] = ()
    """λ, the share of the cache."""

    def grid(self, is_search: bool) -> CacheGrid:
        """What to try; one setting unless it is a search."""
        if not is_search:
            given = {"window": self.window, "theta": self.theta, "weight": self.weight}
            _check_single("cache", given)
        base = CacheSettings()
        default = (
            CacheGrid()
            if is_search
            else CacheGrid(windows=(base.window,), thetas=(base.theta,), weights=(base.weight,))
        )
        grid = CacheGrid(
            windows=self.window or default.windows,
            thetas=self.theta or default.thetas,
            weights=self.weight or default.weights,
        )
        # The settings check themselves when they are made.
        grid.settings()
        return grid


def _check_single(group: str, given: dict[str, tuple[float, ...]]) -> None:
    for name, values in given.items():
        if len(values) > 1:
            raise ValueError(
                f"{group}.{name} must be one value without --search, got {len(values)}"
            )


NO_DYNAMIC, NO_CACHE = DynamicOptions(), CacheOptions()


# A text in several lines keeps its line breaks in the help: each is one line.
@dataclass(frozen=True, kw_only=True)
class Options:
    split: Literal["both", "valid", "test"] = "both"
    """Which texts of the corpus."""
    columns: Annotated[int | None, unless_given("as in training; 1 for test", "INT")] = None
    """Streams of text that are read side by side; static evaluation only."""
    compat: Annotated[Literal["mos"] | None, unless_given("by predicted tokens", "{mos}")] = None
    """Divide the loss as the original code, mos, does, to compare with its logs."""
    dynamic: bool = False
    """Learn from each segment after it was scored. Reads the training text once first."""
    cache: bool = False
    """Make words likelier that followed similar states before: a neural cache."""
    search: bool = False
    """Try many settings of --dynamic and --cache on valid, and take the best."""
    search_tokens: Annotated[int | None, unless_given("all", "INT")] = None
    """Search on so many first tokens of valid only."""
    text: Annotated[Path | None, unless_given("none", "FILE")] = None
    """Evaluate this file instead of the corpus; it is read as the corpus was prepared."""
    per_token: Annotated[Path | None, unless_given("none", "FILE")] = None
    """Write probability, surprisal, rank, weights of each word of --text to this .csv or .jsonl."""
    independent_lines: bool = False
    """Forget everything at the end of each line of --text."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps."""
    json: bool = False
    """Print the results as JSON instead of a table."""
    dynamic_options: Annotated[DynamicOptions, tyro.conf.arg(name="dynamic")] = NO_DYNAMIC
    """For --dynamic: how the model learns. With --search, several values of an option are tried."""
    cache_options: Annotated[CacheOptions, tyro.conf.arg(name="cache")] = NO_CACHE
    """For --cache: what it remembers. With --search, several values of an option are tried."""

    @property
    def is_static(self) -> bool:
        return not (self.dynamic or self.cache)


def check(options: Options) -> None:
    """Raise for options that cannot be, or that do not go together."""
    has_text, is_static = options.text is not None, options.is_static
    for option, is_given, partner, is_there in (
        ("--dynamic.…", options.dynamic_options != NO_DYNAMIC, "--dynamic", options.dynamic),
        ("--cache.…", options.cache_options != NO_CACHE, "--cache", options.cache),
        ("--search", options.search, "--dynamic or --cache", not is_static),
        ("--search-tokens", options.search_tokens is not None, "--search", options.search),
        ("--compat", options.compat is not None, "static evaluation", is_static),
        ("--columns", options.columns not in (None, 1), "static evaluation", is_static),
        (
            "--columns and --compat",
            bool(options.columns or options.compat),
            "a split, not --text",
            not has_text,
        ),
        ("--per-token", options.per_token is not None, "--text", has_text),
        ("--per-token", options.per_token is not None, "static evaluation", is_static),
        ("--independent-lines", options.independent_lines, "--text", has_text),
        ("--independent-lines", options.independent_lines, "static evaluation", is_static),
    ):
        if is_given and not is_there:
            raise ValueError(f"{option} must go with {partner}")
    for name, count in (("columns", options.columns), ("search-tokens", options.search_tokens)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if options.per_token is not None:
        _check_per_token(options.per_token)
        if options.text is not None and options.per_token.resolve() == options.text.resolve():
            raise ValueError(f"--per-token must be another file than --text, got {options.text}")


def _check_per_token(path: Path) -> None:
    from highrank.evaluation.surprisal import check_format

    check_format(path)
    check_writable(path)


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

    settings = {"columns": text.batch_size, "compat": options.compat, **method.settings}
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
    from highrank.presets import published

    rows = published(loaded.config, loaded.corpus.name)
    return {
        "results": [{"file": str(path)} | asdict(result) for path, result in results.items()],
        "published": [row._asdict() for row in rows],
    }


def tell_searches(searches: "Mapping[str, Search[Any]]", on_stderr: bool) -> None:
    """What was tried, before the long evaluation that may yet fail."""
    from highrank.report.evaluation import search_table

    console = Console(highlight=False, stderr=on_stderr)
    for name, search in searches.items():
        console.print(search_table(name, search))


def tell(loaded: LoadedRun, results: "Mapping[Path, Result]") -> None:
    """A table of the results beside the paper's rows."""
    from highrank.presets import published
    from highrank.report.evaluation import results_table

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
        found = evaluate_by(method, loaded.model, text.tokens, text.batch_size, on_progress)
    if not math.isfinite(found.nats):
        raise ValueError(
            f"the loss on {text.name} must be finite, got {found.nats} with {method.settings}"
        )
    if options.compat is None:
        return found
    return as_the_original_divides(found, text.batch_size)
