"""What is evaluated, and how: a split or a text; static, dynamic, with a cache, or with both."""

import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.data.text import check_known, read_file, tokenized_lines
from highrank.data.vocabulary import EOS
from highrank.evaluation.cache import CacheSettings, with_cache
from highrank.evaluation.dynamic import DynamicSettings, converted, score_dynamically
from highrank.evaluation.search import Search, Settings, search_cache, search_dynamic
from highrank.evaluation.static import (
    Evaluation,
    Scored,
    evaluate,
    score,
    summed,
)
from highrank.evaluation.statistics import GradientStatistics, chosen, statistics_beside
from highrank.files import file_sha256
from highrank.models.language_model import LanguageModel
from highrank.progress import OnProgress, ProgressBar, no_progress
from highrank.run.loading import LoadedRun


@dataclass(frozen=True, kw_only=True)
class Dataset:
    name: str
    """valid, test, or `text` and the name of the file."""
    tokens: NDArray[np.integer[Any]]
    """A file's are after an `<eos>`, so that its first token is predicted, too."""
    sha256: str
    """Of the tokens of the split, or of the file."""
    num_bytes: int
    """Size of the text in UTF-8."""
    num_chars: int
    lines: list[list[str]] | None = None
    """The tokens of each line of a file; None for a split."""
    unknown: Counter[str] = field(default_factory=Counter)
    """How often each token outside the vocabulary stands in a file."""

    def bits_per(self, size: int, bits: float) -> float:
        """Bits of all tokens over `size`, from the mean bits of a token.

        Tokens that are not predicted, such as the first of each stream, count like the others.
        """
        num_tokens = len(self.tokens) - (self.lines is not None)
        return bits * num_tokens / size


def find_datasets(
    loaded: LoadedRun, file: Path | None = None, splits: Sequence[str] = ("valid", "test")
) -> list[Dataset]:
    """The splits of the run's corpus or, if it is given, the text file instead."""
    if file is not None:
        return [file_dataset(loaded, file)]
    return [split_dataset(loaded, name) for name in splits]


def split_dataset(loaded: LoadedRun, name: str) -> Dataset:
    split = loaded.corpus.header.splits[name]
    return Dataset(
        name=name,
        tokens=loaded.corpus.split(name),
        sha256=split.sha256,
        num_bytes=split.num_bytes,
        num_chars=split.num_chars,
    )


def file_dataset(loaded: LoadedRun, path: Path) -> Dataset:
    """Raise ValueError unless the file has a token of the run's vocabulary."""
    text = read_file(path)
    lines = tokenized_lines(text, loaded.corpus.header.recipe)
    tokens = list(chain.from_iterable(lines))
    unknown = set(check_known(tokens, loaded.vocabulary, f"the text {path}"))
    return Dataset(
        name=f"text {path.name}",
        tokens=loaded.vocabulary.encode([EOS, *tokens]),
        sha256=file_sha256(path),
        lines=lines,
        unknown=Counter(token for token in tokens if token in unknown),
        num_bytes=len(text.encode()),
        num_chars=len(text),
    )


@dataclass(frozen=True, kw_only=True)
class Method:
    dynamic: DynamicSettings | None = None
    statistics: GradientStatistics | None = None
    """Of the training split; `dynamic` needs them for the rule rms."""
    cache: CacheSettings | None = None
    searches: Mapping[str, Search[Any]] = field(default_factory=dict)
    """What was tried on valid to find the settings, by the method's part."""

    @property
    def name(self) -> str:
        return "+".join(self.settings) or "static"

    @property
    def settings(self) -> dict[str, Any]:
        parts = {"dynamic": self.dynamic, "cache": self.cache}
        return {name: asdict(part) for name, part in parts.items() if part is not None}

    def score(
        self, model: LanguageModel, tokens: NDArray[np.integer]
    ) -> Generator[Scored, None, None]:
        """One stream. The cache compares hidden states of the model that learns."""
        if self.dynamic is None:
            segments = score(model, tokens)
        else:
            segments = score_dynamically(model, tokens, self.dynamic, self.statistics)
        return segments if self.cache is None else with_cache(segments, self.cache)


def evaluate_by(
    method: Method,
    model: LanguageModel,
    tokens: NDArray[np.integer],
    batch_size: int = 1,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Mean loss of the tokens; only static evaluation has more than one stream."""
    if method.name == "static":
        return evaluate(model, tokens, batch_size, on_progress=on_progress)
    if batch_size != 1:
        raise ValueError(f"batch_size must be 1 for {method.name} evaluation, got {batch_size}")
    return summed(method.score(model, tokens), len(tokens) - 1, on_progress)


def find_method(
    loaded: LoadedRun,
    dynamic: Sequence[DynamicSettings] = (),
    cache: Sequence[CacheSettings] = (),
    *,
    convention: str = "paper",
    is_search: bool = False,
    search_tokens: int | None = None,
    progress: ProgressBar = no_progress,
) -> Method:
    """The method with the best of the settings on valid: first how to learn, then the cache on top.

    Args:
        dynamic: as `dynamic_grid` makes them; none for a model that does not learn.
        cache: as `cache_grid` makes them; none for no cache.
        convention: of `dynamic`, a key of `highrank.evaluation.dynamic.CONVENTIONS`.
        is_search: if not, the first settings are taken, and nothing is tried.
        search_tokens: predict only so many of the first tokens of valid in a search.
    """
    method, model = Method(), loaded.model
    # Only a search needs the corpus: without one a run's folder is enough.
    valid: NDArray[np.integer] = np.empty(0, np.int64)
    if is_search:
        valid = loaded.corpus.split("valid")[: search_tokens and search_tokens + 1]
    if dynamic:
        chosen(model, dynamic[0].adapt)
        statistics = _statistics(loaded, dynamic[0], progress)
        dynamic = [_as_the_paper_s(settings, convention, statistics) for settings in dynamic]
        method = Method(dynamic=dynamic[0], statistics=statistics)
        if is_search:
            with progress(f"Trying {len(dynamic)} ways to learn, on valid") as on_progress:
                found = search_dynamic(model, valid, statistics, dynamic, on_progress=on_progress)
            best = _best(found, "lr")
            method = replace(method, dynamic=best, searches={"dynamic": found})
    if cache:
        if not is_search:
            return replace(method, cache=cache[0])
        with progress(f"Trying {len(cache)} settings of the cache, on valid") as on_progress:
            tried = search_cache(method.score(model, valid), cache, len(valid) - 1, on_progress)
        searches = {**method.searches, "cache": tried}
        method = replace(method, cache=_best(tried, "theta"), searches=searches)
    return method


def _statistics(
    loaded: LoadedRun, settings: DynamicSettings, progress: ProgressBar
) -> GradientStatistics | None:
    if settings.rule != "rms":
        return None
    with progress("Gradient statistics of the training split") as on_progress:
        train = loaded.corpus.split("train")
        return statistics_beside(
            loaded.folder, loaded.model, train, segment=settings.segment, on_progress=on_progress
        )


def _as_the_paper_s(
    settings: DynamicSettings, convention: str, statistics: GradientStatistics | None
) -> DynamicSettings:
    if statistics is None or convention == "paper":
        return settings
    num_batches, num_tensors = statistics.num_batches, statistics.num_tensors
    return converted(settings, convention, num_batches=num_batches, num_tensors=num_tensors)


def _best(search: Search[Settings], name: str) -> Settings:
    """The best settings; there are none if no trial has a finite loss."""
    if search.best.nats == math.inf:
        raise ValueError(f"No trial has a finite loss: try a lower {name}.")
    return search.best.settings
