"""The words of a corpus, in order: a word's place is its id."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

# The word that stands for all words outside the vocabulary, and the end of a line.
UNK, EOS = "<unk>", "<eos>"

FORMAT, VERSION = "highrank vocabulary", 1


@dataclass(frozen=True)
class Vocabulary:
    """Words and their ids, which are their places. Immutable; equal if the words are.

    Args:
        words: each once. `<unk>` and `<eos>` may be among them, anywhere.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        for word in self.words:
            if not isinstance(word, str):
                raise ValueError(f"a word must be a string, got {word!r}")
        if not self.words:
            raise ValueError("a vocabulary must have at least one word, got none")
        if len(self._ids) < len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise ValueError(f"a vocabulary must have every word once, got {twice!r} twice")

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self)} words, sha256 {self.sha256[:12]}>"

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    @property
    def unk(self) -> int | None:
        """Id of `<unk>`; None if every word is known."""
        return self._ids.get(UNK)

    @property
    def eos(self) -> int | None:
        """Id of `<eos>`; None if lines do not end."""
        return self._ids.get(EOS)

    @cached_property
    def sha256(self) -> str:
        """Hash of the words in their order: two vocabularies with the same ids have the same."""
        return sha256(json.dumps(self.words, separators=(",", ":")).encode()).hexdigest()

    def encode(self, words: Iterable[str]) -> NDArray[np.int64]:
        """The id of each word, (N,); that of `<unk>` for a word outside the vocabulary."""
        if self.unk is not None:
            return np.fromiter(map(self._ids.get, words, repeat(self.unk)), dtype=np.int64)
        try:
            return np.fromiter(map(self._ids.__getitem__, words), dtype=np.int64)
        except KeyError as error:
            word = error.args[0]
            raise ValueError(
                f"words must be in the vocabulary, which has no {UNK}, got {word!r}"
            ) from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The word of each id."""
        words = []
        for place in map(int, ids):
            if not 0 <= place < len(self.words):
                raise ValueError(f"ids must be from 0 to {len(self.words) - 1}, got {place}")
            words.append(self.words[place])
        return words

    def to_json(self) -> str:
        content = {"format": FORMAT, "version": VERSION, "words": self.words}
        return json.dumps(content, ensure_ascii=False, indent=0) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"a vocabulary must say that its format is {FORMAT!r}")
        if content.get("version") != VERSION:
            raise ValueError(
                f"the vocabulary's version must be {VERSION}, got {content.get('version')}: "
                "another version of highrank wrote it"
            )
        if not isinstance(content.get("words"), list):
            raise ValueError("a vocabulary must have a list of words")
        return cls(content["words"])

    def save(self, path: Path) -> None:
        path.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} must be a vocabulary: {error}") from error

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}
