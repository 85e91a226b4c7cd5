"""A run's folder: versions, renamed keys, and the counts that it keeps."""

import dataclasses
import json

import numpy as np
import pytest

from highrank import presets
from highrank.data.vocabulary import Vocabulary
from highrank.run import config_from_json, config_to_json, prepare_folder, read_config, read_counts

# What config.json of version 1 called them.
OLD = {
    "bptt": "window",
    "bptt_std": "window_deviation",
    "bptt_max_delta": "window_extra",
    "bptt_half_probability": "short_share",
}


def version_1(config):
    content = dataclasses.asdict(config)
    content["batch"] = {OLD.get(name, name): value for name, value in content["batch"].items()}
    content["valid_columns"] = content.pop("valid_batch_size")
    del content["head"]["options"]
    return content


@pytest.mark.parametrize("name", ["small", "ptb-mos", "ptb-softmax"])
def test_a_configuration_of_version_1_is_the_same_run(name):
    config = presets.get(name)
    content = version_1(config)
    assert config_from_json(content) == config
    assert content == version_1(config)


def test_a_configuration_names_its_version_and_comes_back():
    config = presets.get("ptb-small-grown")
    content = json.loads(json.dumps(config_to_json(config)))
    assert (content["format"], content["version"]) == ("highrank run", 2)
    assert config_from_json(content) == config


@pytest.mark.parametrize("version", [0, 3, "2"])
def test_other_versions_are_refused(version):
    content = config_to_json(presets.get("small")) | {"version": version}
    with pytest.raises(ValueError, match=r"config.json must have version 1 to 2, got"):
        config_from_json(content)


def test_a_run_keeps_the_counts_of_its_training_split(tmp_path):
    vocabulary = Vocabulary(("<eos>", "a", "b", "c"))
    train = np.array([1, 2, 1, 0, 1], dtype=np.uint16)
    prepare_folder(tmp_path / "run", presets.get("small"), vocabulary, train)
    assert read_counts(tmp_path / "run") == [1, 3, 1, 0]
    assert read_config(tmp_path / "run") == presets.get("small")
    (tmp_path / "run" / "token_counts.json").unlink()
    assert read_counts(tmp_path / "run") is None
