"""Pairs from two files, columns and JSON lines, and their splits."""

import json

import pytest

from highrank.data.pairs.reading import Pair, hold_out, read_pairs, split_files

PAIRS = [Pair("ein Haus", "a house"), Pair("zwei Bäume", "two trees")]


@pytest.fixture
def two_files(tmp_path):
    for side, ending in enumerate(("de", "en")):
        text = "".join(f"{pair[side]}\n" for pair in PAIRS)
        (tmp_path / f"train.{ending}").write_text(text, encoding="utf-8")
    return tmp_path


def test_all_forms_hold_the_same_pairs(two_files):
    rows = [f"{pair.source}\t{pair.target}\tnobody" for pair in PAIRS]
    (two_files / "a.tsv").write_text("\n".join(rows), encoding="utf-8")
    (two_files / "b.tsv").write_text("\n".join(["de\ten\tby", *rows]), encoding="utf-8")
    objects = [json.dumps({"source": p.source, "target": p.target}) for p in PAIRS]
    nested = [json.dumps({"translation": {"de": p.source, "en": p.target}}) for p in PAIRS]
    (two_files / "a.jsonl").write_text("\n".join(objects))
    (two_files / "b.jsonl").write_text("\n".join(nested))
    assert read_pairs([two_files / "train.de", two_files / "train.en"]) == PAIRS
    for name in ("a.tsv", "a.jsonl"):
        assert read_pairs([two_files / name]) == PAIRS
    for name in ("b.tsv", "b.jsonl"):
        assert read_pairs([two_files / name], ("de", "en")) == PAIRS


def test_an_unusual_line_end_does_not_move_the_pairs(tmp_path):
    (tmp_path / "a").write_text("one\u2028still one\ntwo\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\r\nzwei", encoding="utf-8")
    found = read_pairs([tmp_path / "a", tmp_path / "b"])
    assert [pair.target for pair in found] == ["eins", "zwei"]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.en", "one line\n", "as many lines as each other, got 2 and 1"),
        ("a.tsv", "no tab\n", "line 1: must have a source, a tab and a target"),
        ("a.jsonl", "{", "line 1: must be JSON"),
        ("a.jsonl", '{"de": "x"}', "must be an object with texts source and target"),
    ],
)
def test_mistakes_are_named(two_files, name, text, message):
    path = two_files / name
    path.write_text(text)
    paths = [path] if name != "a.en" else [two_files / "train.de", path]
    with pytest.raises(ValueError, match=message):
        read_pairs(paths)


def test_a_folder_has_its_splits_by_name(two_files):
    for name in ("val", "test_2016_flickr", "test_2017"):
        for ending in ("de", "en"):
            (two_files / f"{name}.{ending}").write_text("x\n")
    (two_files / "attested.de").write_text("x\n")
    found = split_files(two_files, (".de", ".en"))
    names = {split: [path.name for path in paths] for split, paths in found.items()}
    assert names["valid"] == ["val.de", "val.en"]
    assert names["test"] == ["test_2016_flickr.de", "test_2016_flickr.en"]
    with pytest.raises(ValueError, match=r"must have train\.fr and train\.en, got none"):
        split_files(two_files, (".fr", ".en"))


def test_what_is_held_out_was_never_read():
    pairs = [Pair(f"source {i % 70}", f"target {i}") for i in range(200)]
    train, held_out = hold_out(pairs)
    assert sorted(train + held_out) == sorted(pairs)
    assert 10 <= len(held_out) <= 12
    assert not {pair.source for pair in train} & {pair.source for pair in held_out}
    with pytest.raises(ValueError, match="20 at least"):
        hold_out(pairs[:5])
    with pytest.raises(ValueError, match="two sources at least .*, got 100 of one source"):
        hold_out([Pair("source", "target")] * 100)
