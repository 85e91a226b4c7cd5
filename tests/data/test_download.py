"""Downloads that break, resume and lie."""

import errno
import hashlib

import pytest

from highrank.data import download
from highrank.data.download import fetch

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file.zip"


def get(site, target, path="/file.zip", sha256=None, max_bytes=10**7):
    shares = []
    fetch(
        site.url + path,
        target,
        sha256=sha256,
        max_bytes=max_bytes,
        on_progress=lambda share, text: shares.append(share),
    )
    return shares


def only_file(target):
    return [file.name for file in target.parent.iterdir()] == [target.name]


def test_a_download_arrives_and_tells_how_far_it_is(site, target):
    site.files["/file.zip"] = CONTENT
    shares = get(site, target, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT and only_file(target)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 1


def test_a_broken_connection_is_taken_up_where_it_broke(site, target):
    site.files["/file.zip"], site.breaks = CONTENT, [300_000, 400_000]
    get(site, target)
    assert target.read_bytes() == CONTENT
    assert [wanted for _, wanted in site.asked] == [None, "bytes=300000-", "bytes=700000-"]


def test_an_interrupted_download_resumes_in_the_next_call(site, target):
    site.files["/file.zip"] = CONTENT

    def interrupt(share, text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(site.url + "/file.zip", target, sha256=None, max_bytes=10**7, on_progress=interrupt)
    assert not target.exists()
    get(site, target)
    assert target.read_bytes() == CONTENT and only_file(target)
    assert site.asked[-1][1] == f"bytes={download.COPY_BYTES}-"


@pytest.mark.parametrize("change", ["file", "ranges", "validator", "length"])
def test_what_cannot_be_resumed_starts_again(change, site, target, monkeypatch):
    site.files["/file.zip"], site.breaks = CONTENT, [300_000]
    site.etag = None if change == "validator" else site.etag
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    with pytest.raises(ConnectionError, match="broke after 300,000 of 1,024,000 bytes"):
        get(site, target)
    if change == "file":
        site.etag, site.files["/file.zip"] = '"two"', CONTENT[::-1]
    site.knows_ranges = change != "ranges"
    if change == "length":
        site.files["/file.zip"] = CONTENT[:1000]
    get(site, target)
    assert target.read_bytes() == site.files["/file.zip"] and only_file(target)


def test_a_connection_that_brings_nothing_is_given_up(site, target):
    site.files["/file.zip"], site.breaks = CONTENT, [500, 0, 0]
    with pytest.raises(ConnectionError, match="broke after 500"):
        get(site, target)
    assert len(site.asked) == 2


def test_a_wrong_hash_is_an_error_and_the_download_is_thrown_away(site, target):
    site.files["/file.zip"] = CONTENT
    with pytest.raises(ValueError, match="sha256 must be 0000, got [0-9a-f]{64}"):
        get(site, target, sha256="0000")
    assert list(target.parent.iterdir()) == []


def test_a_file_that_is_too_large_is_an_error(site, target):
    site.files["/file.zip"] = CONTENT
    with pytest.raises(ValueError, match="at most 1,000 bytes"):
        get(site, target, max_bytes=1000)
    assert list(target.parent.iterdir()) == []


def test_a_download_that_stopped_after_its_last_byte_is_not_repeated(site, target, monkeypatch):
    site.files["/file.zip"] = CONTENT

    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "file_sha256", interrupt)
    digest = hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(KeyboardInterrupt):
        get(site, target, sha256=digest)
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "*")
    assert get(site, target, sha256=digest) == []
    assert target.read_bytes() == CONTENT and only_file(target)


def test_each_address_goes_on_with_its_own_part(site, target, monkeypatch):
    site.files |= {"/file.zip": CONTENT, "/other.zip": CONTENT}
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    site.breaks = [300_000, 400_000]
    for path in ("/file.zip", "/other.zip"):
        with pytest.raises(ConnectionError, match="broke after"):
            get(site, target, path)
    get(site, target)
    assert target.read_bytes() == CONTENT
    assert site.asked[-1] == ("/file.zip", "bytes=300000-")


def test_a_full_disk_is_not_taken_for_a_bad_connection(site, target):
    site.files["/file.zip"] = CONTENT

    def full(share, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError) as caught:
        fetch(site.url + "/file.zip", target, sha256=None, max_bytes=10**7, on_progress=full)
    assert caught.value.errno == errno.ENOSPC and len(site.asked) == 1


def test_a_missing_file_is_named_by_its_error(site, target):
    with pytest.raises(ConnectionError, match="404"):
        get(site, target)
    assert not target.exists()


def test_a_server_that_is_not_there_is_an_error(target):
    with pytest.raises(ConnectionError, match="refused"):
        fetch(
            "http://127.0.0.1:9/x",
            target,
            sha256=None,
            max_bytes=1,
            on_progress=lambda share, text: None,
        )


def test_a_server_that_sends_another_part_is_an_error(site, target):
    site.files["/file.zip"], site.breaks, site.shift = CONTENT, [300_000], 1
    with pytest.raises(ConnectionError, match="must send bytes 300000-, got 'bytes 300001-"):
        get(site, target)
