"""From a line of text to tokens, and back to something that reads well.

A tokenizer takes one line without its newline and returns its tokens, `<eos>` included:

- `words`: for text as people write it. A token is a word, with the apostrophes and hyphens inside
  it (don't, well-known); a number, with the points and commas inside it (3,000.50); a run of dots
  or of hyphens; or any other single sign. Lines without a token vanish. Made for languages that
  put spaces between words; the others are better off with `characters`.
- `whitespace`: for text that was tokenized before. What lies between spaces; a blank line is one
  `<eos>`. The protocol of Penn Treebank, WikiText and One Billion Word.
- `characters`: every character; a blank line is one `<eos>`. Nothing is lost.

Tokenizers that are learned from a text are in `subwords.py`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from highrank.data.subwords import text_of
from highrank.data.vocabulary import EOS, UNK

Tokenizer = Callable[[str], list[str]]

# Signs that cling to the word before or after them when tokens are made readable.
CLOSING = frozenset(".,;:!?)]}%”…")
OPENING = frozenset("([{$“¿¡")

# What is longer, in characters, hardly comes again.
LONGEST_KNOWN = 64


def words(line: str) -> list[str]:
    """`"No," he said.` → `"`, `No`, `,`, `"`, `he`, `said`, `.`, `<eos>`."""
    tokens: list[str] = []
    for text in line.split():
        tokens += _known_pieces(text) if len(text) <= LONGEST_KNOWN else _pattern().findall(text)
    return [*tokens, EOS] if tokens else []


def whitespace(line: str) -> list[str]:
    """`no it was n't` → `no`, `it`, `was`, `n't`, `<eos>`."""
    return [*line.split(), EOS]


def characters(line: str) -> list[str]:
    """`no` → `n`, `o`, `<eos>`."""
    return [*line, EOS]


TOKENIZERS: dict[str, Tokenizer] = {
    "words": words,
    "whitespace": whitespace,
    "characters": characters,
}
UNITS = {"words": "word", "whitespace": "word", "characters": "character"}


def unit_of(tokenizer: str) -> str:
    """What one of its tokens is called: word, character or, of any other tokenizer, token."""
    return UNITS.get(tokenizer, "token")


def readable(tokens: Iterable[str], level: str = "word") -> str:
    """The tokens as text: a newline for `<eos>`, no space before a comma or after a bracket.

    Tokenized again by `words`, the text of a line gives the same tokens.
    """
    if level == "subword":
        return text_of(tokens)
    if level == "char":
        return "".join("\n" if token == EOS else token for token in tokens)
    text, space, is_quoted = "", "", False
    for token in tokens:
        if token == EOS:
            text, space, is_quoted = text + "\n", "", False
            continue
        closes = token in CLOSING or (token == '"' and is_quoted)
        # Two dots would become one token of two dots.
        clings = closes and not (token == "." and text.endswith("."))
        text += ("" if clings else space) + token
        space = "" if token in OPENING or (token == '"' and not is_quoted) else " "
        is_quoted ^= token == '"'
    return text


# What lies between two spaces repeats: most is looked up, not matched.
@lru_cache(maxsize=1 << 18)
def _known_pieces(text: str) -> tuple[str, ...]:
    return tuple(_pattern().findall(text))


@cache
def _pattern() -> re.Pattern[str]:
    # \w knows letters but not the marks on them, which many scripts write as characters.
    points = (chr(point) for point in range(0x300, 0x110000))
    marks = "".join(point for point in points if unicodedata.category(point).startswith("M"))
    letter = rf"[\w{marks}]"
    return re.compile(
        rf"{UNK}|\d+(?:[.,]\d+)+|{letter}+(?:['’\-]{letter}+)*|\.\.+|--+|[^\w\s]",
    )
