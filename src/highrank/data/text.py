"""Text files, read block by block in bounded memory, split, and turned into a corpus' tokens."""

import codecs
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from highrank.data.corpus import SPLITS, Recipe
from highrank.data.subwords import tokenizer
from highrank.data.tokenizer import TOKENIZERS, Tokenizer
from highrank.data.vocabulary import EOS, UNK, Vocabulary

BLOCK_BYTES = 1 << 20
PART_BYTES = 1 << 26
# Fractions of the bytes: the last twentieth is the test split, the one before for validation.
VALID_FROM, TEST_FROM = 0.90, 0.95


class Span(NamedTuple):
    """The bytes of a file from `start` up to `end`."""

    path: Path
    start: int
    end: int


def file_span(path: Path) -> Span:
    """All of a file, which must not be empty."""
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"a text file must not be empty, got {path}")
    return Span(path, 0, size)


def text_files(path: Path) -> list[Path]:
    """The file itself, or a folder's *.txt at any depth, sorted by path."""
    if not path.exists():
        raise ValueError(f"the text must be a file or a folder, got {path}, which does not exist")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*.txt") if file.is_file())
    if not files:
        raise ValueError(f"a folder of text must have files that end in .txt, got none in {path}")
    return files


def split_text(path: Path) -> tuple[dict[str, list[Span]], str]:
    """Train, valid and test as spans, and the rule: the folder's own three files, or a cut.

    The cut goes through all files end to end, at 90 % and 95 % of the bytes, each moved back to the
    start of its line: no line is in two splits, and every split keeps the order of the text.
    """
    files = text_files(path)
    spans = [file_span(file) for file in files]
    own = {f"{name}.txt": name for name in SPLITS}
    if own.keys() <= {file.name for file in files}:
        if len(files) > len(own):
            others = ", ".join(str(file) for file in files if file.name not in own)
            raise ValueError(
                f"a folder with {', '.join(own)} must have one of each and no other text, got "
                f"{others or 'several of a name'}: move what is no part of it away"
            )
        return {own[span.path.name]: [span] for span in spans}, ", ".join(own)
    total = sum(span.end for span in spans)
    before, test = _cut(spans, int(TEST_FROM * total))
    train, valid = _cut(before, int(VALID_FROM * total))
    rule = f"files end to end; valid from {VALID_FROM:.0%}, test from {TEST_FROM:.0%} of the bytes"
    return {"train": train, "valid": valid, "test": test}, rule


def _cut(spans: Sequence[Span], position: int) -> tuple[list[Span], list[Span]]:
    """The spans, end to end, before and after the start of the line that `position` is in."""
    for index, (path, start, end) in enumerate(spans):
        if position < end - start:
            window = max(start, start + position - BLOCK_BYTES)
            with path.open("rb") as file:
                file.seek(window)
                block = file.read(start + position - window)
            is_first_line = index > 0 and window == start and b"\n" not in block
            middle = start if is_first_line else window + _last_break(block)
            before = [Span(path, start, middle)] if middle > start else []
            return [*spans[:index], *before], [Span(path, middle, end), *spans[index + 1 :]]
        position -= end - start
    return list(spans), []


def parts_of(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """The spans in parts of about `PART_BYTES`, each of whole lines; short spans share one."""
    part: list[Span] = []
    for span in spans:
        start = span.start
        while start < span.end:
            room = PART_BYTES - sum(end - begin for _, begin, end in part)
            end = _line_end(span, start + room)
            part.append(Span(span.path, start, end))
            start = end
            if end < span.end or sum(end - begin for _, begin, end in part) >= PART_BYTES:
                yield part
                part = []
    if part:
        yield part


def _line_end(span: Span, position: int) -> int:
    """The end of the line that the byte at `position` is in, or of the span."""
    if position >= span.end:
        return span.end
    with span.path.open("rb") as file:
        file.seek(position)
        # A line may be longer than memory.
        while (piece := file.readline(BLOCK_BYTES)) and not piece.endswith(b"\n"):
            pass
        return min(span.end, file.tell())


def read_text(span: Span) -> Iterator[tuple[str, int]]:
    """Yield blocks of text and their sizes in bytes; a block ends where a line does.

    Only where a line is longer than a block does a block end at a space, and only where there is
    none for a whole block within a word. Line ends are newlines; a byte order mark is left out.
    """
    with span.path.open("rb") as file:
        file.seek(span.start)
        position, rest = span.start, b""
        while position + len(rest) < span.end:
            wanted = min(BLOCK_BYTES, span.end - position - len(rest))
            data = file.read(wanted)
            if len(data) < wanted:
                raise ValueError(f"{span.path} became shorter while it was read")
            block = rest + data
            size = len(block) if position + len(block) == span.end else _last_break(block)
            text = _decode(block[:size], span.path, position)
            yield text.removeprefix("\ufeff") if position == 0 else text, size
            position, rest = position + size, block[size:]


def _last_break(block: bytes) -> int:
    """Size of the largest beginning that ends with a line, else a space, else a character."""
    size = block.rfind(b"\n") + 1 or block.rfind(b" ") + 1
    if size:
        return size
    size = len(block)
    # A character has at most three bytes after its first, and these start with the bits 10.
    while size > max(len(block) - 3, 0) and block[size - 1] & 0xC0 == 0x80:
        size -= 1
    return size - 1 if size and block[size - 1] >= 0xC0 else size


def _decode(block: bytes, path: Path, position: int) -> str:
    bad = block.find(0)
    if bad < 0:
        try:
            return block.decode().replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            bad = error.start
    if wide := _wide_encoding(path):
        raise ValueError(f"{path}: text must be UTF-8, got {wide}: {_conversion(path, wide)}")
    found = "a zero byte: is it binary?"
    if byte := block[bad]:
        found = f"byte 0x{byte:02x} at byte {position + bad} of the file: if it is Latin-1, "
        found += _conversion(path, "LATIN1")
    line = _line_number(path, position + bad)
    raise ValueError(f"{path}, line {line}: text must be UTF-8, got {found}")


def _wide_encoding(path: Path) -> str | None:
    """UTF-16 or UTF-32, by the byte order mark or by the zero bytes of Latin letters."""
    with path.open("rb") as file:
        start = file.read(1024)
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    for order, zeros, others in (("LE", start[1::2], start[::2]), ("BE", start[::2], start[1::2])):
        if zeros.count(0) > len(zeros) / 2 and 0 not in others:
            return f"UTF-16{order}"
    return None


def _conversion(path: Path, encoding: str) -> str:
    old, new = map(shlex.quote, (str(path), f"{path.stem}-utf8{path.suffix}"))
    return f"convert it with `iconv -f {encoding} -t UTF-8 {old} > {new}`"


def _line_number(path: Path, position: int) -> int:
    """The line that the byte is in, from 1."""
    line = 1
    with path.open("rb") as file:
        while block := file.read(min(BLOCK_BYTES, position - file.tell())):
            line += block.count(b"\n")
    return line


def read_file(path: Path) -> str:
    """All of a text file; line ends are newlines, and a byte order mark is left out."""
    if not path.is_file():
        raise ValueError(f"the text must be a file, got {path}")
    return "".join(block for block, _ in read_text(file_span(path)))


def tokenizer_of(recipe: Recipe) -> Tokenizer:
    """The function from a line to its tokens, `<eos>` included."""
    if recipe.subwords is not None:
        return tokenizer(recipe.subwords)
    return TOKENIZERS[recipe.tokenizer]


def tokenized_lines(text: str, recipe: Recipe) -> list[list[str]]:
    """The tokens of each line of a text, `<eos>` included; no token for a line of none."""
    tokenize = tokenizer_of(recipe)
    lines = (text.lower() if recipe.lower else text).split("\n")
    return [tokenize(line) for line in (lines if lines[-1] else lines[:-1])]


def check_known(tokens: Iterable[str], vocabulary: Vocabulary, what: str) -> list[str]:
    """The unknown tokens, each once; an error if none is known, or if there is no `<unk>`.

    Args:
        what: the text's name in the error, such as "the prompt".
    """
    distinct = [token for token in dict.fromkeys(tokens) if token not in (EOS, UNK)]
    unknown = [token for token in distinct if token not in vocabulary]
    if len(unknown) == len(distinct):
        shown = " ".join(distinct[:8]) + (" …" if len(distinct) > 8 else "")
        raise ValueError(
            f"{what} must have a token of the run's vocabulary, got {shown or 'no token at all'}"
        )
    if vocabulary.unk is None:
        vocabulary.encode(unknown)
    return unknown
