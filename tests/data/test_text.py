"""Text files block by block, their cut into splits, and new text as a corpus' tokens."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank.data import TextOptions, Vocabulary, prepare_text
from highrank.data import text as module
from highrank.data.corpus import SPLITS
from highrank.data.text import (
    Span,
    check_known,
    file_span,
    parts_of,
    read_file,
    read_text,
    split_text,
    text_files,
    tokenized_lines,
)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 64)


def blocks(path):
    return [text for text, _ in read_text(file_span(path))]


def spans_text(spans):
    return b"".join(path.read_bytes()[start:end] for path, start, end in spans).decode()


def test_blocks_end_with_lines_and_give_the_whole_text(tmp_path, small_blocks):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {number} é\n" for number in range(100)) + "end")
    parts = blocks(path)
    assert len(parts) > 10 and "".join(parts) == path.read_text()
    assert all(part.endswith("\n") for part in parts[:-1])


@given(data=st.text(st.sampled_from("aé€😀 "), min_size=1))
def test_a_line_longer_than_a_block_is_cut_at_spaces_or_between_characters(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(data, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", 7)
        assert "".join(blocks(path)) == data


@given(lines=st.lists(st.lists(st.integers(0, 90)), min_size=1, max_size=4))
def test_parts_are_whole_lines_and_the_whole_text(tmp_path_factory, lines):
    folder, spans = tmp_path_factory.mktemp("text"), []
    for number, sizes in enumerate(lines):
        path = folder / f"{number}.txt"
        path.write_text("".join("a" * size + "\n" for size in sizes) + "end")
        spans.append(file_span(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", 7)
        patch.setattr(module, "PART_BYTES", 100)
        parts = list(parts_of(spans))
    assert "".join(map(spans_text, parts)) == spans_text(spans)
    for part in parts:
        assert sum(end - start for _, start, end in part) <= 100 + 91
        assert all(spans_text([span]).endswith(("\n", "end")) for span in part)
    sizes = [sum(end - start for _, start, end in part) for part in parts]
    assert all(size >= 100 for size in sizes[:-1])


def test_sizes_add_up_and_windows_line_ends_and_byte_order_marks_vanish(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    ((text, size),) = read_text(file_span(path))
    assert text == "one\ntwo\n" and size == path.stat().st_size


WIDE = "Wide letters\nand a €.\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good line\n" * 50 + b"bad \xff line\n", ", line 51: .* got byte 0xff at byte 504 of"),
        (b"one line\n\x7fELF\x00\x01", ", line 2: .* zero byte: is it binary"),
        (
            "Zoë\n".encode("latin-1"),
            ", line 1: .* 0xeb .* `iconv -f LATIN1 .*book-utf8.txt'`$",
        ),
        (WIDE.encode("utf-16"), ": text must be UTF-8, got UTF-16: .* `iconv -f UTF-16 -t UTF-8 '"),
        (WIDE.encode("utf-32"), ": .* got UTF-32: convert it with `iconv -f UTF-32 -t UTF-8 '"),
        (
            WIDE.encode("utf-16-le"),
            ": .* got UTF-16LE: .*`iconv -f UTF-16LE .*book-utf8.txt'`$",
        ),
        (WIDE.encode("utf-16-be"), ": .* got UTF-16BE: convert it with `iconv -f UTF-16BE -t"),
    ],
)
def test_what_is_not_utf_8_is_located_and_comes_with_the_conversion(
    content, message, tmp_path, small_blocks
):
    path = tmp_path / "my book.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"my book.txt{message}"):
        blocks(path)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("short")
    with pytest.raises(ValueError, match="became shorter"):
        list(read_text(Span(path, 0, 100)))


def test_empty_files_and_folders_are_errors(tmp_path):
    with pytest.raises(ValueError, match="got none in"):
        text_files(tmp_path)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="must not be empty, got .*empty.txt"):
        split_text(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        text_files(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the text must be a file, got"):
        read_file(tmp_path)


def test_a_folder_is_its_text_files_at_any_depth_in_order(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/b.md", "c.txt/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [file.relative_to(tmp_path).as_posix() for file in text_files(tmp_path)]
    assert names == ["a/z.txt", "b.txt", "c.txt/d.txt"]


@given(
    files=st.lists(
        st.lists(st.text(st.sampled_from("abé "), max_size=8), min_size=1, max_size=60),
        min_size=1,
        max_size=4,
    )
)
def test_the_cut_loses_nothing_keeps_lines_whole_and_order(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for index, lines in enumerate(files):
        (folder / f"{index}.txt").write_text("".join(f"{line}\n" for line in lines))
    spans, _ = split_text(folder)
    train, valid, test = (spans_text(spans[name]) for name in ("train", "valid", "test"))
    everything = "".join(f"{line}\n" for lines in files for line in lines)
    assert train + valid + test == everything
    assert len((valid + test).encode()) >= 0.1 * len(everything.encode())
    if "\n" in train:
        assert train.endswith("\n") and valid[-1:] in ("", "\n")


@pytest.mark.parametrize(
    ("files", "starts"),
    [
        ({"a.txt": "".join(f"{n:03}\n" for n in range(1000))}, ["000\n", "900\n", "950\n"]),
        ({"a.txt": "word " * 90 + "last " * 10}, ["word", "last", "last"]),
        ({f"{name}.txt": f"{name}: one line" for name in "abcdefghij"}, ["a: o", "", "j: o"]),
        ({f"{name}.txt": f"{name}\n" for name in SPLITS}, ["trai", "vali", "test"]),
        ({"b/train.txt": "b\n", "c/test.txt": "c\n", "d/valid.txt": "d\n"}, ["b\n", "d\n", "c\n"]),
    ],
    ids=["lines", "words", "files", "own", "folders"],
)
def test_splits_begin_at_nine_tenths_or_are_the_folder_s_own(files, starts, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    spans, rule = split_text(tmp_path)
    assert [spans_text(spans[name])[:4] for name in SPLITS] == starts
    assert ("train.txt" if len(files) == 3 else "90%") in rule


@pytest.mark.parametrize("other", ["LICENSE.txt", "deep/train.txt"])
def test_a_folder_with_its_own_split_and_more_is_refused(other, tmp_path):
    for name in ("train.txt", "valid.txt", "test.txt", other):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("some words\n")
    got = other if other.startswith("L") else "several of a name"
    with pytest.raises(ValueError, match=f"one of each and no other text, got .*{got}"):
        split_text(tmp_path)


@pytest.mark.parametrize("tokenizer", ["words", "characters", "bpe:280"])
@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_a_split_s_file_gives_its_tokens(tokenizer, ending, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("train", "valid", "test"):
        lines = [f"It's {n} o'clock, DEAR {name}." if n % 5 else "" for n in range(40)]
        (folder / f"{name}.txt").write_text("\r\n".join(lines) + ending)
    options = TextOptions(tokenizer=tokenizer, lower=True, min_count=2)
    corpus = prepare_text(folder, options=options, cache=tmp_path / "cache").corpus
    lines = tokenized_lines(read_file(folder / "valid.txt"), corpus.header.recipe)
    found = corpus.vocabulary.encode(chain.from_iterable(lines))
    np.testing.assert_array_equal(found, corpus.split("valid"))
    first = {"words": ["it's", "1"], "characters": ["i", "t"], "bpe:280": ["it", "'s"]}
    assert lines[1][:2] == first[tokenizer]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["axolotl", "<unk>", "newt", "<eos>"], "the text must have a token .*, got axolotl newt"),
        (["<eos>"], "the text must have a token of the run's vocabulary, got no token at all"),
        ([str(n) for n in range(99)], "got 0 1 2 3 4 5 6 7 …"),
    ],
)
def test_unknown_tokens_are_listed_once_and_some_token_must_be_known(tokens, message):
    vocabulary = Vocabulary(("<unk>", "<eos>", "the"))
    known = ["the", "axolotl", "the", "<eos>", "axolotl", "newt"]
    assert check_known(known, vocabulary, "the prompt") == ["axolotl", "newt"]
    with pytest.raises(ValueError, match=message):
        check_known(tokens, vocabulary, "the text")
    with pytest.raises(ValueError, match="which has no <unk>, got 'newt'"):
        check_known(["the", "newt"], Vocabulary(("<eos>", "the")), "the text")
