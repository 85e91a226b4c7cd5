"""A run's folder: versions, weights, and the counts that it keeps."""

import json
import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from highrank import presets
from highrank.config import StageConfig
from highrank.data.corpus import MemoryCorpus, read_counts
from highrank.data.vocabulary import Vocabulary
from highrank.models.tensors import write_tensors
from highrank.run.configuration import config_from_json, config_to_json, is_run, read_config
from highrank.run.folder import prepare_folder
from highrank.run.loading import load
from highrank.training.session import open_session


def test_a_configuration_names_its_version_and_comes_back():
    config = presets.get("ptb-small-mos")
    content = json.loads(json.dumps(config_to_json(config)))
    assert (content["format"], content["version"]) == ("highrank run", 3)
    assert config_from_json(content) == config


@pytest.mark.parametrize("version", [0, 2, "3"])
def test_other_versions_are_refused(version):
    content = config_to_json(presets.get("small")) | {"version": version}
    with pytest.raises(ValueError, match="format 'highrank run' and version 3, got"):
        config_from_json(content)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, False),
        ("no JSON", False),
        ("[1]", False),
        ('{"model_type": "gpt2"}', False),
        ('{"format": "highrank run", "version": 1}', True),
    ],
)
def test_a_run_is_known_by_its_format(content, found, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert is_run(tmp_path) is found


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("runs/dialogue-1", ": did you mean runs/dialog-1?"),
        ("dialog-1", ": did you mean runs/dialog-1?"),
        ("runs/quite-another", ""),
        ("runs", ""),
    ],
)
def test_the_nearest_name_of_a_run_is_offered(name, guess, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "dialog-1").mkdir(parents=True)
    (tmp_path / "runs" / "dialog-1" / "config.json").touch()
    with pytest.raises(ValueError, match=re.escape(f"made, got {name}{guess}") + "$"):
        read_config(Path(name))


def test_a_run_keeps_the_counts_of_its_training_split(tmp_path):
    vocabulary = Vocabulary(("<eos>", "a", "b", "c"))
    corpus = MemoryCorpus(vocabulary, {"train": np.array([1, 2, 1, 0, 1])}, floor=0.0)
    prepare_folder(tmp_path / "run", presets.get("small"), corpus)
    assert read_counts(tmp_path / "run", 4) == [1, 3, 1, 0]
    assert read_config(tmp_path / "run") == presets.get("small")
    (tmp_path / "run" / "token_counts.json").unlink()
    with pytest.raises(ValueError, match="token_counts.json could not be read"):
        read_counts(tmp_path / "run", 4)


@pytest.fixture(scope="module")
def finished(config, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    config = replace(config, finetune=None, train=StageConfig(epochs=1))
    with closing(open_session(config, corpus, folder)) as session:
        session.go()
    return folder


@pytest.fixture
def trained(finished, tmp_path):
    """A run, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def change_config(folder, part, **values):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    (content[part] if part else content).update(values)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("model", {"embedding_size": 7}, "must be weights of .*config.json, got .* of shape"),
        (
            "model",
            {"options": {"hidden_sizes": [8, 7, 7]}},
            "got backbone.layers.2.* of shape none instead of",
        ),
        ("head", {"num_components": 1_024}, "must be weights of .*config.json, got head"),
        (
            "model",
            {"options": {"hidden_sizes": [2**31 - 1] * 100}},
            "must be weights of .*config.json, got",
        ),
        ("head", {"kind": "mop"}, "config.json must be the configuration of a run: head.kind"),
        (
            "head",
            {"dropout": "x"},
            "config.json must be .*: head.dropout must be a number, got 'x'",
        ),
        ("batch", {"options": {"bptt": None}}, "must be .*: batch.bptt must be a whole number"),
        (None, {"seed": -1}, "config.json must be .*: seed must be at least 0, got -1"),
        (None, {"train": 3}, "config.json must be .*: train must be an object, got 3"),
    ],
)
def test_a_configuration_of_another_model_is_refused(part, values, message, trained):
    change_config(trained, part, **values)
    with pytest.raises(ValueError, match=message):
        load(trained)


def test_weights_of_another_type_are_refused(trained):
    path = trained / "model.safetensors"
    write_tensors(path, {name: tensor.double() for name, tensor in load_file(path).items()})
    with pytest.raises(ValueError, match="in torch.float64 instead of torch.float32"):
        load(trained)


@pytest.mark.parametrize("counts", [[1, 2], "x", [-1] * 20, [1.5] * 20, {}])
def test_counts_of_another_vocabulary_are_refused(counts, trained):
    (trained / "token_counts.json").write_text(json.dumps(counts))
    with pytest.raises(ValueError, match="token_counts.json must be a list of counts: "):
        load(trained)
