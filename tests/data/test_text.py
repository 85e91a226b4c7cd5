"""Text files block by block, their cut into splits, and new text as a corpus' tokens."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank.data import TextOptions, Vocabulary, prepare_text
from highrank.data import text as module
from highrank.data.text import (
    Span,
    check_known,
    file_span,
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


def test_sizes_add_up_and_windows_line_ends_and_byte_order_marks_vanish(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    ((text, size),) = read_text(file_span(path))
    assert text == "one\ntwo\n" and size == path.stat().st_size


def test_invalid_utf8_is_located_by_file_line_and_byte(tmp_path, small_blocks):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good line\n" * 50 + b"bad \xff line\n" + b"good\n" * 50)
    with pytest.raises(ValueError, match="a.txt, line 51: .* got byte 0xff at byte 504"):
        blocks(path)


def test_binary_files_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one line\n\x7fELF\x00\x01")
    with pytest.raises(ValueError, match="a.txt, line 2: .* zero byte: is it binary"):
        blocks(path)


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("utf-16", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
    ],
)
def test_wide_encodings_are_named_with_the_command_that_converts_them(encoding, named, tmp_path):
    path = tmp_path / "my book.txt"
    path.write_bytes("Wide letters\nand a €.\n".encode(encoding))
    want = f"my book.txt: text must be UTF-8, got {named}: convert it with `iconv -f {named} -t"
    with pytest.raises(ValueError, match=f"{want} UTF-8 '.*' > 'my book-utf8.txt'`$"):
        blocks(path)


def test_a_latin_1_file_gets_the_command_that_converts_it(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Zoë\n".encode("latin-1"))
    with pytest.raises(ValueError, match="line 1: .* 0xeb .* `iconv -f LATIN1 .* > a-utf8.txt`$"):
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


def test_the_cut_is_at_nine_tenths(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number:03}\n" for number in range(1000)))
    spans, rule = split_text(path)
    starts = [spans_text(spans[name])[:3] for name in ("train", "valid", "test")]
    assert starts == ["000", "900", "950"] and "90%" in rule


def test_a_line_that_starts_a_file_is_not_cut(tmp_path):
    for name in "abcdefghij":
        (tmp_path / f"{name}.txt").write_text(f"all of {name} is one long line")
    spans, _ = split_text(tmp_path)
    assert [span.path.name for span in spans["test"]] == ["j.txt"]
    assert len(spans["train"]) == 9 and spans["test"][0].start == 0


def test_one_long_line_is_cut_between_words(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("word " * 100)
    spans, _ = split_text(path)
    assert spans_text(spans["train"]) == "word " * 90


def test_a_folder_may_bring_its_own_split(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n")
    spans, rule = split_text(tmp_path)
    assert {name: spans_text(parts) for name, parts in spans.items()} == {
        name: f"{name}\n" for name in ("train", "valid", "test")
    }
    assert "train.txt" in rule


@pytest.mark.parametrize("other", ["LICENSE.txt", "deep/train.txt"])
def test_a_folder_with_its_own_split_and_more_is_refused(other, tmp_path):
    for name in ("train.txt", "valid.txt", "test.txt", other):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("some words\n")
    got = other if other.startswith("L") else "several of a name"
    with pytest.raises(ValueError, match=f"one of each and no other text, got .*{got}"):
        split_text(tmp_path)


def test_the_three_files_may_lie_in_folders_of_any_order(tmp_path):
    for name in ("b/train.txt", "c/test.txt", "d/valid.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"{name}\n")
    spans, _ = split_text(tmp_path)
    assert spans_text(spans["train"]) == "b/train.txt\n"
    assert spans_text(spans["test"]) == "c/test.txt\n"


@pytest.mark.parametrize("level", ["word", "char"])
@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_a_split_s_file_gives_its_tokens(level, ending, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("train", "valid", "test"):
        lines = [f"It's {n} o'clock, DEAR {name}." if n % 5 else "" for n in range(40)]
        (folder / f"{name}.txt").write_text("\r\n".join(lines) + ending)
    options = TextOptions(level=level, lower=True, min_count=2)
    corpus = prepare_text(folder, options=options, cache=tmp_path / "cache").corpus
    lines = tokenized_lines(read_file(folder / "valid.txt"), corpus.header.recipe)
    found = corpus.vocabulary.encode(chain.from_iterable(lines))
    np.testing.assert_array_equal(found, corpus.split("valid"))
    assert lines[1][:2] == (["it's", "1"] if level == "word" else ["i", "t"])


def test_unknown_tokens_are_listed_once():
    vocabulary = Vocabulary(("<unk>", "<eos>", "the", "cat"))
    tokens = ["the", "axolotl", "cat", "<eos>", "axolotl", "newt"]
    assert check_known(tokens, vocabulary, "the prompt") == ["axolotl", "newt"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["axolotl", "<unk>", "newt", "<eos>"], "the text must have a token .*, got axolotl newt"),
        (["<eos>"], "the text must have a token of the run's vocabulary, got no token at all"),
        ([str(n) for n in range(99)], "got 0 1 2 3 4 5 6 7 …"),
    ],
)
def test_a_text_with_no_known_token_is_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        check_known(tokens, Vocabulary(("<unk>", "<eos>", "the")), "the text")


def test_an_unknown_token_is_refused_where_there_is_no_unk():
    with pytest.raises(ValueError, match="which has no <unk>, got 'newt'"):
        check_known(["the", "newt"], Vocabulary(("<eos>", "the")), "the text")


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="the text must be a file, got"):
        read_file(tmp_path)
