"""Options of `highrank evaluate`, and which of them go together."""

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from highrank.cli.console import Threads, unless_given
from highrank.files import check_writable

if TYPE_CHECKING:
    from highrank.evaluation.cache import CacheSettings
    from highrank.evaluation.dynamic import DynamicSettings


@dataclass(frozen=True, kw_only=True)
class DynamicOptions:
    """For --dynamic. With --search, give several values to try all combinations of them."""

    lr: Annotated[
        tuple[float, ...], unless_given("best of 0 to 5e-5; with --search seven, to 1e-4")
    ] = ()
    """η, the learning rate."""
    epsilon: Annotated[tuple[float, ...], unless_given("2e-5")] = ()
    """ε, added to the gradients' root mean square."""
    decay: Annotated[
        tuple[float, ...], unless_given("2e-3; with --search four from 1e-3 to 5e-3")
    ] = ()
    """λ, the pull toward the trained weights."""
    convention: Literal["paper", "original", "ms"] = "paper"
    """Whose lr, epsilon and decay: of Krause et al., or of Yang et al.'s code (ms: with --ms)."""
    segment: int = 5
    """Tokens that are scored, then learned from, at once."""
    rule: Literal["rms", "sgd"] = "rms"
    """rms: steps scaled by gradient statistics of the training split. sgd: plain steps."""
    adapt: Annotated[tuple[str, ...], unless_given("all")] = ()
    """Parameters or modules that learn, such as head or backbone.layers.1."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """For --cache. With --search, give several values to try all combinations of them."""

    window: Annotated[tuple[int, ...], unless_given("best of 100, 500, 2000")] = ()
    """Tokens that are remembered."""
    theta: Annotated[tuple[float, ...], unless_given("best of seven from 0 to 1")] = ()
    """θ: 0 counts all remembered tokens alike, 1 mostly those after similar states."""
    weight: Annotated[tuple[float, ...], unless_given("best of seven from 0 to 0.3")] = ()
    """λ, the weight of the cache."""


NO_DYNAMIC, NO_CACHE = DynamicOptions(), CacheOptions()


# A help text in several lines keeps its line breaks: each is one line.
@dataclass(frozen=True, kw_only=True)
class Options:
    split: Literal["both", "valid", "test"] = "both"
    """Which splits of the corpus."""
    batch_size: Annotated[int | None, unless_given("as in training; 1 for test", "INT")] = None
    """Streams of the corpus that are evaluated in parallel; static evaluation only."""
    compat: Annotated[Literal["mos"] | None, unless_given("by predicted tokens", "{mos}")] = None
    """Divide the loss as the original code, mos, does, to compare with its logs."""
    all: bool = False
    """Static, dynamic and with a cache, as rows of one table, each split as one stream."""
    baselines: bool = False
    """Also a temperature, fitted on valid, and a 5-gram model of the training split, alone."""
    dynamic: bool = False
    """Learn from each segment after it was scored. Passes over the training split once first."""
    cache: bool = False
    """Make tokens likelier that followed similar states before: a neural cache."""
    search: bool = False
    """Try many settings of --dynamic and --cache on all of valid, and take the best."""
    search_tokens: Annotated[int | None, unless_given("all", "INT")] = None
    """Search on so many first tokens of valid only."""
    text: Annotated[Path | None, unless_given("none", "FILE")] = None
    """Evaluate this file instead of the corpus; it is tokenized as the corpus was."""
    per_token: Annotated[Path | None, unless_given("none", "FILE")] = None
    """Write probability, surprisal, rank, weights of --text's tokens to this .csv or .jsonl."""
    independent_lines: bool = False
    """Forget everything at the end of each line of --text."""
    context: Annotated[int | None, unless_given("the longest, at most 1024", "INT")] = None
    """Tokens that a Hugging Face model reads at once."""
    stride: Annotated[int | None, unless_given("half of the context", "INT")] = None
    """Tokens from one window to the next; those between are predicted."""
    device: str = "cpu"
    """As torch names it: cpu, cuda, mps."""
    threads: Threads = None
    """Threads of the matrix multiplies."""
    json: bool = False
    """Print the results as JSON instead of a table."""
    dynamic_options: Annotated[DynamicOptions, tyro.conf.arg(name="dynamic")] = NO_DYNAMIC
    """For --dynamic: how the model learns. With --search, several values of an option are tried."""
    cache_options: Annotated[CacheOptions, tyro.conf.arg(name="cache")] = NO_CACHE
    """For --cache: what it remembers. With --search, several values of an option are tried."""

    @property
    def is_given(self) -> bool:
        """Whether a setting of the methods was chosen."""
        dynamic, cache = self.dynamic_options, self.cache_options
        return any((dynamic.lr, dynamic.epsilon, dynamic.decay, *astuple(cache)))

    def grids(
        self, can_search: bool = True
    ) -> "list[tuple[Sequence[DynamicSettings], Sequence[CacheSettings]]]":
        """For each method, the settings to try of dynamic evaluation and of the cache.

        Args:
            can_search: whether the corpus is there, on which settings are tried.
        """
        from highrank.evaluation.cache import CacheSettings
        from highrank.evaluation.grids import cache_grid, dynamic_grid

        ways = dynamic_grid(**asdict(self.dynamic_options), is_search=self.search)
        caches = cache_grid(**asdict(self.cache_options), is_search=self.search)
        if not (can_search or self.search) and len(caches) > 1:
            caches = (CacheSettings(),)
        if self.all:
            return [((), ()), (ways, ()), ((), caches)]
        return [(ways if self.dynamic else (), caches if self.cache else ())]


def check(options: Options, is_foreign: bool = False) -> None:
    """Raise for options that cannot be, or that do not go together.

    Args:
        is_foreign: whether there is a Hugging Face model among the models.
    """
    is_all, is_dynamic = options.all, options.dynamic or options.all
    is_cache = options.cache or is_all
    is_file, is_static = options.text is not None, not (is_dynamic or is_cache)
    # Of the methods, dynamic evaluation alone is not done token by token.
    is_token_wise, text = is_file and not is_dynamic, "--text, and without --dynamic and --all"
    is_split_only = options.batch_size is not None or options.compat is not None
    is_windowed = options.context is not None or options.stride is not None
    if is_all and (options.dynamic or options.cache):
        raise ValueError("--all must come without --dynamic and --cache: it has both")
    for option, is_given, partner, is_there in (
        ("--dynamic.…", options.dynamic_options != NO_DYNAMIC, "--dynamic", is_dynamic),
        ("--cache.…", options.cache_options != NO_CACHE, "--cache", is_cache),
        ("--search", options.search, "--dynamic, --cache or --all", not is_static),
        ("--search-tokens", options.search_tokens is not None, "--search", options.search),
        ("--baselines", options.baselines, "static evaluation or --all", is_static or is_all),
        ("--baselines", options.baselines, "lines in a row", not options.independent_lines),
        ("--compat", options.compat is not None, "static evaluation", is_static),
        ("--batch-size", options.batch_size not in (None, 1), "static evaluation", is_static),
        ("--batch-size and --compat", is_split_only, "a split, not --text", not is_file),
        ("--per-token", options.per_token is not None, text, is_token_wise),
        ("--independent-lines", options.independent_lines, text, is_token_wise),
        ("--context and --stride", is_windowed, "Hugging Face models", is_foreign),
    ):
        if is_given and not is_there:
            raise ValueError(f"{option} must go with {partner}")
    for name in ("batch_size", "search_tokens"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise ValueError(f"{name.replace('_', '-')} must be at least 1, got {count}")
    if options.per_token is not None and options.text is not None:
        from highrank.evaluation.surprisal import check_format

        check_format(options.per_token)
        check_writable(options.per_token)
        if options.per_token.resolve() == options.text.resolve():
            raise ValueError(f"--per-token must be another file than --text, got {options.text}")


def check_static(options: Options, name: str) -> None:
    """Raise unless several models, or one of Hugging Face, can be evaluated with these options."""
    if options.text is None:
        raise ValueError(
            f"--text FILE must be given for {name}: only a single run has splits of its own"
        )
    for option, is_given in (
        ("--all", options.all),
        ("--dynamic", options.dynamic),
        ("--cache", options.cache),
        ("--per-token", options.per_token is not None),
        ("--independent-lines", options.independent_lines),
    ):
        if is_given:
            raise ValueError(f"{option} must go with a single run, got {name}")
