"""Prepare a corpus: from a known name or the user's text to a folder in the cache."""

import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from highrank import __version__
from highrank.data.catalog import (
    CATALOG,
    DEFAULT_CORPUS,
    cache_folder,
    corpus_folder,
    find_corpus,
    known_corpus,
    prepared_folder,
)
from highrank.data.corpus import (
    FORMAT,
    HEADER_FILE,
    SPLITS,
    VOCABULARY_FILE,
    Corpus,
    Header,
    Recipe,
    Source,
    load_corpus,
    write_counts,
)
from highrank.data.encode import Spans, encode_text
from highrank.data.sources import download_files, own_files, package_files
from highrank.data.subwords import check_name
from highrank.data.text import PART_BYTES, file_span, split_text
from highrank.data.tokenizer import TOKENIZERS
from highrank.files import (
    clear_leftovers,
    explained_full_disk,
    file_sha256,
    lock_file,
    new_folder,
)
from highrank.progress import OnProgress, ProgressBar, silent

# Temporary names add some; a file's may have 255 bytes in all.
MAX_NAME = 100
# Below, a process more takes longer than it saves.
BYTES_PER_PROCESS = 1 << 25


class Prepared(NamedTuple):
    corpus: Corpus
    is_new: bool
    """False if the same corpus was there already, and nothing was done."""


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How the user's own text becomes tokens."""

    tokenizer: str = "words"
    """Tokens: words and punctuation marks (words), what lies between spaces (whitespace), single
    characters (characters), or subwords that the training split teaches (bpe:8000, unigram:8000).
    """
    min_count: int = 3
    """Tokens that occur less often in the training split become <unk>; subwords have no <unk>."""
    max_vocab: int | None = None
    """Keep only so many tokens, <unk> and <eos> among them: the most frequent ones."""
    lower: bool = False
    """Lower-case the text first."""

    def __post_init__(self) -> None:
        if ":" in self.tokenizer:
            check_name(self.tokenizer)
        elif self.tokenizer not in TOKENIZERS:
            known = ", ".join(TOKENIZERS)
            raise ValueError(
                f"tokenizer must be {known}, bpe:N or unigram:N, got {self.tokenizer!r}"
            )
        if self.min_count < 1:
            raise ValueError(f"min_count must be at least 1, got {self.min_count}")
        if self.max_vocab is not None and self.max_vocab < 4:
            raise ValueError(f"max_vocab must be at least 4, got {self.max_vocab}")


def prepare_known(
    name: str,
    *,
    source: Path | None = None,
    own_name: str | None = None,
    cache: Path | None = None,
    force: bool = False,
    processes: int | None = None,
    on_progress: OnProgress = silent,
) -> Prepared:
    """Prepare a corpus of the catalogue, and check it against the published hashes and counts.

    Args:
        source: folder or archive with its files; None to take the installed package or download.
        own_name: for other text in files of the same names: what to call it. Nothing is checked.
        cache: instead of the user's cache folder.
        force: prepare it even if one of that name is there, and replace that.
        processes: None for as many as there are cores, fewer for a short text.
    """
    known, target = known_corpus(name), _target(own_name or name, cache)
    if known is None:
        raise ValueError(f"the corpus must be one of {', '.join(CATALOG)}, got {name!r}")
    if own_name is not None and known_corpus(own_name) is not None:
        raise ValueError(f"--name must not be that of a known corpus, got {own_name}")
    if source is None and own_name is not None:
        raise ValueError(f"--name must go with --from, the folder of your files, got {own_name}")
    if source is None and not force and target.exists():
        return Prepared(_existing(target, known.recipe), is_new=False)
    downloads = cache_folder(cache) / "downloads" / name
    downloads.mkdir(parents=True, exist_ok=True)
    with explained_full_disk(target), TemporaryDirectory(dir=downloads) as scratch:
        if source is not None:
            files = own_files(name, source, Path(scratch), is_checked=own_name is None)
        elif known.package is not None:
            files = package_files(name)
        else:
            files = download_files(name, downloads, Path(scratch), _part(on_progress, 0.0, 0.5))
            on_progress = _part(on_progress, 0.5, 1.0)
        spans = {split: [file_span(file) for file in files[split]] for split in SPLITS}
        plan = _Plan(spans, known.recipe, _sources(spans))
        prepared = _prepare(target, plan, force, processes, on_progress)
    shutil.rmtree(downloads, ignore_errors=True)
    return prepared


def prepare_text(
    path: Path,
    *,
    name: str | None = None,
    options: TextOptions | None = None,
    cache: Path | None = None,
    force: bool = False,
    processes: int | None = None,
    on_progress: OnProgress = silent,
) -> Prepared:
    """Prepare a text file, or a folder of .txt files, of the user's.

    Args:
        name: what to call it; None for the name of the file or folder.
        cache, force, processes: as in `prepare_known`.
    """
    name = name or default_name(path)
    if not name:
        raise ValueError(f"no name can be made of {path}: give one with --name")
    if known_corpus(name) is not None:
        raise ValueError(f"{name} is a known corpus: choose another name for {path} with --name")
    target = _target(name, cache)
    return _prepare(target, _plan(path, options or TextOptions()), force, processes, on_progress)


def find_or_prepare(
    path: Path,
    *,
    tokenizer: str | None = None,
    cache: Path | None = None,
    on_progress: OnProgress = silent,
) -> Prepared:
    """The user's text as it was prepared before, with any options; else with the default ones.

    Where another text has its name, a hash is added to the name: no corpus is replaced.

    Args:
        tokenizer: as in `TextOptions`; the corpus is named after it, too. None takes any.
    """
    plan = _plan(path, TextOptions() if tokenizer is None else TextOptions(tokenizer=tokenizer))
    name = default_name(path) or "text"
    name += "" if tokenizer is None else f"-{tokenizer.replace(':', '-')}"
    target = _target(name, cache)
    is_known = known_corpus(name) is not None
    if not is_known and target.exists():
        header = load_corpus(target).header
        is_same = tokenizer is None or header.recipe.tokenizer == tokenizer
        if is_same and _hashes(header.sources) == _hashes(plan.sources):
            return Prepared(load_corpus(target), is_new=False)
    if is_known or target.exists():
        name += f"-{sha256(repr(_hashes(plan.sources)).encode()).hexdigest()[:8]}"
    return _prepare(_target(name, cache), plan, False, None, on_progress)


def resolve_corpus(name: str, progress: ProgressBar, tokenizer: str | None = None) -> Corpus:
    """The corpus that a user means: a prepared name or folder, or the path of a text.

    A text is prepared unless it was, and so is the default corpus, which needs no download.

    Args:
        tokenizer: of a text.
    """
    is_prepared = prepared_folder(name) is not None
    if name == DEFAULT_CORPUS and not is_prepared:
        with progress("Preparing the State of the Union addresses") as on_progress:
            return prepare_known(name, on_progress=on_progress).corpus
    if is_prepared or known_corpus(name) is not None or not Path(name).exists():
        return find_corpus(name)
    with progress(f"Preparing {name}") as on_progress:
        return find_or_prepare(Path(name), tokenizer=tokenizer, on_progress=on_progress).corpus


class _Plan(NamedTuple):
    """What a corpus is to be made of, and how."""

    spans: Spans
    recipe: Recipe
    sources: tuple[Source, ...]


def _plan(path: Path, options: TextOptions) -> _Plan:
    """The plan for a text of the user's."""
    spans, rule = split_text(path)
    recipe = Recipe(
        tokenizer=options.tokenizer,
        split=rule,
        lower=options.lower,
        min_count=options.min_count,
        max_vocab=options.max_vocab,
    )
    return _Plan(spans, recipe, _sources(spans, path if path.is_dir() else path.parent))


def _target(name: str, cache: Path | None) -> Path:
    """The corpus' folder, restored if a killed process had moved it away."""
    target = corpus_folder(name, cache)
    clear_leftovers(target)
    return target


def _prepare(
    target: Path, plan: _Plan, force: bool, processes: int | None, on_progress: OnProgress
) -> Prepared:
    if processes is not None and processes < 1:
        raise ValueError(f"processes must be at least 1, got {processes}")
    if target.exists() and not force:
        return Prepared(_existing(target, plan.recipe, plan.sources), is_new=False)
    if target.exists() and not (target / HEADER_FILE).is_file():
        raise ValueError(
            f"{target} is not a prepared corpus and will not be replaced: move it away"
        )
    with (
        _kept_scratch(target, plan) as scratch,
        new_folder(target, replace=force) as folder,
    ):
        vocabulary, dtype, splits, counts, recipe = encode_text(
            plan.spans, plan.recipe, folder, scratch, on_progress, processes or _processes(plan)
        )
        header = Header(
            name=target.name,
            level=recipe.level,
            dtype=dtype,
            splits=splits,
            vocab_size=len(vocabulary),
            vocab_sha256=vocabulary.sha256,
            sources=plan.sources,
            recipe=recipe,
            made_by=f"highrank {__version__}",
        )
        _check_counts(header)
        vocabulary.save(folder / VOCABULARY_FILE)
        write_counts(folder, counts)
        (folder / HEADER_FILE).write_text(header.to_json(), encoding="utf-8")
    on_progress(1.0, "done")
    return Prepared(load_corpus(target), is_new=True)


@contextmanager
def _kept_scratch(target: Path, plan: _Plan) -> Iterator[Path]:
    """Yield a folder in which the next call finds the finished parts of one that was interrupted.

    It is kept on Ctrl-C and when the process is killed, and removed at the end and on errors. If
    another process has it, this one gets a folder of its own.
    """
    folder = target.parent.parent / "preparing" / target.name
    folder.mkdir(parents=True, exist_ok=True)
    hashes = dict(zip(_files(plan.spans), _hashes(plan.sources), strict=True))
    spans = [(split, hashes[path], *ends) for split in SPLITS for path, *ends in plan.spans[split]]
    key = repr((FORMAT, PART_BYTES, plan.recipe, spans))
    with (folder / "plan.txt").open("a+", encoding="utf-8") as file:
        if not lock_file(file.fileno()) or not Path(file.name).exists():
            with TemporaryDirectory(dir=folder.parent) as own:
                yield Path(own)
            return
        file.seek(0)
        if file.read() != key:
            for other in folder.iterdir():
                if other.name != Path(file.name).name:
                    other.unlink()
            file.truncate(0)
            file.write(key)
            file.flush()
        try:
            yield folder
        except KeyboardInterrupt:
            raise
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _existing(target: Path, recipe: Recipe, sources: tuple[Source, ...] | None = None) -> Corpus:
    """The corpus that is there, if it was made in the same way of the same files."""
    corpus = load_corpus(target)
    is_same = sources is None or _hashes(corpus.header.sources) == _hashes(sources)
    if not is_same or corpus.header.recipe != recipe:
        other_name = "" if known_corpus(corpus.name) else ", or give your text another --name"
        raise ValueError(
            f"another corpus is already prepared as {corpus.name} in {target}: replace it with "
            f"--force{other_name}"
        )
    return corpus


def _hashes(sources: tuple[Source, ...]) -> list[str]:
    return [source.sha256 for source in sources]


def _check_counts(header: Header) -> None:
    """Raise if this is a known corpus and its counts are not the published ones."""
    if (known := known_corpus(header.name)) is None:
        return
    wanted = {f"{split} tokens": want for split, want in (known.num_tokens or {}).items()}
    found = {f"{name} tokens": split.num_tokens for name, split in header.splits.items()}
    wanted |= {f"unknown {split} tokens": want for split, want in known.num_unknown.items()}
    found |= {f"unknown {name} tokens": split.num_unknown for name, split in header.splits.items()}
    if known.vocab_size is not None:
        wanted["distinct tokens"], found["distinct tokens"] = known.vocab_size, header.vocab_size
    for what, want in wanted.items():
        if found[what] != want:
            raise ValueError(
                f"{header.name} must have {want:,} {what}, got {found[what]:,}: "
                "these are not the published files"
            )


def _files(spans: Spans) -> list[Path]:
    """Each file once, in order of first use."""
    return list(dict.fromkeys(span.path for split in SPLITS for span in spans[split]))


def _sources(spans: Spans, base: Path | None = None) -> tuple[Source, ...]:
    """The files; names are relative, so that folders can move."""
    files = _files(spans)
    with ThreadPoolExecutor(_num_cores()) as threads:
        hashes = list(threads.map(file_sha256, files))
    return tuple(
        Source(
            name=file.relative_to(base).as_posix() if base else file.name,
            num_bytes=file.stat().st_size,
            sha256=found,
        )
        for file, found in zip(files, hashes, strict=True)
    )


def _num_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processes(plan: _Plan) -> int:
    total = sum(end - start for spans in plan.spans.values() for _, start, end in spans)
    return max(1, min(_num_cores(), total // BYTES_PER_PROCESS))


def default_name(path: Path) -> str:
    """The name of a file or folder as far as it can be a corpus'; it may be empty."""
    name = path.resolve().name if path.is_dir() else path.resolve().stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:MAX_NAME].strip("-._")


def _part(on_progress: OnProgress, low: float, high: float) -> OnProgress:
    return lambda fraction, activity: on_progress(low + (high - low) * fraction, activity)
