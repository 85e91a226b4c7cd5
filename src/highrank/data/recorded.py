"""The corpus of a run: what it was is kept with the run, its tokens are found when they are needed.

A run's folder can move, and so can its corpus: it is known by the hashes of its tokens.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.data.catalog import CATALOG, NAME, cache_folder, corpus_folder
from highrank.data.corpus import HEADER_FILE, Corpus, Header, Level, load_corpus, load_header
from highrank.files import read_json, write_atomically

FORMAT, VERSION = "highrank run's corpus", 1


@dataclass(frozen=True)
class RecordedCorpus:
    """What `load_run` gives as a run's corpus: the header is there, the tokens may not be."""

    header: Header
    path: Path
    """Where it was, absolute."""
    option: str
    """What --corpus was."""

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def level(self) -> Level:
        return self.header.level

    def split(self, name: str) -> NDArray[np.integer]:
        """The token ids of train, valid or test, (N,); raise if the corpus is nowhere."""
        return self.found.split(name)

    @cached_property
    def found(self) -> Corpus:
        """The corpus itself: where it was, under its name, or anywhere among the prepared ones."""
        problems = []
        for folder in dict.fromkeys(self._candidates()):
            try:
                if self.header.has_same_tokens(load_header(folder)):
                    return load_corpus(folder)
                problems.append(f"{folder} has other tokens")
            except ValueError as error:
                problems.append(str(error))
        places = f"at {self.path} or in {cache_folder()}"
        seen = f" ({'; '.join(problems[:2])})" if problems else ""
        raise ValueError(
            f"the corpus {self.name} that the run was trained on must be {places}{seen}: "
            f"run `{prepare_command(self.header)}`"
        )

    def _candidates(self) -> Iterator[Path]:
        places = [self.path, Path(self.option)]
        places += [corpus_folder(n) for n in (self.option, self.name) if NAME.fullmatch(n)]
        yield from (place for place in places if (place / HEADER_FILE).is_file())
        for file in sorted((cache_folder() / "corpora").glob(f"*/{HEADER_FILE}")):
            try:
                is_same = self.header.has_same_tokens(load_header(file.parent))
            except ValueError:
                continue
            if is_same:
                yield file.parent


def prepare_command(header: Header) -> str:
    """The command that makes a corpus as it was, from text of the same name."""
    if header.name in CATALOG:
        return f"highrank data prepare {header.name}"
    recipe, sources = header.recipe, header.sources
    source = sources[0].name if len(sources) == 1 else "FOLDER"
    parts = ["highrank", "data", "prepare", source, "--name", header.name]
    parts += ["--level", header.level, "--min-count", str(recipe.min_count)]
    parts += [] if recipe.max_vocab is None else ["--max-vocab", str(recipe.max_vocab)]
    parts += ["--lower"] if recipe.lower else []
    return shlex.join(parts)


def write_record(file: Path, corpus: Corpus) -> None:
    """Keep what `read_record` reads."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "path": str(corpus.path.absolute()),
        "header": json.loads(corpus.header.to_json()),
    }
    text = json.dumps(content, indent=2) + "\n"
    write_atomically(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_record(file: Path, option: str) -> RecordedCorpus:
    """Args:
    option: what --corpus was.
    """
    content: Any = read_json(file)
    values = content if isinstance(content, Mapping) else {}
    if (values.get("format"), values.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{file} must have format {FORMAT!r} and version {VERSION}")
    if not isinstance(values.get("path"), str) or "\0" in values["path"]:
        raise ValueError(f"{file} must have the path of a corpus, got {values.get('path')!r:.80}")
    try:
        header = Header.from_json(values.get("header"))
    except ValueError as error:
        raise ValueError(f"{file} must have the header of a corpus: {error}") from None
    return RecordedCorpus(header, Path(values["path"]), option)
