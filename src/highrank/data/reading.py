"""New text, read as a corpus was: the same tokenizer, the same case, the same vocabulary."""

from collections.abc import Iterable
from pathlib import Path

from highrank.data.header import Recipe
from highrank.data.text import read_text, whole
from highrank.data.tokenizer import TOKENIZERS
from highrank.data.vocabulary import EOS, UNK, Vocabulary


def read_lines(path: Path, recipe: Recipe) -> list[list[str]]:
    """The tokens of each line of a text file, `<eos>` included; no token for a line of none."""
    if not path.is_file():
        raise ValueError(f"the text must be a file, got {path}")
    return tokenized_lines("".join(block for block, _ in read_text(whole(path))), recipe)


def tokenized_lines(text: str, recipe: Recipe) -> list[list[str]]:
    tokenize = TOKENIZERS[recipe.tokenizer]
    *lines, last = (text.lower() if recipe.lower else text).split("\n")
    return [tokenize(line) for line in ([*lines, last] if last else lines)]


def check_known(words: Iterable[str], vocabulary: Vocabulary, what: str) -> list[str]:
    """The unknown words, each once; an error if no word is known, or the first cannot be read.

    Args:
        what: the text's name in the error, such as "the prompt".
    """
    every = [word for word in dict.fromkeys(words) if word not in (EOS, UNK)]
    unknown = [word for word in every if word not in vocabulary]
    if len(unknown) == len(every):
        shown = " ".join(every[:8]) + (" …" if len(every) > 8 else "")
        raise ValueError(
            f"{what} must have a word of the run's vocabulary, got {shown or 'no word at all'}"
        )
    if vocabulary.unk is None:
        vocabulary.encode(unknown)
    return unknown
