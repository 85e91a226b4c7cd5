"""Variants: what --heads may say, equal parameters, equal contexts, the control."""

from dataclasses import replace

import pytest
import torch

from highrank.build import build_model
from highrank.config import ModelConfig
from highrank.heads import COMPOSED, HEADS
from highrank.studies.compare.variant import TOLERANCE, Role, make_variants, parse_spec

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
        assert abs(variant.num_parameters - wanted) <= TOLERANCE * wanted
        assert model.backbone.embedding.weight.shape == (2_000, 32)
        assert variant.embedding_size == variant.config.model.embedding_size == 32
        is_tied = variant.spec == "tied-softmax"
        assert variant.context_size == (32 if is_tied else 16)
        assert (variant.role is Role.OTHER_CONTEXT) == is_tied
    assert len({variant.hidden_sizes[0] for variant in found}) > 3


def test_the_control_is_the_mixture_with_one_component(variants):
    control, mos = variants("mos", "softmax", "moc:1", components=(1, 3))
    assert control.is_control and control.config.head.options == {"embedding_size": 4}
    with torch.random.fork_rng():
        model = build_model(control.config, 20)
    assert model.head.num_components == 1 and model.head.latent is not None
    assert mos.num_components == 3 and mos.label == "MoS, K = 3"
    # Without equal parameters the layers stay.
    assert mos.hidden_sizes == control.hidden_sizes == (24, 16)


def test_an_untied_softmax_is_the_control_with_an_embedding_more_and_dropout(base):
    tied = replace(base, model=replace(base.model, tied=True))
    counts, heads = range(2_000, 0, -1), ("untied-softmax",)
    control, untied = make_variants(tied, heads, (), (32,), 2_000, counts, is_equal=True)
    assert untied.num_parameters == control.num_parameters + 2_000 * 32
    assert untied.hidden_sizes == control.hidden_sizes and untied.is_single
    assert untied.config.head.dropout > control.config.head.dropout
    assert not untied.config.model.tied and control.config.model.tied


def test_every_d_has_its_control_and_all_have_equal_parameters(variants):
    found = variants("mos", sizes=(16, 32), **LARGE)
    keys = [(variant.embedding_size, variant.is_control) for variant in found]
    assert keys == [(16, True), (16, False), (32, True), (32, False)]
    sizes = [variant.num_parameters for variant in found]
    assert max(sizes) - min(sizes) <= 2 * TOLERANCE * max(sizes)
    assert found[0].hidden_sizes[0] > found[2].hidden_sizes[0] == 24
    # Embeddings start in a range that suits their size.
    small, large = (one.config.model.options["embedding_range"] for one in found[::2])
    assert small == pytest.approx(2**0.5 * large)


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
