"""All corpora at a glance: the known ones, and what the user has prepared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from highrank.data.cache import NAME, cache_folder, corpus_folder
from highrank.data.catalog import CATALOG
from highrank.data.corpus import HEADER_FILE, Corpus, load_corpus


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One corpus; what is not known is None."""

    name: str
    title: str
    licence: str | None
    addresses: tuple[str, ...]
    num_tokens: Mapping[str, int] | None
    """Per split: as prepared, else as published."""
    vocab_size: int | None
    prepared: str | None
    """Its folder."""
    problem: str | None
    """Why it is there but cannot be used."""


def list_corpora(cache: Path | None = None) -> list[Listing]:
    """The catalogue in its order, then the user's own by name."""
    prepared = _prepared_names(cache)
    own = [name for name in prepared if name not in CATALOG]
    return [_listing(name, name in prepared, cache) for name in (*CATALOG, *own)]


def _prepared_names(cache: Path | None) -> list[str]:
    folder = cache_folder(cache) / "corpora"
    if not folder.is_dir():
        return []
    found = (entry for entry in folder.iterdir() if (entry / HEADER_FILE).is_file())
    return sorted(entry.name for entry in found if NAME.fullmatch(entry.name))


def _listing(name: str, is_prepared: bool, cache: Path | None) -> Listing:
    known = CATALOG.get(name)
    folder = corpus_folder(name, cache)
    corpus, problem = None, None
    if is_prepared:
        try:
            corpus = load_corpus(folder)
        except (ValueError, OSError) as error:
            problem = str(error)
    num_tokens, vocab_size = (known.num_tokens, known.vocab_size) if known else (None, None)
    if corpus is not None:
        num_tokens = {split: info.num_tokens for split, info in corpus.header.splits.items()}
        vocab_size = corpus.header.vocab_size
    return Listing(
        name=name,
        title=known.title if known else _own_title(corpus),
        licence=known.licence if known else None,
        addresses=known.addresses if known else (),
        num_tokens=num_tokens,
        vocab_size=vocab_size,
        prepared=None if corpus is None else str(folder),
        problem=problem,
    )


def _own_title(corpus: Corpus | None) -> str:
    if corpus is None:
        return "your text"
    sources = corpus.header.sources
    return f"your text: {sources[0].name}" + (f" and {len(sources) - 1} more" * (len(sources) > 1))
