"""From the user's text to a corpus, or to an error and nothing."""

import errno

import pytest

from highrank.data import TextOptions, encode, load_corpus, prepare_text, text
from highrank.data.prepare import find_or_prepare


def left_behind(cache):
    return [file for file in cache.rglob("*") if file.is_file()]


def test_the_same_corpus_again_is_no_work(path, cache):
    first = prepare_text(path, cache=cache)
    # A folder that is made again does not have it.
    (first.corpus.path / "marker").touch()
    again = prepare_text(path, cache=cache)
    assert first.is_new and not again.is_new
    assert again.corpus.header == first.corpus.header
    assert (first.corpus.path / "marker").exists()


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


def interrupted_after(number, path, cache):
    """Prepare until progress was called so often; returns whether that was before the end."""
    calls = iter(range(number))

    def interrupt(fraction, activity):
        if next(calls, None) is None and fraction < 1:
            raise KeyboardInterrupt

    try:
        prepare_text(path, cache=cache, on_progress=interrupt)
    except KeyboardInterrupt:
        return True
    return False


def test_interrupted_at_any_moment_there_is_no_corpus(path, cache, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 1 << 12)
    fractions = []
    want = prepare_text(
        path, name="whole", cache=cache, on_progress=lambda now, _: fractions.append(now)
    ).corpus
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    number = 0
    while interrupted_after(number, path, cache):
        number += 1
        assert [entry.name for entry in (cache / "corpora").iterdir()] == ["whole"]
    assert (
        number > 3 and load_corpus(cache / "corpora" / "mine").header.splits == want.header.splits
    )
    assert list((cache / "preparing").iterdir()) == []


def test_finished_parts_of_an_interrupted_preparation_are_not_read_again(path, cache, monkeypatch):
    monkeypatch.setattr(text, "PART_BYTES", 3000)
    read, number_part = [], encode.number_part

    def number(spans, place, on_bytes):
        number_part(spans, place, on_bytes)
        read.append(place)
        if len(read) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(encode, "number_part", number)
    with pytest.raises(KeyboardInterrupt):
        prepare_text(path, cache=cache)
    found = prepare_text(path, cache=cache).corpus
    assert len(read) == len(set(read)) > 5
    monkeypatch.undo()
    assert found.header.splits == prepare_text(path, name="other", cache=cache).corpus.header.splits


@pytest.mark.parametrize("change", ["text", "options"])
def test_parts_of_another_text_or_recipe_are_read_anew(change, path, cache, monkeypatch):
    monkeypatch.setattr(text, "PART_BYTES", 3000)
    assert interrupted_after(5, path, cache)
    options = TextOptions(lower=True) if change == "options" else TextOptions()
    if change == "text":
        path.write_text(path.read_text().replace("clock", "watch"))
    found = prepare_text(path, cache=cache, options=options).corpus
    want = prepare_text(path, name="other", cache=cache, options=options).corpus
    assert found.vocabulary == want.vocabulary and found.header.splits == want.header.splits


def test_two_processes_that_prepare_the_same_do_not_share_parts(path, cache):
    found = []

    def again(fraction, activity):
        if not found:
            found.append(None)
            found[0] = prepare_text(path, cache=cache).corpus

    # The first of the two has its place taken.
    with pytest.raises(OSError, match="mine"):
        prepare_text(path, cache=cache, on_progress=again)
    assert load_corpus(cache / "corpora" / "mine").header == found[0].header


def test_a_full_disk_is_a_clear_error_and_nothing_is_left(path, cache, monkeypatch):
    def full(**arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(encode, "write_part", full)
    with pytest.raises(OSError, match="The disk is full: .*mine was not written"):
        prepare_text(path, cache=cache)
    assert left_behind(cache) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x7fELF\x00\x01", "mine.txt, line 1: .*zero byte"),
        (b"", "must not be empty, got .*mine.txt"),
        (b" \n\n", "train split must not be empty"),
        (b"same same\n" * 100, "2 tokens or more besides <unk> and <eos>, got 1: .*--min-count"),
        (b"one two three\n", "split must not be empty.*train.txt, valid.txt and test.txt"),
    ],
)
def test_bad_text_is_an_error_and_nothing_is_left(content, message, path, cache):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare_text(path, cache=cache)
    assert left_behind(cache) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "sotu"}, "is a known corpus"),
        ({"name": "../x"}, "must be letters"),
        ({"name": ".x"}, "must be letters"),
        ({"min_count": 0}, "min_count must be at least"),
        ({"max_vocab": 3}, "max_vocab must be at least"),
    ],
)
def test_bad_names_and_options_are_refused(options, message, path, cache):
    with pytest.raises(ValueError, match=message):
        name = options.pop("name", None)
        prepare_text(path, name=name, options=TextOptions(**options), cache=cache)


@pytest.mark.parametrize(
    ("stem", "name"), [("My Diary (2)", "My-Diary-2"), ("a" * 200, "a" * 100), ("日記", None)]
)
def test_a_name_is_made_of_the_file_s(stem, name, path, cache):
    file = path.rename(path.with_name(f"{stem}.txt"))
    if name is None:
        with pytest.raises(ValueError, match="give one with --name"):
            prepare_text(file, cache=cache)
    assert find_or_prepare(file, cache=cache).corpus.name == (name or "text")


def test_a_text_is_found_as_it_was_prepared_with_any_options(path, cache):
    first = prepare_text(path, options=TextOptions(tokenizer="characters"), cache=cache).corpus
    again = find_or_prepare(path, cache=cache)
    assert not again.is_new and again.corpus.header == first.header


def test_a_text_has_a_corpus_for_each_tokenizer(path, cache):
    found = [find_or_prepare(path, tokenizer="bpe:300", cache=cache) for _ in range(2)]
    assert [one.is_new for one in found] == [True, False]
    assert found[0].corpus.name == "mine-bpe-300" and found[0].corpus.vocabulary.unk is None
    assert found[1].corpus.header.recipe.subwords == found[0].corpus.header.recipe.subwords
    assert find_or_prepare(path, cache=cache).corpus.header.recipe.tokenizer == "words"


def test_a_text_never_takes_the_place_of_another(path, cache, tmp_path):
    first = prepare_text(path, cache=cache).corpus
    path.write_text(path.read_text() + "One line more.\n")
    second, again = find_or_prepare(path, cache=cache), find_or_prepare(path, cache=cache)
    assert second.is_new and not again.is_new and second.corpus.path == again.corpus.path
    assert second.corpus.name.startswith("mine-") and load_corpus(first.path) == first
    known = tmp_path / "penn-treebank.txt"
    known.write_text(path.read_text())
    assert find_or_prepare(known, cache=cache).corpus.name.startswith("penn-treebank-")
