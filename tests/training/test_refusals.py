"""What a run refuses, and what it leaves when it cannot continue."""

import errno
import json
import resource
import shutil
import signal
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError

from highrank.config import StageConfig
from highrank.data.vocabulary import Vocabulary
from highrank.models import tensors
from highrank.models.tensors import content_sha256
from highrank.models.weights import save_state
from highrank.run.configuration import config_to_json
from highrank.training.checkpoint import load_checkpoint, save_checkpoint, save_model
from highrank.training.session import open_session
from highrank.training.trainer import Diverged


@pytest.fixture(scope="module")
def finished(config, corpus, tmp_path_factory):
    """A configuration and the folder of its run."""
    folder = tmp_path_factory.mktemp("finished")
    config = replace(config, finetune=None, train=StageConfig(epochs=1))
    with closing(open_session(config, corpus, folder)) as session:
        session.go()
    return config, folder


@pytest.fixture
def once(finished):
    return finished[0]


@pytest.fixture
def folder(finished, tmp_path):
    """A finished run, to be changed."""
    return shutil.copytree(finished[1], tmp_path / "run")


@pytest.mark.parametrize("is_written", [False, True])
def test_another_configuration_is_refused(is_written, once, corpus, folder):
    other = replace(once, train=replace(once.train, lr=1.0))
    if is_written:
        (folder / "config.json").write_text(json.dumps(config_to_json(other)))
    with pytest.raises(ValueError, match="same configuration, got .* with train.lr 20.0, not 1.0"):
        open_session(other, corpus, folder)


def test_another_corpus_is_refused(once, corpus, folder):
    before = (folder / "vocabulary.json").read_bytes()
    words = tuple(corpus.vocabulary.tokens)
    other = SimpleNamespace(**vars(corpus) | {"vocabulary": Vocabulary((*words[:-1], "other"))})
    with pytest.raises(ValueError, match="the corpus must have the run's vocabulary"):
        open_session(once, other, folder)
    assert (folder / "vocabulary.json").read_bytes() == before
    texts = {name: corpus.split(name) for name in ("train", "valid", "test")}
    texts["train"] = texts["train"][::-1].copy()
    other = SimpleNamespace(**vars(corpus) | {"split": texts.__getitem__})
    with pytest.raises(ValueError, match="run began with, got another train split"):
        open_session(once, other, folder)


def test_a_folder_with_other_files_is_refused(config, corpus, tmp_path):
    (tmp_path / "thesis.tex").write_text("all my work")
    with pytest.raises(ValueError, match="folder must be empty"):
        open_session(config, corpus, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "all my work"


def test_divergence_stops_with_the_step_and_the_last_good_checkpoint(config, corpus, tmp_path):
    wild = replace(config, train=replace(config.train, lr=1e38, clip=1e38))
    with pytest.raises(Diverged, match=r"diverged at step \d+ .*trainer\.pt") as caught:
        open_session(wild, corpus, tmp_path / "run").go()
    assert caught.value.advice.endswith("--train.lr 3.3e+37")
    state = torch.load(tmp_path / "run" / "trainer.pt", weights_only=True)["trainer"]
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


@pytest.mark.parametrize("stage", ["train", "finetune"])
def test_weights_that_validation_finds_broken_are_not_saved(stage, config, corpus, tmp_path):
    """One window makes an epoch: the gradient was fine, the step was not."""
    batch = replace(config.batch, options={"bptt": 400, "bptt_std": 0.0})
    broken = replace(getattr(config, stage), lr=1e38, clip=1e38)
    wild = replace(config, batch=batch, **{stage: broken})
    with pytest.raises(Diverged, match=r"on valid is (nan|inf).*trainer\.pt") as caught:
        open_session(wild, corpus, tmp_path / "run").go()
    assert f"--{stage}.lr" in caught.value.advice
    state = torch.load(tmp_path / "run" / "trainer.pt", weights_only=True)["trainer"]
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


@pytest.mark.parametrize("has_model", [True, False])
def test_a_run_that_lost_its_checkpoint_does_not_begin_anew(has_model, once, corpus, folder):
    (folder / "trainer.pt").unlink()
    if not has_model:
        (folder / "model.safetensors").unlink()
    before = (folder / "metrics.jsonl").read_text()
    with pytest.raises(ValueError, match="trainer.pt is missing: the run cannot be resumed"):
        open_session(once, corpus, folder)
    assert (folder / "metrics.jsonl").read_text() == before


def test_a_flipped_bit_of_a_checkpoint_is_noticed(folder):
    path = folder / "trainer.pt"
    data = path.read_bytes()
    for at in range(500, len(data), 1997):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        try:
            state = load_checkpoint(path)
        except ValueError as error:
            assert str(error).startswith(f"{path} must be a checkpoint of highrank")
        else:
            # A bit that fills up the space between two tensors.
            path.write_bytes(data)
            assert content_sha256(state) == content_sha256(load_checkpoint(path))


def test_a_configuration_in_the_checkpoint_that_is_none_is_refused(once, corpus, folder):
    state = load_checkpoint(folder / "trainer.pt")
    state["config"]["seed"] = "three"
    save_checkpoint(folder / "trainer.pt", state)
    with pytest.raises(ValueError, match=r"trainer.pt must have .*: seed must be a whole number"):
        open_session(once, corpus, folder)


def test_what_a_killed_save_left_is_gone_when_the_run_is_resumed(once, corpus, folder):
    for name in ("trainer.pt", "model.safetensors", "corpus.json"):
        (folder / f".{name}.new").write_text("half")
    open_session(once, corpus, folder)
    assert not list(folder.glob(".*"))


def test_a_full_disk_is_named_and_the_last_checkpoint_kept(config, corpus, tmp_path):
    run = open_session(config, corpus, tmp_path / "run")
    run.save()
    before = run.files.checkpoint_path.read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        for save in (run.save, lambda: save_model(run.folder / "model", save_state(run.model))):
            with pytest.raises(OSError, match=r"whole: --resume continues from it once there is"):
                save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert run.files.checkpoint_path.read_bytes() == before
    assert not list(tmp_path.rglob(".*.new"))


def test_a_full_disk_is_found_behind_errors_of_torch_and_safetensors(
    config, corpus, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_for_safetensors(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    run = open_session(config, corpus, tmp_path / "run")
    save = torch.save
    # torch writes to it as it would to a file.
    monkeypatch.setattr(torch, "save", lambda state, _: save(state, SimpleNamespace(write=full)))
    with pytest.raises(OSError, match=r"full: .*trainer.pt was not written. The run has not beg"):
        run.save()
    run.files.checkpoint_path.touch()
    monkeypatch.setattr(tensors, "save_file", full_for_safetensors)
    with pytest.raises(OSError, match=r"full: .*model was not written. The last checkpoint is wh"):
        save_model(run.folder / "model", save_state(run.model))
