"""Evaluation of a split or a text file: a number and all that it takes to trust it.

Results are JSON files in the run's folder.
"""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.data.text import check_known, read_file, tokenized_lines
from highrank.data.tokenizer import unit_of
from highrank.data.vocabulary import EOS
from highrank.environment import Environment, environment
from highrank.evaluation.check import Finding, quick_check
from highrank.evaluation.search import Method, evaluate_by
from highrank.evaluation.static import as_the_original_divides
from highrank.evaluation.surprisal import evaluate_lines
from highrank.files import check_writable, file_sha256, write_atomically
from highrank.progress import ProgressBar, no_progress
from highrank.run.loading import LoadedRun

FORMAT, VERSION = "highrank result", 2


@dataclass(frozen=True, kw_only=True)
class Dataset:
    name: str
    """valid, test, or `text` and the name of the file."""
    tokens: NDArray[np.integer[Any]]
    """A file's are after an `<eos>`, so that its first token is predicted, too."""
    sha256: str
    """Hash of the tokens of the split, or of the file."""
    num_bytes: int
    """Size of the text in UTF-8."""
    num_chars: int
    lines: list[list[str]] | None = None
    """The tokens of each line of a file; None for a split."""
    unknown: Counter[str] = field(default_factory=Counter)
    """How often each token outside the vocabulary stands in a file."""
    num_unknown: int = 0
    """Tokens that are read as `<unk>`."""
    is_trained_on: bool = False
    """Whether it is the one file that the run's corpus was split from."""

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
        num_unknown=split.num_unknown,
    )


def file_dataset(loaded: LoadedRun, path: Path) -> Dataset:
    """Raise ValueError unless the file has a token of the run's vocabulary."""
    text = read_file(path)
    lines = tokenized_lines(text, loaded.corpus.header.recipe)
    tokens = list(chain.from_iterable(lines))
    names = set(check_known(tokens, loaded.vocabulary, f"the text {path}"))
    unknown = Counter(token for token in tokens if token in names)
    digest = file_sha256(path)
    return Dataset(
        name=f"text {path.name}",
        tokens=loaded.vocabulary.encode([EOS, *tokens]),
        sha256=digest,
        lines=lines,
        unknown=unknown,
        num_unknown=unknown.total(),
        num_bytes=len(text.encode()),
        num_chars=len(text),
        # One file is always cut: what is prepared as three has a source for each.
        is_trained_on=[one.sha256 for one in loaded.corpus.header.sources] == [digest],
    )


@dataclass(frozen=True, kw_only=True)
class Result:
    """One evaluation of one dataset."""

    value: float
    unit: str
    """Unit of `value`: "perplexity per word" or "perplexity per character"."""
    nats: float
    """Mean of a predicted token."""
    bits: float
    """The same, in bits per token: a word or a character."""
    bits_per_byte: float
    """All bits over the size of the text in UTF-8; a lower bound where there are <unk>, since what
    they stand for is not spelled."""
    bits_per_char: float
    num_tokens: int
    """How many were predicted."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Tokens that are read as <unk>; for a text file, also how many of them are distinct."""
    split: str
    """valid, test, or `text` and the name of a text file."""
    method: str
    """static, dynamic, cache, dynamic+cache, temperature or 5-gram."""
    settings: Mapping[str, Any]
    """Settings of the method, with the batch size."""
    check: tuple[Finding, ...] | None = None
    """Whether the method's scores are those of a distribution, where the head has further
    components or the method is not static; None for one that is by its form."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Trials on valid that found the settings; empty if they were given."""
    run: str
    model_sha256: str
    """Hash of model.safetensors."""
    corpus: str
    data_sha256: str
    """Hash of the tokens of the split, or of the text file."""
    seconds: float
    """For this evaluation, the search left out."""
    environment: Environment


def evaluate_dataset(
    loaded: LoadedRun,
    dataset: Dataset,
    method: Method,
    *,
    batch_size: int | None = None,
    compat: str | None = None,
    per_token: Path | None = None,
    independent_lines: bool = False,
    progress: ProgressBar = no_progress,
) -> Result:
    """Evaluate the run's best model; the result is not written yet.

    Args:
        batch_size: for static evaluation of a split; as in the paper if None: that of the run's
            validation for valid, 1 for test.
        compat: "mos" divides the loss as the original code does.
        per_token: a .csv or .jsonl for the numbers of each token of a file; not dynamic.
        independent_lines: forget everything at the end of each line of a file; not dynamic.
    """
    if batch_size is None:
        is_valid = method.is_static and dataset.name == "valid"
        batch_size = loaded.config.valid_batch_size if is_valid else 1
    settings: dict[str, Any] = {"batch_size": batch_size, "compat": compat, **method.settings}
    start, model = time.monotonic(), loaded.model
    # Of a corpus whose lines are alone, a file's are, too.
    is_alone = loaded.corpus.header.recipe.independent_lines
    if is_alone and compat is not None:
        raise ValueError(f"--compat must not be given where every line is alone, got {compat}")
    if (context := method.context_length(model)) is not None:
        # Wherever a window begins: every token is predicted from as many as can be seen.
        settings |= {"context": context, "stride": 1}
    with progress(f"Evaluating on {dataset.name}, {method.name}") as on_progress:
        is_asked = method.is_static or per_token is not None or independent_lines
        if dataset.lines is not None and method.dynamic is None and is_asked:
            settings["independent_lines"] = independent_lines or is_alone
            found = evaluate_lines(
                model,
                loaded.vocabulary,
                dataset.lines,
                independent=independent_lines or is_alone,
                cache=method.cache,
                out=per_token,
                on_progress=on_progress,
            )
        else:
            end = loaded.vocabulary.eos if is_alone and dataset.lines is None else None
            found = evaluate_by(method, model, dataset.tokens, batch_size, on_progress, end)
    if not math.isfinite(found.nats):
        raise ValueError(f"The loss on {dataset.name} is {found.nats}, with {method.settings}.")
    if compat is not None:
        found = as_the_original_divides(found, batch_size)
    seconds, unknown = time.monotonic() - start, {"tokens": dataset.num_unknown}
    if dataset.lines is not None:
        unknown["distinct"] = len(dataset.unknown)
    return Result(
        value=found.perplexity,
        unit=f"perplexity per {unit_of(loaded.corpus.header.recipe.tokenizer)}",
        nats=found.nats,
        bits=found.bits,
        bits_per_byte=dataset.bits_per(dataset.num_bytes, found.bits),
        bits_per_char=dataset.bits_per(dataset.num_chars, found.bits),
        num_tokens=found.num_tokens,
        unknown=unknown,
        split=dataset.name,
        method=method.name,
        settings=settings,
        check=quick_check(model, dataset.tokens, method),
        search={name: search.as_json() for name, search in method.searches.items()},
        run=str(loaded.folder),
        model_sha256=loaded.sha256,
        corpus=loaded.corpus.name,
        data_sha256=dataset.sha256,
        seconds=seconds,
        environment=environment(),
    )


def result_folder(run: Path) -> Path:
    """Where the results of a run go; it is made with the first of them. Raise if it cannot be."""
    folder = run / "results"
    if folder.is_symlink():
        raise ValueError(f"{folder} must be a folder, got a link")
    check_writable((folder if folder.exists() else run) / "result.json")
    return folder


def write_result(folder: Path, result: Result) -> Path:
    """A new file in the folder, named by date, method and split."""
    folder.mkdir(exist_ok=True)
    date = result.environment.date.replace(" ", "-").replace(":", "")
    # A name may have 255 bytes in all.
    split = re.sub(r"[^\w.-]+", "-", result.split).encode()[:120].decode(errors="ignore")
    path = _reserve(folder, f"{date}-{result.method}-{split}")
    text = json.dumps({"format": FORMAT, "version": VERSION} | asdict(result), indent=2) + "\n"
    try:
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _reserve(folder: Path, name: str) -> Path:
    """An empty file of a new name: another process that writes now takes the next."""
    for n in count(1):
        path = folder / (f"{name}.json" if n == 1 else f"{name}-{n}.json")
        with suppress(FileExistsError):
            path.touch(exist_ok=False)
            return path
    raise AssertionError
