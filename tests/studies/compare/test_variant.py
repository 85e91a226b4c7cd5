"""Variants: what --heads may say, equal parameters, equal contexts, the control."""

from dataclasses import replace

import pytest
import torch

from highrank.build import build_model
from highrank.config import ModelConfig
from highrank.heads import COMPOSED, HEADS
from highrank.presets.backbones import RATES
from highrank.studies.compare.networks import INNER, STEP, TOLERANCE, hidden_sizes
from highrank.studies.compare.presets import Comparison, base_config
from highrank.studies.compare.variant import Role, make_variants, parse_spec

# As in practice.
LARGE = {"vocab_size": 2_000, "is_equal": True}


def test_parameters_are_equal_within_one_percent_and_contexts_are_equal(variants):
    heads = (
        "moc",
        "mos",
        "adaptive-softmax",
        "adaptive-mos",
        "mos:2+pointer",
        "adaptive-softmax+pointer",
    )
    found = variants(*heads, "tied-softmax", "repeat", components=(2, 8), sizes=(32,), **LARGE)
    wanted = found[0].num_parameters
    for variant in found:
        with torch.device("meta"):
            model = build_model(variant.config, 2_000, token_counts=range(2_000, 0, -1))
        assert variant.num_parameters == sum(p.numel() for p in model.parameters())
        assert abs(variant.num_parameters - wanted) <= 0.01 * wanted
        assert model.backbone.embedding.weight.shape == (2_000, 32)
        assert variant.embedding_size == variant.config.model.embedding_size == 32
        is_tied = variant.spec == "tied-softmax"
        assert variant.context_size == (32 if is_tied else 16)
        assert (variant.role is Role.OTHER_CONTEXT) == is_tied
    assert len({variant.layers for variant in found}) > 3


def test_the_control_is_the_mixture_with_one_component(variants):
    control, mos = variants("mos", "softmax", "moc:1", components=(1, 3))
    assert control.is_control and control.config.head.options == {"embedding_size": 4}
    with torch.random.fork_rng():
        model = build_model(control.config, 20)
    assert model.head.num_components == 1 and model.head.latent is not None
    assert mos.num_components == 3 and mos.label == "MoS, K = 3"
    # Without equal parameters the layers stay.
    assert mos.layers == control.layers == "24-16"


def test_an_untied_softmax_is_the_control_with_an_embedding_more_and_dropout(base):
    tied = replace(base, model=replace(base.model, tied=True))
    counts, heads = range(2_000, 0, -1), ("untied-softmax",)
    control, untied = make_variants(tied, heads, (), (32,), 2_000, counts, is_equal=True)
    assert untied.num_parameters == control.num_parameters + 2_000 * 32
    assert untied.layers == control.layers and untied.is_single
    assert untied.config.head.dropout > control.config.head.dropout
    assert not untied.config.model.tied and control.config.model.tied


def test_every_d_has_its_control_and_all_have_equal_parameters(variants):
    found = variants("mos", sizes=(16, 32), **LARGE)
    keys = [(variant.embedding_size, variant.is_control) for variant in found]
    assert keys == [(16, True), (16, False), (32, True), (32, False)]
    sizes = [variant.num_parameters for variant in found]
    assert max(sizes) - min(sizes) <= 2 * 0.01 * max(sizes)
    assert hidden_sizes(found[0].config)[0] > hidden_sizes(found[2].config)[0] == 24
    # Embeddings start in a range that suits their size.
    small, large = (one.config.model.options["embedding_range"] for one in found[::2])
    assert small == pytest.approx(2**0.5 * large)


def test_every_network_has_all_heads_a_control_and_equal_parameters():
    base = base_config(Comparison(corpus="sotu"), 1_000_000)
    heads, kinds = ("mos:9", "adaptive-softmax", "tied-softmax"), ("awd-lstm", *INNER)
    counts = range(5_000, 0, -1)
    found = make_variants(base, heads, (), (32,), 5_000, counts, is_equal=True, models=kinds)
    of_network = {kind: [one for one in found if one.family == (kind, 32)] for kind in kinds}
    # The context of a Transformer is as wide as its layers: it has no tied softmax.
    assert [len(some) for some in of_network.values()] == [4, 3, 3]
    wanted = found[0].num_parameters
    for kind, some in of_network.items():
        assert all(abs(v.num_parameters - wanted) <= TOLERANCE[kind] * wanted for v in some)
    assert len({one.name for one in found}) == len({one.label for one in found}) == len(found)
    for kind, inner in INNER.items():
        control, mos, adaptive = of_network[kind]
        assert control.is_control and control.label.endswith(": control, K = 1")
        assert control.context_size == mos.context_size == adaptive.context_size
        assert control.context_size % STEP == 0
        assert mos.config.model.options[inner] < control.config.model.options[inner]
        assert mos.config.train == control.config.train
        assert mos.config.train.lr == RATES[kind] * found[0].config.train.lr


def test_a_head_that_is_too_large_is_named(variants, base):
    with pytest.raises(ValueError, match="mos must fit into .* parameters within 1 %, got"):
        variants("mos", components=(500,), is_equal=True)
    one = replace(base, model=ModelConfig(options={"hidden_sizes": (8,)}))
    with pytest.raises(ValueError, match="hidden-sizes must be at least two for equal parameters"):
        make_variants(one, ("mos",), (2,), (4,), 20, [1] * 20, is_equal=True)


def test_heads_are_read_with_components_and_options():
    spec = parse_spec("adaptive-mos:8,start-noise=0.2,frequent=auto")
    assert (spec.kind, spec.num_components) == ("adaptive-mos", 8)
    assert spec.options == {"start_noise": 0.2, "frequent": "auto"}
    assert parse_spec("mos+pointer").num_components is None
    spec = parse_spec("mos:5+pointer+constant,num_states=7,objective=own")
    assert (spec.kind, spec.num_components) == ("mos+pointer+constant", 5)
    assert spec.options == {"num_states": 7, "objective": "own"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sofmax",
            "heads must be tied-.*, untied-.*, repeat or .* one of softmax, moc, .*, got 'sofmax'",
        ),
        ("mos:many", "heads must be KIND or KIND:K with a whole number K, got 'mos:many'"),
        ("mos:0", "KIND:K"),
        ("partition:3", "partition must come without a number of components"),
        ("mos,noise", "options of heads must be name=value, got 'noise'"),
        ("mos,noise=1", "head.options must be arguments of MixtureOfSoftmaxes"),
        ("repeat,bias=1", "repeat must come without options"),
    ],
)
def test_what_is_no_head_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_spec(text)


def test_components_are_for_mixtures_and_a_pointer_has_one_softmax(variants):
    heads = ("mos", "mos+pointer", "mos:2+pointer", "adaptive-softmax")
    found = variants(*heads, components=(2, 3))
    assert [variant.label for variant in found] == [
        "control, K = 1",
        "MoS, K = 2",
        "MoS, K = 3",
        "MoS + pointer, K = 1",
        "MoS + pointer, K = 2",
        "Adaptive softmax",
    ]
    assert len({variant.name for variant in found}) == len(found)


@pytest.mark.parametrize("kind", [*HEADS, *COMPOSED])
def test_every_head_of_the_list_can_be_compared(kind, variants):
    found = variants(kind, components=(8,) if kind == "doc" else (2,))
    assert found[-1].config.head.kind == kind


def test_a_repeated_control_has_other_seeds(variants):
    control, again = variants("repeat")
    assert control.config == again.config
    assert control.run_config(1).seed == 1 and again.run_config(1).seed == 1_001
