"""`HEADS`, the only list of heads: read without torch, resolved on use, one line for a new head."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import tyro

from highrank import heads
from highrank.build import build_head, build_model, canonical
from highrank.cli.options import plain_config, with_own_options
from highrank.config import HeadConfig, ModelConfig, RunConfig
from highrank.heads import HEADS, Softmax, head_arguments, head_class

MODEL = ModelConfig(embedding_size=6, options={"hidden_sizes": (8, 6)})
SIZES = ("hidden_size", "vocab_size", "num_components", "embedding_size")
CONFIG = RunConfig(corpus="none", model=MODEL, head=HeadConfig(kind="scaled", dropout=0.0))


class Scaled(Softmax):
    """A head of the test's own: logits times a scale, biased by how often a token occurs."""

    def __init__(
        self, hidden_size, vocab_size, *, scale: float = 2.0, token_counts=None, dropout=0.0
    ):
        super().__init__(hidden_size, vocab_size, dropout=dropout)
        self.scale, self.token_counts = scale, token_counts

    def mixture(self, hidden):
        log_weight, context = super().mixture(hidden)
        return type(super().mixture(hidden))(log_weight, self.scale * context)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(sys.modules, "made_in_the_tests", sys.modules[__name__])
    monkeypatch.setitem(HEADS, "scaled", "made_in_the_tests:Scaled")


def test_every_head_is_in_the_listing_of_its_package():
    assert {path.split(":")[1] for path in HEADS.values()} | {"Head", "MixtureHead"} <= set(
        dir(heads)
    )


def test_reading_the_list_loads_no_torch():
    code = "import sys; from highrank.heads import HEADS; assert 'torch' not in sys.modules, HEADS"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["softmax", "moc", "mos"])
def test_every_head_of_the_list_is_there(kind):
    assert head_class(kind).__name__ in HEADS[kind]
    assert {"hidden_size", "vocab_size", "dropout"} <= set(head_arguments(kind))


def test_every_head_has_a_title_of_its_own():
    titles = [head_class(kind).title for kind in HEADS if kind != "scaled"]
    assert all(titles) and len(set(titles)) == len(titles)


def test_arguments_that_are_handed_on_are_known_with_their_types_and_defaults():
    found = head_arguments("sparse-mos")
    assert [*found][:6] == [*SIZES, "num_active", "balance"]
    assert found["dropout"].annotation is float and found["dropout"].default == 0.0
    assert found["start_noise"].default is None and found["bias"].default is True
    assert {"batch_first", "device"} <= set(head_arguments("mos+pointer"))
    assert "mix_first_tail" not in head_arguments("adaptive-softmax+pointer")


@pytest.mark.parametrize(
    "kind, wrong",
    [
        ("mos", {"dropuot": 0.1}),
        ("mos+pointer", {"dropuot": 0.1}),
        ("softmax", {"num_components": 3}),
        ("adaptive-softmax", {"mix_first_tail": True}),
    ],
)
def test_an_argument_that_the_head_does_not_have_is_named(kind, wrong):
    sizes = {name: 6 for name in SIZES if name in head_arguments(kind)}
    with pytest.raises(TypeError, match=f"argument '{next(iter(wrong))}'"):
        head_class(kind)(**sizes, **wrong)


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="head.kind must be one of softmax, moc, mos, .* 'sofmax'"):
        build_head(replace(CONFIG, head=HeadConfig(kind="sofmax")), 11)


def test_a_new_head_is_built_with_its_own_options_and_the_counts():
    config = replace(CONFIG, head=replace(CONFIG.head, options={"scale": 3.0}))
    model = build_model(config, 11, token_counts=list(range(11)))
    assert isinstance(model.head, Scaled) and model.head.scale == 3.0
    assert model.head.token_counts == list(range(11))
    hidden = torch.randn(4, 6)
    plain = torch.nn.functional.linear(3.0 * hidden, model.head.weight, model.head.bias)
    torch.testing.assert_close(model.eval().head(hidden), plain.log_softmax(-1))


def test_an_option_that_the_head_does_not_have_is_named():
    config = replace(CONFIG, head=replace(CONFIG.head, options={"sclae": 3.0}))
    message = r"head.options must be arguments of Scaled\w* \(scale, dropout\), got sclae"
    with pytest.raises(ValueError, match=message):
        canonical(config)


def test_its_options_are_options_of_the_command():
    """As `highrank train --head.kind scaled --head.scale 3` parses them."""
    config = replace(CONFIG, head=HeadConfig(kind="mos", dropout=0.0))
    arguments = ["--head.kind", "scaled", "--head.scale", "3"]
    default = with_own_options(config, arguments)
    parsed = tyro.cli(RunConfig, default=default, args=arguments)
    want = HeadConfig(kind="scaled", dropout=0.0, options={"scale": 3.0})
    assert plain_config(parsed).head == want
    assert plain_config(with_own_options(replace(config, head=want), [])).head == want


@pytest.mark.parametrize(
    "argument", ["--head.num-components", "--head.num-components=2", "--head.activation"]
)
def test_an_option_that_means_nothing_to_the_head_is_refused(argument):
    arguments = ["--head.kind", "scaled", argument, "3"]
    with pytest.raises(ValueError, match="must be left out for --head.kind scaled, got one"):
        with_own_options(CONFIG, arguments)
