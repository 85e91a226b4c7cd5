"""A text to prepare, and a web server on this machine that can break a download."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture
def path(tmp_path):
    lines = [f"Line {number}: \"it's {number % 7} o'clock,\" he said." for number in range(400)]
    file = tmp_path / "mine.txt"
    file.write_text("\n\n".join(lines) + "\n")
    return file


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@dataclass
class Site:
    """Files by path, how the server misbehaves, and what it was asked."""

    url: str
    files: dict = field(default_factory=dict)
    etag: str | None = '"one"'
    knows_ranges: bool = True
    # How many bytes later than asked for a range starts.
    shift: int = 0
    # The connection breaks after so many bytes of each answer, as often as there are entries.
    breaks: list = field(default_factory=list)
    asked: list = field(default_factory=list)


def answer(handler, site):
    wanted = handler.headers.get("Range")
    site.asked.append((handler.path, wanted))
    content = site.files.get(handler.path)
    if content is None:
        handler.send_error(404)
        return
    start, total = 0, len(content)
    is_same = handler.headers.get("If-Range") in (None, site.etag)
    if wanted and site.knows_ranges and is_same:
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= total:
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{total}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start + site.shift}-{total - 1}/{total}")
    else:
        handler.send_response(200)
    if site.etag:
        handler.send_header("ETag", site.etag)
    handler.send_header("Content-Length", str(total - start))
    handler.end_headers()
    rest = content[start:]
    handler.wfile.write(rest[: site.breaks.pop(0)] if site.breaks else rest)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self, site)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        server.shutdown()
        thread.join()
