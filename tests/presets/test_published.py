"""Published numbers: those of the docstrings, found by configuration."""

import inspect
from dataclasses import replace

import pytest

from highrank.presets import PRESETS
from highrank.presets.published import PUBLISHED, published


@pytest.mark.parametrize("name", PUBLISHED)
def test_static_numbers_are_those_of_the_preset_s_docstring(name):
    text = inspect.getdoc(PRESETS[name])
    numbers = [
        str(value)
        for row in PUBLISHED[name]
        if row.method == "static"
        for value in (row.valid, row.test)
    ]
    places = [text.index(number) for number in numbers]
    assert places == sorted(places)


def test_a_run_is_its_preset_whatever_its_seed_and_the_path_of_its_corpus():
    config = replace(PRESETS["ptb-mos"](), seed=5, corpus="/somewhere/penn-treebank")
    assert published(config, "penn-treebank") == PUBLISHED["ptb-mos"]
    assert published(config, "wikitext-2") == ()


def test_a_changed_preset_has_no_published_number():
    config = PRESETS["ptb-mos"]()
    assert published(replace(config, activation_penalty=0.0), "penn-treebank") == ()
    assert published(PRESETS["small"](), "sotu") == ()
