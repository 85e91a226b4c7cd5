"""A number and all that it takes to trust it: one JSON file for each, in the run's folder."""

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from highrank.data.tokenizer import unit_of
from highrank.environment import Environment, environment
from highrank.evaluation.method import Dataset, Method, evaluate_by
from highrank.evaluation.static import (
    Evaluation,
    as_the_original_divides,
)
from highrank.evaluation.surprisal import evaluate_lines
from highrank.files import check_writable, write_atomically
from highrank.progress import ProgressBar, no_progress
from highrank.run.loading import LoadedRun

FORMAT, VERSION = "highrank result", 2


@dataclass(frozen=True, kw_only=True)
class Result:
    """One evaluation of one dataset."""

    value: float
    unit: str
    """What `value` is: "perplexity per word" or "perplexity per character"."""
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
    """Of a text file: tokens outside the vocabulary, which were read as <unk>, and how many of them
    are distinct; empty for a split."""
    split: str
    """valid, test, or `text` and the name of a text file."""
    method: str
    """static, dynamic, cache or dynamic+cache."""
    settings: Mapping[str, Any]
    """Of the method, with the batch size."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """What was tried on valid to find the settings; empty if they were given."""
    run: str
    model_sha256: str
    """Of model.safetensors."""
    corpus: str
    data_sha256: str
    """Of the tokens of the split, or of the text file."""
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
    is_static = method.name == "static"
    if batch_size is None:
        is_valid = is_static and dataset.name == "valid"
        batch_size = loaded.config.valid_batch_size if is_valid else 1
    settings: dict[str, Any] = {"batch_size": batch_size, "compat": compat, **method.settings}
    start = time.monotonic()
    with progress(f"Evaluating on {dataset.name}, {method.name}") as on_progress:
        is_asked = is_static or per_token is not None or independent_lines
        if dataset.lines is not None and method.dynamic is None and is_asked:
            settings["independent_lines"] = independent_lines
            found = evaluate_lines(
                loaded.model,
                loaded.vocabulary,
                dataset.lines,
                independent=independent_lines,
                cache=method.cache,
                out=per_token,
                on_progress=on_progress,
            )
        else:
            found = evaluate_by(method, loaded.model, dataset.tokens, batch_size, on_progress)
    if not math.isfinite(found.nats):
        raise ValueError(f"The loss on {dataset.name} is {found.nats}, with {method.settings}.")
    if compat is not None:
        found = as_the_original_divides(found, batch_size)
    return _result(loaded, dataset, method, settings, found, time.monotonic() - start)


def _result(
    loaded: LoadedRun,
    dataset: Dataset,
    method: Method,
    settings: Mapping[str, Any],
    found: Evaluation,
    elapsed: float,
) -> Result:
    unknown = {"tokens": dataset.unknown.total(), "distinct": len(dataset.unknown)}
    return Result(
        value=found.perplexity,
        unit=f"perplexity per {unit_of(loaded.corpus.header.recipe.tokenizer)}",
        nats=found.nats,
        bits=found.bits,
        bits_per_byte=dataset.bits_per(dataset.num_bytes, found.bits),
        bits_per_char=dataset.bits_per(dataset.num_chars, found.bits),
        num_tokens=found.num_tokens,
        unknown={} if dataset.lines is None else unknown,
        split=dataset.name,
        method=method.name,
        settings=settings,
        search={name: search.as_json() for name, search in method.searches.items()},
        run=str(loaded.folder),
        model_sha256=loaded.sha256,
        corpus=loaded.corpus.name,
        data_sha256=dataset.sha256,
        seconds=elapsed,
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
    path, n = folder / f"{name}.json", 1
    while True:
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            n += 1
            path = folder / f"{name}-{n}.json"
        else:
            return path
