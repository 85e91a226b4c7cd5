"""Fetch a file, continuing where an earlier attempt stopped."""

import hashlib
import json
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from highrank.files import file_sha256, is_disk_full

TIMEOUT_SECONDS = 30.0
COPY_BYTES = 1 << 18
# A connection that breaks is taken up again as long as each attempt brings something.
ATTEMPTS = 8

OnProgress = Callable[[float, str], None]


def fetch(
    url: str, target: Path, *, sha256: str | None, max_bytes: int, on_progress: OnProgress
) -> None:
    """Write what is at `url` to `target`.

    What arrived so far is in a .part beside `target`, one for each address, and survives a broken
    connection and Ctrl-C: the next call asks for the rest, if the server still has the same file.

    Args:
        sha256: of the whole file; another one is an error, and the download is thrown away.
        max_bytes: a larger file is an error.
    """
    part = _beside(target, f".{hashlib.sha256(url.encode()).hexdigest()[:8]}.part")
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            _fetch_rest(url, part, max_bytes, on_progress)
            break
        except (OSError, HTTPException) as error:
            if is_disk_full(error):
                raise
            if attempt == ATTEMPTS or _size(part) <= before:
                raise ConnectionError(_reason(error)) from error
    if sha256 is not None and (found := file_sha256(part)) != sha256:
        _discard(part)
        raise ValueError(f"sha256 must be {sha256}, got {found}")
    part.replace(target)
    _discard(part)


def _fetch_rest(url: str, part: Path, max_bytes: int, on_progress: OnProgress) -> None:
    validator = _validator_of(part, url)
    done = _size(part) if validator else 0
    headers = {"User-Agent": "highrank", "Accept-Encoding": "identity"}
    if done and validator:
        # With If-Range, a server whose file has changed sends all of the new one.
        headers |= {"Range": f"bytes={done}-", "If-Range": validator}
    try:
        response = urlopen(Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416 and done:
            if error.headers.get("Content-Range") == f"bytes */{done}":
                # All of it is here: the last attempt ended after its last byte.
                return
            _discard(part)
            _fetch_rest(url, part, max_bytes, on_progress)
            return
        raise
    with response:
        if not _continues(response, done):
            done = 0
            _remember(part, url, response)
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as file:
            while block := response.read(COPY_BYTES):
                done += len(block)
                if done > max_bytes:
                    _discard(part)
                    raise ValueError(f"a download must be at most {max_bytes:,} bytes, got more")
                file.write(block)
                on_progress(done / total if total else 0.0, f"{done / 1e6:,.1f} MB of {url}")
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke after {done:,} of {total:,} bytes")


def _continues(response: HTTPResponse, done: int) -> bool:
    """Whether the server sends the rest and not, ignoring the question, the whole file."""
    if response.status != 206:
        return False
    found = response.headers.get("Content-Range", "")
    if not found.startswith(f"bytes {done}-"):
        raise ConnectionError(f"the server must send bytes {done}-, got {found!r}")
    return True


def _remember(part: Path, url: str, response: HTTPResponse) -> None:
    """Note which file the part belongs to: without a strong validator it cannot be continued."""
    tag = response.headers.get("ETag", "")
    validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    _beside(part, ".json").write_text(json.dumps({"url": url, "validator": validator}))


def _validator_of(part: Path, url: str) -> str | None:
    try:
        note = json.loads(_beside(part, ".json").read_text())
        return str(note["validator"]) if note["url"] == url and note["validator"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _beside(part, ".json").unlink(missing_ok=True)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        return str(error.reason)
    return str(error) or type(error).__name__
