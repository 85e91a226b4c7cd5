"""The options of `highrank evaluate`, and the mistakes in them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from highrank.cli.evaluate_method_options import CacheOptions, DynamicOptions
from highrank.cli.option import unless_given
from highrank.cli.output import check_writable

NO_DYNAMIC, NO_CACHE = DynamicOptions(), CacheOptions()


# A text in several lines keeps its line breaks in the help: each is one line.
@dataclass(frozen=True, kw_only=True)
class Options:
    split: Literal["both", "valid", "test"] = "both"
    """Which texts of the corpus."""
    columns: Annotated[int | None, unless_given("as in training; 1 for test", "INT")] = None
    """Columns of text that are read side by side; static evaluation only."""
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
