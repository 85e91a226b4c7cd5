"""The tokens of a corpus and their ids."""

import json
import reprlib
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

from highrank.files import read_json, without_format

# What stands for all tokens outside the vocabulary, and the end of a line.
UNK, EOS = "<unk>", "<eos>"

FORMAT, VERSION = "highrank vocabulary", 1


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in order: a token's position is its id. Immutable; equal if the tokens are.

    Args:
        tokens: each once. `<unk>` and `<eos>` may be among them, anywhere.
    """

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        for token in self.tokens:
            if not isinstance(token, str):
                raise ValueError(f"a token must be a string, got {reprlib.repr(token)}")
        if not self.tokens:
            raise ValueError("a vocabulary must have at least one token, got none")
        if len(self._ids) < len(self.tokens):
            twice = Counter(self.tokens).most_common(1)[0][0]
            raise ValueError(f"a vocabulary must have every token once, got {twice!r} twice")

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self)} tokens, sha256 {self.sha256[:12]}>"

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    @property
    def unk(self) -> int | None:
        """Id of `<unk>`; None if the vocabulary has none."""
        return self._ids.get(UNK)

    @property
    def eos(self) -> int | None:
        """Id of `<eos>`; None if the vocabulary has none."""
        return self._ids.get(EOS)

    @cached_property
    def sha256(self) -> str:
        """Hash of the tokens in their order: two vocabularies with the same ids have the same."""
        return sha256(json.dumps(self.tokens, separators=(",", ":")).encode()).hexdigest()

    def encode(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """The id of each token, (N,); that of `<unk>` for a token outside the vocabulary."""
        if self.unk is not None:
            return np.fromiter(map(self._ids.get, tokens, repeat(self.unk)), dtype=np.int64)
        try:
            return np.fromiter(map(self._ids.__getitem__, tokens), dtype=np.int64)
        except KeyError as error:
            raise ValueError(
                f"tokens must be in the vocabulary, which has no {UNK}, got {error.args[0]!r}"
            ) from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The token of each id."""
        found = [int(index) for index in ids]
        for index in found:
            if not 0 <= index < len(self):
                raise ValueError(f"ids must be from 0 to {len(self) - 1}, got {index}")
        return [self.tokens[index] for index in found]

    def save(self, path: Path) -> None:
        content = {"format": FORMAT, "version": VERSION, "words": self.tokens}
        # A token on each line, by json's fast encoder, which knows no indentation.
        text = json.dumps(content, ensure_ascii=False, separators=(",\n", ": "))
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        content = read_json(path)
        try:
            tokens = without_format(content, FORMAT, VERSION).get("words")
            if not isinstance(tokens, list):
                raise ValueError("it must have a list of words")
            vocabulary = cls(tuple(tokens))
            # JSON may have halves of characters, which nothing can print.
            "".join(vocabulary.tokens).encode()
            return vocabulary
        except ValueError as error:
            raise ValueError(f"{path} must be a vocabulary: {error}") from error
