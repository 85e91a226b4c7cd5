"""The text or preset of a command, before, between and after options."""

import pytest

from highrank.cli.compare import Options as CompareOptions
from highrank.cli.options import read_source
from highrank.cli.positional import take_positional
from highrank.cli.train import Options


@pytest.mark.parametrize(
    "before",
    [
        "",
        "--budget 5m",
        "--budget=5m",
        "--json",
        "--no-test --tensorboard",
        "--model.no-tied",
        "--model.hidden-sizes 8 7",
        "--head.kind adaptive-mos --head.no-bias",
        "--train.lr -1",
        "--train.anneal --out runs/x",
        "--head.kind softmax --head.cutoffs 1 2",
    ],
)
@pytest.mark.parametrize("after", ["", "--seed 3", "--json"])
def test_a_preset_may_stand_anywhere(before, after):
    words = [*before.split(), "ptb-mos", *after.split()]
    source = read_source(words, Options)
    assert source.name == source.preset == "ptb-mos"
    assert source.options == [*before.split(), *after.split()]


@pytest.mark.parametrize("words", ["", "--budget 5m", "--out runs/x", "--model.hidden-sizes 8 7"])
def test_values_of_options_are_no_preset(words):
    assert read_source(words.split(), Options).name is None


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--plan my.txt", "my.txt"),
        ("--components 2 4 my.txt --seeds 1", "my.txt"),
        ("my.txt --heads mos moc", "my.txt"),
        ("--heads mos moc --seeds 1", None),
        ("--budget 5m --equal tokens", None),
    ],
)
def test_a_comparison_s_text_may_stand_anywhere(words, name):
    found, rest = take_positional(words.split(), CompareOptions)
    assert found == name and rest == [word for word in words.split() if word != name]
