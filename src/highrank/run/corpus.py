"""The corpus of a run: what it was is kept with the run, its tokens are found when they are needed.

A run's folder can move, and so can its corpus: it is known by the hashes of its tokens.
"""

import json
import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from highrank.data.catalog import NAME, cache_folder, corpus_folder, known_corpus
from highrank.data.corpus import HEADER_FILE, Corpus, Header, Level, load_corpus, load_header
from highrank.files import read_json, without_format, write_atomically

FORMAT, VERSION = "highrank run's corpus", 1


@dataclass(frozen=True)
class RecordedCorpus:
    """The corpus of a loaded run: the header is there, the tokens may not be."""

    header: Header
    path: Path
    """The absolute path where it was."""
    option: str
    """The value of --corpus."""

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def level(self) -> Level:
        return self.header.level

    @property
    def is_found(self) -> bool:
        """Whether its tokens are on this machine."""
        with suppress(ValueError):
            return bool(self.prepared)
        return False

    @property
    def sentence_end(self) -> int | None:
        """Id of `<eos>` if every line is alone."""
        return self.prepared.sentence_end

    def split(self, name: str) -> NDArray[np.integer]:
        """The token ids of train, valid or test, (N,); raise if the corpus is nowhere."""
        return self.prepared.split(name)

    @cached_property
    def prepared(self) -> Corpus:
        """The corpus itself: where it was, under its name, or anywhere among the prepared ones."""
        names = filter(NAME.fullmatch, (self.option, self.name))
        likely = dict.fromkeys((self.path, Path(self.option), *map(corpus_folder, names)))
        problems = []
        for folder in likely:
            if (folder / HEADER_FILE).is_file():
                try:
                    return self._load(folder)
                except ValueError as error:
                    problems.append(str(error))
        for file in sorted((cache_folder() / "corpora").glob(f"*/{HEADER_FILE}")):
            with suppress(ValueError):
                return self._load(file.parent)
        seen = f" ({'; '.join(problems[:2])})" if problems else ""
        raise ValueError(
            f"the corpus {self.name} that the run was trained on must be at {self.path} or in "
            f"{cache_folder()}{seen}: run `{prepare_command(self.header)}`"
        )

    def _load(self, folder: Path) -> Corpus:
        if not self.header.has_same_tokens(load_header(folder)):
            raise ValueError(f"{folder} has other tokens")
        return load_corpus(folder)


def prepare_command(header: Header) -> str:
    """The command that makes a corpus as it was, from text of the same name."""
    if known_corpus(header.name) is not None:
        return f"highrank data prepare {header.name}"
    recipe, sources = header.recipe, header.sources
    source = sources[0].name if len(sources) == 1 else "FOLDER"
    parts = ["highrank", "data", "prepare", source, "--name", header.name]
    parts += ["--tokenizer", recipe.tokenizer, "--min-count", str(recipe.min_count)]
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
    """The corpus of a run.

    Args:
        option: the value of --corpus.
    """
    content = read_json(file)
    try:
        values = without_format(content, FORMAT, VERSION)
        path = values.get("path")
        if not isinstance(path, str) or "\0" in path:
            raise ValueError(f"it must have the path of a corpus, got {path!r:.80}")
        try:
            header = Header.from_json(values.get("header"))
        except ValueError as error:
            raise ValueError(f"its header: {error}") from None
        return RecordedCorpus(header, Path(path), option)
    except ValueError as error:
        raise ValueError(f"{file} must be the record of a corpus: {error}") from None
