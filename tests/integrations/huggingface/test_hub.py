"""Questions to the hub, and an export loaded from it, against a server of our own or none."""

import hashlib
import warnings
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import torch

from highrank.integrations.huggingface.export import export_run
from highrank.integrations.huggingface.reader import HubError, hub_answers, is_hub_name

with warnings.catch_warnings():
    # What it warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import huggingface_hub
    from huggingface_hub import constants
    from transformers import AutoModelForCausalLM

COMMIT = "1" * 40


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A server that stands for the hub, with an empty cache; its `answer` can be changed."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            server.asked.append(self.path)
            if server.folder is not None:
                self.send_file(server.folder / self.path.partition("/resolve/main/")[2])
                return
            status, code = server.answer
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.end_headers()

        do_GET = do_HEAD

        def send_file(self, path):
            content = path.read_bytes() if path.is_file() else b""
            self.send_response(200 if content else 404)
            self.send_header("X-Error-Code", "" if content else "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", hashlib.sha256(content).hexdigest())
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.answer, server.folder = [], (200, ""), None
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    template = (
        f"http://127.0.0.1:{server.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    )
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    huggingface_hub.close_session()


@pytest.mark.parametrize(
    "answer, error",
    [
        ((200, ""), None),
        ((403, "GatedRepo"), None),
        ((404, "EntryNotFound"), None),
        ((404, "RepoNotFound"), "the Hugging Face hub has no model of this name"),
        ((503, ""), r"the Hugging Face hub could not be reached \(.*503"),
    ],
)
def test_the_hub_is_asked_once(hub, answer, error):
    hub.answer = answer
    with nullcontext() if error is None else pytest.raises(HubError, match=error):
        assert hub_answers("someone/it")
    assert hub.asked == ["/someone/it/resolve/main/config.json"]


def test_an_export_with_tables_is_loaded_by_its_name(hub, run_of, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    folder = export_run(run_of("mos+ngram"), tmp_path / "export").folder
    hub.folder, tokens = folder, torch.arange(9)[None]
    want = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
    for options in ({}, {"local_files_only": True}):
        found = AutoModelForCausalLM.from_pretrained("me/tale", cache_dir=tmp_path / "c", **options)
        torch.testing.assert_close(found(tokens).logits, want)
    assert {path for path in hub.asked if "/ngram/" in path} == {
        f"/me/tale/resolve/main/ngram/{file.name}" for file in (folder / "ngram").iterdir()
    }


def test_without_a_connection_only_downloads_are_left(monkeypatch, tmp_path):
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HubError, match=r"could not be reached \(.*refused"):
        hub_answers("it")
    snapshot = tmp_path / "models--it" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--it" / "refs").mkdir()
    (tmp_path / "models--it" / "refs" / "main").write_text("0" * 40)
    assert hub_answers("it") is False


@pytest.mark.parametrize(
    "name", ["gpt2", "google/gemma-2-2b", "a_b/c.d-e", "x", "runs/small-1", "_a/_b"]
)
def test_names_that_can_be_on_the_hub(name):
    assert is_hub_name(name)
    huggingface_hub.utils.validate_repo_id(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "./a", "../a", "/a", "~/a", "~", "a/b/c", "a/", "a b", "a--b", "a..b", "-a"]
    + ["a.", "a\\b", "ä", "a" * 97, "a\n"],
)
def test_names_that_cannot(name):
    assert not is_hub_name(name)
