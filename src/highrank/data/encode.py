"""Text to token files in bounded memory: the text is read once, what follows is arithmetic.

First every word gets the next free number when it appears, and the numbers go to a scratch file;
then the vocabulary is chosen from their counts, and numbers become ids by looking them up.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from highrank.data.corpus import DTYPES, SPLITS, Recipe, Split, token_file
from highrank.data.text import Span, read_text
from highrank.data.tokenizer import TOKENIZERS
from highrank.data.vocabulary import EOS, UNK, Vocabulary

Numbers = NDArray[np.uint32]
OnProgress = Callable[[float, str], None]

CHUNK_TOKENS = 1 << 20
# All different words are kept in memory while the text is read: so many take about 3 GB.
MAX_WORDS = 20_000_000
# Reading is slow; turning numbers into ids is not.
READING = 0.95


def encode_text(
    spans: Mapping[str, Sequence[Span]], recipe: Recipe, folder: Path, on_progress: OnProgress
) -> tuple[Vocabulary, str, dict[str, Split]]:
    """Write train.bin, valid.bin and test.bin; return the vocabulary, their type and what they are.

    Args:
        spans: the text of each split.
        folder: exists; also has room for scratch files of four bytes per token.
    """
    words = _number(spans, recipe, folder, lambda share, text: on_progress(READING * share, text))
    vocabulary = _choose_vocabulary(words, recipe, folder)
    dtype = DTYPES[len(vocabulary) > 1 << 16]
    ids = vocabulary.encode(words).astype(dtype)
    splits = {}
    for index, name in enumerate(SPLITS):
        on_progress(READING + (1 - READING) * index / len(SPLITS), f"writing {name}")
        splits[name] = _write_ids(ids, vocabulary, folder, name)
    return vocabulary, dtype, splits


def _number(
    spans: Mapping[str, Sequence[Span]], recipe: Recipe, folder: Path, on_progress: OnProgress
) -> list[str]:
    """Write each split as numbers of words; return the words in order of first appearance."""
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    total = sum(span.end - span.start for span in chain.from_iterable(spans.values()))
    done = 0
    for name in SPLITS:
        with _scratch(folder, name).open("wb") as file:
            for span in spans[name]:
                for tokens, num_bytes in _tokens(span, recipe):
                    found = np.fromiter(map(numbers.__getitem__, tokens), np.uint32, len(tokens))
                    file.write(found.tobytes())
                    if len(numbers) > MAX_WORDS:
                        raise ValueError(
                            f"a text must have at most {MAX_WORDS:,} different words, got more "
                            f"in {span.path}: is it text with spaces? Try --level char"
                        )
                    done += num_bytes
                    on_progress(done / total, f"reading {span.path.name}")
            if not file.tell():
                raise ValueError(
                    f"the {name} split must not be empty, but the text has no line for it: give it "
                    "more lines, or a folder that has train.txt, valid.txt and test.txt"
                )
    return list(numbers)


def _tokens(span: Span, recipe: Recipe) -> Iterator[tuple[list[str], int]]:
    """Yield the tokens of each block and its size in bytes."""
    tokenize = TOKENIZERS[recipe.tokenizer]
    position, is_open = span.start, False
    for text, num_bytes in read_text(span):
        position += num_bytes
        *lines, last = (text.lower() if recipe.lower else text).split("\n")
        found = [tokenize(line) for line in lines]
        if lines:
            # The rest of a line that had begun before may be without a token: it ends all the same.
            found[0] = found[0] or [EOS] * is_open
            is_open = False
        if last and position == span.end:
            found.append(tokenize(last) or [EOS] * is_open)
        elif last:
            # The line goes on in the next block: it has not ended.
            found.append(tokenize(last)[:-1])
            is_open = is_open or bool(found[-1])
        yield list(chain.from_iterable(found)), num_bytes


def _choose_vocabulary(words: list[str], recipe: Recipe, folder: Path) -> Vocabulary:
    chosen = [word for word in words if word not in (UNK, EOS)]
    if recipe.vocabulary == "appearance":
        vocabulary = Vocabulary(tuple(words))
    else:
        counts = sum(
            (np.bincount(chunk, minlength=len(words)) for chunk in _chunks(folder, "train")),
            start=np.zeros(len(words), dtype=np.int64),
        )
        count_of = dict(zip(words, counts.tolist(), strict=True))
        chosen = [word for word in chosen if count_of[word] >= recipe.min_count]
        chosen.sort(key=lambda word: (-count_of[word], word))
        if recipe.max_vocab is not None:
            del chosen[max(recipe.max_vocab - 2, 0) :]
        vocabulary = Vocabulary((UNK, EOS, *chosen))
    if len(chosen) < 2:
        raise ValueError(
            f"the vocabulary must have 2 words or more besides {UNK} and {EOS}, got {len(chosen)}: "
            "give it more text, a lower --min-count or a higher --max-vocab"
        )
    return vocabulary


def _write_ids(ids: NDArray[Any], vocabulary: Vocabulary, folder: Path, name: str) -> Split:
    digest, num_tokens, num_unknown = sha256(), 0, 0
    with token_file(folder, name).open("wb") as file:
        for chunk in _chunks(folder, name):
            tokens = ids[chunk]
            digest.update(tokens.tobytes())
            # Not tofile: it hides that the disk is full.
            file.write(tokens.tobytes())
            num_tokens += len(tokens)
            if vocabulary.unk is not None:
                num_unknown += int(np.count_nonzero(tokens == vocabulary.unk))
    _scratch(folder, name).unlink()
    return Split(num_tokens=num_tokens, num_unknown=num_unknown, sha256=digest.hexdigest())


def _chunks(folder: Path, name: str) -> Iterator[Numbers]:
    with _scratch(folder, name).open("rb") as file:
        while block := file.read(4 * CHUNK_TOKENS):
            yield np.frombuffer(block, dtype=np.uint32)


def _scratch(folder: Path, name: str) -> Path:
    return folder / f"{name}.numbers"
