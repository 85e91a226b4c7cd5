"""Files of a small known corpus from folders and a server; downloads that break, resume and lie."""

import errno
import hashlib
import io
import tarfile
import zipfile

import pytest

from highrank.data import find_corpus, prepare_known, sources
from highrank.data.catalog import CATALOG, PUBLISHED, KnownCorpus
from highrank.data.sources import fetch

TEXTS = {
    "tiny.train.txt": b"a b <unk>\n\nb c\n",
    "tiny.valid.txt": b"c d\n",
    "tiny.test.txt": b"e a\n",
}
HASHES = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}


def packed(kind):
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            for name, text in TEXTS.items():
                archive.writestr(f"./tiny/data/{name}", text)
        return file.getvalue()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, text in TEXTS.items():
            info = tarfile.TarInfo(f"./tiny/data/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    return file.getvalue()


@pytest.fixture
def known(monkeypatch):
    """Put a corpus called tiny into the catalogue."""

    def add(*addresses, **changes):
        splits = ("train", "valid", "test")
        fields = {
            "title": "Tiny",
            "licence": "none",
            "recipe": PUBLISHED,
            "files": {split: ((f"tiny.{split}.txt", f"{split}.txt"),) for split in splits},
            "addresses": addresses,
            "sha256": HASHES,
            "num_tokens": {"train": 8, "valid": 3, "test": 3},
            "vocab_size": 7,
        }
        monkeypatch.setitem(CATALOG, "tiny", KnownCorpus(**fields | changes))

    return add


def write_texts(folder, names=TEXTS):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, TEXTS.values(), strict=True):
        (folder / name).write_bytes(text)
    return folder


def words_of(corpus, split):
    return " ".join(corpus.vocabulary.decode(corpus.split(split)))


def test_the_protocol_is_whitespace_eos_per_line_and_order_of_appearance(known, tmp_path):
    known()
    corpus = prepare_known("tiny", source=write_texts(tmp_path / "in"), cache=tmp_path).corpus
    assert corpus.vocabulary.tokens == ("a", "b", "<unk>", "<eos>", "c", "d", "e")
    assert words_of(corpus, "train") == "a b <unk> <eos> <eos> b c <eos>"
    assert [words_of(corpus, split) for split in ("valid", "test")] == ["c d <eos>", "e a <eos>"]
    assert find_corpus("tiny", cache=tmp_path).header == corpus.header


@pytest.mark.parametrize("names", [TEXTS, ("train.txt", "valid.txt", "test.txt")])
def test_files_are_found_in_nested_folders_under_either_name(names, known, tmp_path):
    known()
    write_texts(tmp_path / "in" / "deep" / "er", names)
    assert prepare_known("tiny", source=tmp_path / "in", cache=tmp_path).is_new
    assert not prepare_known("tiny", source=tmp_path / "in", cache=tmp_path).is_new
    assert not prepare_known("tiny", cache=tmp_path).is_new


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_the_users_archive_will_do(kind, is_folder, known, tmp_path):
    known("http://127.0.0.1:9/tiny.archive")
    (tmp_path / "in").mkdir()
    archive = tmp_path / "in" / "tiny.archive"
    archive.write_bytes(packed(kind))
    source = archive.parent if is_folder else archive
    assert prepare_known("tiny", source=source, cache=tmp_path / "cache").is_new
    assert not list((tmp_path / "cache" / "downloads").iterdir())


def test_what_the_users_folder_lacks_is_an_error(known, tmp_path):
    known()
    folder = write_texts(tmp_path / "in")
    with pytest.raises(ValueError, match="in a folder or an archive, got .*train.txt"):
        prepare_known("tiny", source=folder / "tiny.train.txt", cache=tmp_path)
    write_texts(folder / "copy")
    with pytest.raises(ValueError, match="must have one tiny.train.txt, got .* and "):
        prepare_known("tiny", source=folder, cache=tmp_path)
    (folder / "copy" / "tiny.test.txt").unlink()
    with pytest.raises(ValueError, match="has no tiny.test.txt"):
        prepare_known("tiny", source=folder / "copy", cache=tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 8}, "must have 8 distinct tokens, got 7"),
        ({"num_tokens": {"test": 1234}}, "must have 1,234 test tokens, got 3"),
        ({"sha256": {"tiny.test.txt": "00"}}, "tiny.test.txt must have sha256 00, got"),
    ],
)
def test_files_that_are_not_the_published_ones_are_refused(changes, message, known, tmp_path):
    known(**changes)
    with pytest.raises(ValueError, match=message):
        prepare_known("tiny", source=write_texts(tmp_path / "in"), cache=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_folder_on_a_server_is_downloaded_file_by_file(known, site, tmp_path):
    known(f"{site.url}/")
    site.files |= {f"/{name}": text for name, text in TEXTS.items()}
    fractions = []
    done = prepare_known(
        "tiny", cache=tmp_path, on_progress=lambda fraction, _: fractions.append(fraction)
    )
    assert done.is_new and len(site.asked) == 3
    assert max(fractions) == 1.0 and not list((tmp_path / "downloads").iterdir())
    assert not prepare_known("tiny", cache=tmp_path).is_new and len(site.asked) == 3


@pytest.mark.parametrize("first", ["missing", "wrong hash", "no archive", "damaged", "refused"])
def test_the_second_address_is_used_when_the_first_one_fails(first, known, site, tmp_path):
    bad = "http://127.0.0.1:9/tiny.tgz" if first == "refused" else f"{site.url}/bad/tiny.tgz"
    content = packed("tar")
    known(bad, f"{site.url}/tiny.tgz", sha256={"tiny.tgz": hashlib.sha256(content).hexdigest()})
    if first == "no archive" or first == "damaged":
        known(bad, f"{site.url}/tiny.tgz")
    site.files["/tiny.tgz"] = content
    if first == "wrong hash" or first == "no archive":
        site.files["/bad/tiny.tgz"] = b"sorry"
    elif first == "damaged":
        site.files["/bad/tiny.tgz"] = packed("tar")[:40] + b"?" + packed("tar")[41:]
    assert prepare_known("tiny", cache=tmp_path).is_new


def test_when_no_address_works_the_error_names_each_and_the_way_out(known, site, tmp_path):
    known(f"{site.url}/one.zip", f"{site.url}/two/")
    with pytest.raises(OSError) as error:
        prepare_known("tiny", cache=tmp_path)
    first, one, two, way_out = str(error.value).splitlines()
    assert "/one.zip: " in one and "404" in one and "/two/: " in two and "404" in two
    assert "highrank data prepare tiny --from DIR" in way_out


def test_a_full_disk_while_unpacking_keeps_the_archive(known, site, tmp_path, monkeypatch):
    known(f"{site.url}/tiny.zip", f"{site.url}/again/tiny.zip")
    site.files |= {"/tiny.zip": packed("zip"), "/again/tiny.zip": packed("zip")}

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sources, "extract", full)
    with pytest.raises(OSError, match="The disk is full: .*tiny was not written.*--cache DIR"):
        prepare_known("tiny", cache=tmp_path)
    monkeypatch.undo()
    known(f"{site.url}/tiny.zip")
    monkeypatch.setenv("no_proxy", "*")
    assert prepare_known("tiny", cache=tmp_path).is_new
    assert [path for path, _ in site.asked] == ["/tiny.zip"]


CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file.zip"


def get(site, target, path="/file.zip", sha256=None, max_bytes=10**7):
    fractions = []
    fetch(
        site.url + path,
        target,
        sha256=sha256,
        max_bytes=max_bytes,
        on_progress=lambda fraction, activity: fractions.append(fraction),
    )
    return fractions


def only_file(target):
    return [file.name for file in target.parent.iterdir()] == [target.name]


def test_a_download_arrives_and_reports_its_progress(site, target):
    site.files["/file.zip"] = CONTENT
    fractions = get(site, target, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT and only_file(target)
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and len(fractions) > 1


def test_a_broken_connection_is_resumed_where_it_broke(site, target):
    site.files["/file.zip"], site.breaks = CONTENT, [300_000, 400_000]
    get(site, target)
    assert target.read_bytes() == CONTENT
    assert [wanted for _, wanted in site.asked] == [None, "bytes=300000-", "bytes=700000-"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")], ids=repr
)
def test_an_interrupt_and_a_full_disk_end_the_call_and_the_next_one_resumes(error, site, target):
    site.files["/file.zip"] = CONTENT

    def fail(fraction, activity):
        raise error

    with pytest.raises(type(error)) as caught:
        fetch(site.url + "/file.zip", target, sha256=None, max_bytes=10**7, on_progress=fail)
    assert caught.value is error and not target.exists()
    get(site, target)
    assert target.read_bytes() == CONTENT and only_file(target)
    assert site.asked[1:] == [("/file.zip", f"bytes={sources.COPY_BYTES}-")]


@pytest.mark.parametrize(
    ("options", "breaks", "message"),
    [
        ({"sha256": "0000"}, [], "sha256 must be 0000, got [0-9a-f]{64}"),
        ({"max_bytes": 1000}, [], "at most 1,000 bytes"),
        ({}, [500, 0, 0], "broke after 500"),
        ({"path": "/nowhere"}, [], "404"),
    ],
)
def test_a_download_that_fails_is_named_and_a_wrong_one_thrown_away(
    options, breaks, message, site, target
):
    site.files["/file.zip"], site.breaks = CONTENT, breaks
    with pytest.raises((ValueError, ConnectionError), match=message):
        get(site, target, **options)
    assert len(site.asked) == (2 if breaks else 1) and not target.exists()
    assert bool(list(target.parent.iterdir())) == bool(breaks)


@pytest.mark.parametrize("change", ["file", "ranges", "validator", "length"])
def test_what_cannot_be_resumed_starts_again(change, site, target, monkeypatch):
    site.files["/file.zip"], site.breaks = CONTENT, [300_000]
    site.etag = None if change == "validator" else site.etag
    monkeypatch.setattr(sources, "ATTEMPTS", 1)
    with pytest.raises(ConnectionError, match="broke after 300,000 of 1,024,000 bytes"):
        get(site, target)
    if change == "file":
        site.etag, site.files["/file.zip"] = '"two"', CONTENT[::-1]
    site.knows_ranges = change != "ranges"
    if change == "length":
        site.files["/file.zip"] = CONTENT[:1000]
    get(site, target)
    assert target.read_bytes() == site.files["/file.zip"] and only_file(target)


def test_a_download_that_stopped_after_its_last_byte_is_not_repeated(site, target, monkeypatch):
    site.files["/file.zip"] = CONTENT

    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "file_sha256", interrupt)
    digest = hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(KeyboardInterrupt):
        get(site, target, sha256=digest)
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "*")
    assert get(site, target, sha256=digest) == []
    assert target.read_bytes() == CONTENT and only_file(target)


def test_each_address_resumes_its_own_part(site, target, monkeypatch):
    site.files |= {"/file.zip": CONTENT, "/other.zip": CONTENT}
    monkeypatch.setattr(sources, "ATTEMPTS", 1)
    site.breaks = [300_000, 400_000]
    for path in ("/file.zip", "/other.zip"):
        with pytest.raises(ConnectionError, match="broke after"):
            get(site, target, path)
    get(site, target)
    assert target.read_bytes() == CONTENT
    assert site.asked[-1] == ("/file.zip", "bytes=300000-")


def test_a_server_that_sends_another_part_is_an_error(site, target):
    site.files["/file.zip"], site.breaks, site.shift = CONTENT, [300_000], 1
    with pytest.raises(ConnectionError, match="must send bytes 300000-, got 'bytes 300001-"):
        get(site, target)


@pytest.fixture
def news(tmp_path):
    """A folder in the layout of the One Billion Word Benchmark, with other text."""
    (tmp_path / "news" / "training").mkdir(parents=True)
    for shard in range(1, 100):
        path = tmp_path / "news" / "training" / f"news.en-{shard:05}-of-00100"
        path.write_text(f"the cat {shard % 3} sat\nthe dog ran .\n")
    (tmp_path / "news" / "heldout").mkdir()
    for shard in range(2):
        path = tmp_path / "news" / "heldout" / f"news.en.heldout-{shard:05}-of-00050"
        path.write_text("the cat flew\nthe end\n")
    return tmp_path / "news"


def test_the_billion_words_must_be_the_published_ones(news, tmp_path):
    with pytest.raises(ValueError, match="news.en-00001-of-00100 must have md5 8926e543"):
        prepare_known("one-billion", source=news, cache=tmp_path)


def test_other_text_in_the_same_files_has_a_name_of_its_own(news, tmp_path):
    given = {"source": news, "cache": tmp_path}
    found = prepare_known("one-billion", own_name="mine", **given).corpus
    assert found.name == "mine" and found.sentence_end == found.vocabulary.eos == 1
    assert found.header.splits["test"].num_tokens == 7
    assert found.header.splits["test"].num_unknown == 2
    cut = prepare_known("one-billion-100", own_name="cut", **given).corpus
    assert cut.header.recipe.max_vocab == 100 and cut.header.recipe.independent_lines
    with pytest.raises(ValueError, match="--name must not be that of a known corpus"):
        prepare_known("one-billion", own_name="one-billion-5000", **given)
