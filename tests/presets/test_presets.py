"""Presets: the sizes that the papers print, and the JSON that runs keep."""

import json
from dataclasses import asdict

import pytest
import torch

from highrank import presets
from highrank.build import build_model, config_from_json


@pytest.mark.parametrize(
    ("name", "vocab_size", "expected"),
    [
        ("ptb-mos", 10_000, 21_500_620),
        ("ptb-moc", 10_000, 21_500_620),
        ("ptb-softmax", 10_000, 24_221_600),
        ("wt2-mos", 33_278, 34_909_528),
        ("wt2-moc", 33_278, 34_909_528),
        ("wt2-softmax", 33_278, 33_556_078),
    ],
)
def test_parameters_are_as_many_as_published(name, vocab_size, expected):
    with torch.device("meta"):
        model = build_model(presets.get(name), vocab_size=vocab_size)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize(
    "names",
    [("ptb-small-softmax", "ptb-small-mos", "ptb-small-grown"), ("small", "small-softmax")],
)
def test_small_runs_are_equal_in_parameters_and_context_size(names):
    configs = [presets.get(name) for name in names]
    with torch.device("meta"):
        models = [build_model(config, vocab_size=10_000) for config in configs]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    assert max(sizes) < 1.001 * min(sizes)
    assert len({model.head.embedding_size for model in models}) == 1


@pytest.mark.parametrize("name", presets.PRESETS)
def test_configurations_come_back_from_json(name):
    config = presets.get(name)
    assert config_from_json(json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_says_what_it_is(name):
    assert presets.PRESETS[name].__doc__


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"one of small, small-softmax, .*, got 'ptb'"):
        presets.get("ptb")


def test_unknown_fields_of_a_configuration_are_refused():
    values = asdict(presets.get("small")) | {"learning_rate": 3}
    with pytest.raises(ValueError, match="known fields only, got \\['learning_rate'\\]"):
        config_from_json(values)
