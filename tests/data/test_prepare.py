"""From the user's text to a corpus, or to an error and nothing."""

import errno
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from highrank.data import TextOptions, encode, prepare_text, text, tokenizer
from highrank.data.tokenizer import TOKENIZERS

LINES = [f"Line {number}: \"it's {number % 7} o'clock,\" he said." for number in range(400)]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("\n\n".join(LINES) + "\n")
    return file


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def left_behind(cache):
    return [file for file in cache.rglob("*") if file.is_file()]


@pytest.mark.parametrize("level", ["word", "char"])
def test_the_splits_are_the_text_again(level, path, cache):
    options = TextOptions(level=level, min_count=1)
    corpus = prepare_text(path, options=options, cache=cache).corpus
    tokenize = TOKENIZERS[corpus.header.recipe.tokenizer]
    lines = path.read_text().removesuffix("\n").split("\n")
    want = [token for line in lines for token in tokenize(line)]
    found = np.concatenate([corpus.split(name) for name in ("train", "valid", "test")])
    ids = corpus.vocabulary.encode(want)
    assert found.tolist() == ids.tolist()
    train = found[: len(corpus.split("train"))]
    assert corpus.vocabulary.unk not in train
    if level == "char":
        assert corpus.vocabulary.decode(found).count("<eos>") == len(lines)


def test_the_vocabulary_is_that_of_the_training_text_by_frequency(path, cache):
    corpus = prepare_text(path, cache=cache).corpus
    train = Counter(corpus.vocabulary.decode(corpus.split("train")))
    unk, eos, *words = corpus.vocabulary.words
    assert (unk, eos) == ("<unk>", "<eos>")
    assert words == sorted(words, key=lambda word: (-train[word], word))
    assert min(train[word] for word in words) >= 3
    assert corpus.header.splits["train"].num_unknown == train["<unk>"] > 300


def test_options_cut_and_lower_the_vocabulary(path, cache):
    options = TextOptions(max_vocab=12, lower=True)
    corpus = prepare_text(path, options=options, cache=cache).corpus
    assert len(corpus.vocabulary) == corpus.header.vocab_size == 12
    assert "line" in corpus.vocabulary and "Line" not in corpus.vocabulary
    assert corpus.header.recipe.lower and corpus.header.recipe.max_vocab == 12


def test_words_only_seen_later_are_unknown(tmp_path, cache):
    (tmp_path / "in").mkdir()
    for name, words in (("train", "a b " * 9), ("valid", "a b new"), ("test", "new newer")):
        (tmp_path / "in" / f"{name}.txt").write_text(words)
    corpus = prepare_text(tmp_path / "in", cache=cache).corpus
    assert corpus.vocabulary.words == ("<unk>", "<eos>", "a", "b")
    shares = [split.unknown_share for split in corpus.header.splits.values()]
    assert shares == [0, 1 / 4, 2 / 3]
    assert [source.name for source in corpus.header.sources] == [
        "train.txt",
        "valid.txt",
        "test.txt",
    ]


def test_a_large_vocabulary_takes_four_bytes(tmp_path, cache):
    file = tmp_path / "large.txt"
    file.write_text("".join(f"w{number}\n" for number in range(80_000)))
    corpus = prepare_text(file, options=TextOptions(min_count=1), cache=cache).corpus
    train = corpus.split("train")
    assert train.dtype == np.uint32 and train.max() > 1 << 16
    assert corpus.vocabulary.decode(train[-2:]) == [f"w{len(train) // 2 - 1}", "<eos>"]


@pytest.mark.parametrize("end", ["ends here\n", "\n", "   \n", " " * 300 + "\n\n"])
@pytest.mark.parametrize("length", [97, 98, 99, 100])
def test_the_size_of_blocks_does_not_matter(length, end, path, cache, monkeypatch):
    path.write_text("one very long line, " * length + end + path.read_text())
    before = prepare_text(path, name="before", cache=cache).corpus
    monkeypatch.setattr(text, "BLOCK_BYTES", 100)
    monkeypatch.setattr(encode, "CHUNK_TOKENS", 100)
    after = prepare_text(path, name="after", cache=cache).corpus
    assert after.header.splits == before.header.splits
    assert after.vocabulary == before.vocabulary


def test_too_many_different_words_are_refused_before_memory_is_full(path, cache, monkeypatch):
    monkeypatch.setattr(encode, "MAX_WORDS", 100)
    with pytest.raises(ValueError, match="at most 100 different words.*Try --level char"):
        prepare_text(path, cache=cache)
    assert left_behind(cache) == []


def test_long_pieces_are_not_remembered():
    TOKENIZERS["words"]("x" * 65 + " " + "y" * 64)
    assert "x" * 65 not in tokenizer._pieces and "y" * 64 in tokenizer._pieces


def test_memory_does_not_grow_with_the_text(path, cache, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(encode, "CHUNK_TOKENS", 1 << 14)
    peaks = []
    for times in (2, 20):
        path.write_text("\n".join(LINES) * times)
        tracemalloc.start()
        prepare_text(path, name=f"x{times}", cache=cache)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_the_same_corpus_again_is_no_work(path, cache):
    first = prepare_text(path, cache=cache)
    marker = first.corpus.path / "train.bin"
    before = marker.stat().st_mtime_ns
    again = prepare_text(path, cache=cache)
    assert first.is_new and not again.is_new
    assert again.corpus.header == first.corpus.header
    assert marker.stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["text", "options"])
def test_a_different_corpus_of_the_same_name_needs_force(change, path, cache):
    first = prepare_text(path, cache=cache).corpus
    options = TextOptions(min_count=2) if change == "options" else TextOptions()
    if change == "text":
        path.write_text(path.read_text() + "One line more.\n")
    with pytest.raises(ValueError, match="another corpus is already prepared as mine.*--force"):
        prepare_text(path, options=options, cache=cache)
    again = prepare_text(path, options=options, cache=cache, force=True)
    assert again.is_new and again.corpus.header != first.header
    assert [entry.name for entry in (cache / "corpora").iterdir()] == ["mine"]


def test_force_does_not_delete_a_folder_that_is_not_a_corpus(path, cache):
    (cache / "corpora" / "mine").mkdir(parents=True)
    (cache / "corpora" / "mine" / "diary").touch()
    for force in (False, True):
        with pytest.raises(ValueError, match="not a prepared corpus"):
            prepare_text(path, cache=cache, force=force)
    assert (cache / "corpora" / "mine" / "diary").exists()


def test_interrupted_at_any_moment_nothing_is_left(path, cache, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 1 << 12)
    moments = []
    prepare_text(path, name="whole", cache=cache, on_progress=lambda *now: moments.append(now))
    shares = [share for share, _ in moments]
    assert shares == sorted(shares) and shares[-1] == 1.0
    # The last call comes when all is done.
    for moment in range(len(moments) - 1):
        calls = iter(range(len(moments)))

        def interrupt(share, text, calls=calls, moment=moment):
            if next(calls) == moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare_text(path, cache=cache, on_progress=interrupt)
        assert [entry.name for entry in (cache / "corpora").iterdir()] == ["whole"]


def test_a_full_disk_is_a_clear_error_and_nothing_is_left(path, cache, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(encode, "_write_ids", full)
    with pytest.raises(OSError, match="The disk is full: .*mine was not written"):
        prepare_text(path, cache=cache)
    assert left_behind(cache) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\n" * 30 + b"\xc3\x28\n" + b"good\n" * 30, "mine.txt, line 31: .*0xc3 at byte 150"),
        (b"\x7fELF\x00\x01", "mine.txt, line 1: .*zero byte"),
        (b"", "must not be empty, got .*mine.txt"),
        (b" \n\n", "train split must not be empty"),
        (b"same same\n" * 100, "2 words or more besides <unk> and <eos>, got 1: .*--min-count"),
        (b"one two three\n", "split must not be empty.*train.txt, valid.txt and test.txt"),
    ],
)
def test_bad_text_is_an_error_and_nothing_is_left(content, message, path, cache):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare_text(path, cache=cache)
    assert left_behind(cache) == []


def test_an_unreadable_file_is_named(path, cache, monkeypatch):
    def denied(self, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.open", denied)
    with pytest.raises(PermissionError, match="mine.txt"):
        prepare_text(path, cache=cache)


@pytest.mark.parametrize(
    ("name", "message"),
    [("sotu", "is a known corpus"), ("../x", "must be letters"), (".x", "must be letters")],
)
def test_bad_names_are_refused(name, message, path, cache):
    with pytest.raises(ValueError, match=message):
        prepare_text(path, name=name, cache=cache)


def test_a_name_is_made_of_the_files(path, cache):
    odd = path.rename(path.with_name("My Diary (2).txt"))
    assert prepare_text(odd, cache=cache).corpus.name == "My-Diary-2"
    none = odd.rename(odd.with_name("日記.txt"))
    with pytest.raises(ValueError, match="give one with --name"):
        prepare_text(none, cache=cache)


@pytest.mark.parametrize("options", [{"min_count": 0}, {"max_vocab": 3}])
def test_bad_options_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        TextOptions(**options)
