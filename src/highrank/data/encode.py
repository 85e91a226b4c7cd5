"""From text to token files in bounded memory: the text is read once.

First every token gets the next free number when it appears, and the numbers go to a scratch file;
then the vocabulary is chosen from their counts, and a table turns numbers into ids.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from highrank.data.corpus import SPLITS, Recipe, Split, TokenType, token_file
from highrank.data.subwords import is_subword, learn
from highrank.data.text import Span, read_text, tokenizer_of
from highrank.data.vocabulary import EOS, UNK, Vocabulary
from highrank.progress import OnProgress

Spans = Mapping[str, Sequence[Span]]

CHUNK_TOKENS = 1 << 20
# All distinct tokens are kept in memory while the text is read: so many take about 3 GB.
MAX_DISTINCT = 20_000_000
# The fraction of the time that goes into reading; turning numbers into ids is fast.
READING = 0.95


class Encoded(NamedTuple):
    """What is known of the token files that were written."""

    vocabulary: Vocabulary
    dtype: TokenType
    splits: dict[str, Split]
    token_counts: list[int]
    """How often the training split has each token."""
    recipe: Recipe
    """With what was learned from the training split."""


def encode_text(spans: Spans, recipe: Recipe, folder: Path, on_progress: OnProgress) -> Encoded:
    """Write train.bin, valid.bin and test.bin.

    Args:
        spans: the text of each split.
        folder: exists; also holds scratch files of four bytes per token.
    """
    if is_subword(recipe.tokenizer):
        on_progress(0.0, f"learning {recipe.tokenizer}")
        recipe = replace(recipe, subwords=learn(recipe.tokenizer, _lines(spans["train"], recipe)))
    tokens, sizes = _number(spans, recipe, folder, on_progress)
    vocabulary = _choose_vocabulary(tokens, recipe, folder)
    dtype: TokenType = "<u2" if len(vocabulary) <= 1 << 16 else "<u4"
    ids = vocabulary.encode(tokens).astype(dtype)
    splits, counts = {}, {}
    for index, name in enumerate(SPLITS):
        on_progress(READING + (1 - READING) * index / len(SPLITS), f"writing {name}")
        splits[name], counts[name] = _write_ids(ids, vocabulary, folder, name, sizes[name])
    return Encoded(vocabulary, dtype, splits, counts["train"].tolist(), recipe)


class Size(NamedTuple):
    """Size of a text in UTF-8: a corpus keeps it for bits per byte and per character."""

    num_bytes: int = 0
    num_chars: int = 0

    def plus(self, text: str) -> "Size":
        return Size(self.num_bytes + len(text.encode()), self.num_chars + len(text))


def _number(
    spans: Spans, recipe: Recipe, folder: Path, on_progress: OnProgress
) -> tuple[list[str], dict[str, Size]]:
    """Write each split as numbers of tokens.

    Returns the tokens in order of first appearance, and the size of each split's text.
    """
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    total = sum(span.end - span.start for span in chain.from_iterable(spans.values()))
    done, sizes = 0, dict.fromkeys(SPLITS, Size())
    for name in SPLITS:
        with _scratch(folder, name).open("wb") as file:
            for span in spans[name]:
                for text, tokens, num_bytes in _tokens(span, recipe):
                    sizes[name] = sizes[name].plus(text)
                    found = np.fromiter(map(numbers.__getitem__, tokens), np.uint32, len(tokens))
                    file.write(found.tobytes())
                    if len(numbers) > MAX_DISTINCT:
                        raise ValueError(
                            f"a corpus must have at most {MAX_DISTINCT:,} distinct tokens, got "
                            f"more in {span.path}: is it text with spaces? Try --tokenizer "
                            "characters or bpe:8000"
                        )
                    done += num_bytes
                    on_progress(READING * (done / total), f"reading {span.path.name}")
            if not file.tell():
                raise ValueError(
                    f"the {name} split must not be empty, but the text has no line for it: give it "
                    "more lines, or a folder that has train.txt, valid.txt and test.txt"
                )
    return list(numbers), sizes


def _lines(spans: Sequence[Span], recipe: Recipe) -> Iterator[str]:
    """The lines of a split, those that are longer than a block in parts."""
    for span in spans:
        for text, _ in read_text(span):
            yield from (text.lower() if recipe.lower else text).split("\n")


def _tokens(span: Span, recipe: Recipe) -> Iterator[tuple[str, list[str], int]]:
    """Yield each block, its tokens and its size in the file."""
    tokenize = tokenizer_of(recipe)
    position, is_open = span.start, False
    for text, num_bytes in read_text(span):
        position += num_bytes
        *lines, last = (text.lower() if recipe.lower else text).split("\n")
        if last and position == span.end:
            lines, last = [*lines, last], ""
        found = [tokenize(line) for line in lines]
        if lines and is_open and not found[0]:
            # The rest of a line that began in an earlier block ends even if it has no token.
            found[0] = [EOS]
        is_open = is_open and not lines
        if last:
            # The line continues in the next block: no <eos> yet.
            found.append(tokenize(last)[:-1])
            is_open = is_open or bool(found[-1])
        yield text, list(chain.from_iterable(found)), num_bytes


def _choose_vocabulary(tokens: list[str], recipe: Recipe, folder: Path) -> Vocabulary:
    if recipe.subwords is not None:
        return Vocabulary(tuple(recipe.subwords.vocabulary))
    if recipe.vocabulary == "frequency":
        counts = sum(
            (np.bincount(chunk, minlength=len(tokens)) for chunk in _chunks(folder, "train")),
            start=np.zeros(len(tokens), dtype=np.int64),
        )
        count_of = dict(zip(tokens, counts.tolist(), strict=True))
        frequent = [token for token in tokens if count_of[token] >= recipe.min_count]
        frequent.sort(key=lambda token: (-count_of[token], token))
        tokens = [UNK, EOS, *(token for token in frequent if token not in (UNK, EOS))]
        tokens = tokens[: recipe.max_vocab]
    if (size := len(set(tokens) - {UNK, EOS})) < 2:
        raise ValueError(
            f"the vocabulary must have 2 tokens or more besides {UNK} and {EOS}, got {size}: "
            "give it more text, a lower --min-count or a higher --max-vocab"
        )
    return Vocabulary(tuple(tokens))


def _write_ids(
    ids: NDArray[Any], vocabulary: Vocabulary, folder: Path, name: str, size: Size
) -> tuple[Split, NDArray[np.int64]]:
    """Write a split; returns what is known of it, and how often it has each token."""
    digest, counts = sha256(), np.zeros(len(vocabulary), dtype=np.int64)
    with token_file(folder, name).open("wb") as file:
        for chunk in _chunks(folder, name):
            tokens = ids[chunk]
            digest.update(tokens.tobytes())
            # Not tofile: it hides that the disk is full.
            file.write(tokens.tobytes())
            counts += np.bincount(tokens, minlength=len(vocabulary))
    _scratch(folder, name).unlink()
    split = Split(
        num_tokens=int(counts.sum()),
        num_unknown=0 if vocabulary.unk is None else int(counts[vocabulary.unk]),
        sha256=digest.hexdigest(),
        **size._asdict(),
    )
    return split, counts


def _chunks(folder: Path, name: str) -> Iterator[NDArray[np.uint32]]:
    with _scratch(folder, name).open("rb") as file:
        while block := file.read(4 * CHUNK_TOKENS):
            yield np.frombuffer(block, dtype=np.uint32)


def _scratch(folder: Path, name: str) -> Path:
    return folder / f"{name}.numbers"
