"""Presets: the sizes and perplexities that the papers print, and the JSON that runs keep."""

import inspect
import json
from dataclasses import replace
from itertools import permutations

import pytest
import torch

from highrank import presets
from highrank.build import build_model, canonical
from highrank.config import with_options
from highrank.heads import COMPOSED, HEADS, Pointer, head_class
from highrank.presets import PUBLISHED, published
from highrank.presets.backbones import SMALL_SIZES, with_network
from highrank.presets.dropout import OPTIONS
from highrank.presets.small import fitted
from highrank.run.configuration import config_from_json, config_to_json


@pytest.mark.parametrize(
    ("name", "vocab_size", "expected"),
    [
        ("ptb-mos", 10_000, 21_500_620),
        ("ptb-doc", 10_000, 22_849_120),
        ("ptb-moc", 10_000, 21_500_620),
        ("ptb-softmax", 10_000, 24_221_600),
        # The published 24,040,400 and the last norm of a pre-norm network.
        ("ptb-transformer-softmax", 10_000, 24_040_400 + 2 * 380),
        ("wt2-mos", 33_278, 34_909_528),
        ("wt2-doc", 33_278, 36_639_278),
        ("wt2-moc", 33_278, 34_909_528),
        ("wt2-softmax", 33_278, 33_556_078),
        # Not published: blocks and embeddings are of other shapes than those of GCNN-14.
        ("wt103-gcnn", 267_735, 124_822_874),
        ("text8-softmax", 27, 8_424_475),
        # Printed as 8.45 M.
        ("text8-mos", 27, 8_448_517),
        ("lm1b-softmax", 100_000, 119_293_600),
        ("lm1b-mos", 100_000, 112_850_364),
        # Not published: the rare words have a projection of their own.
        ("lm1b-adaptive-softmax", 100_000, 121_393_825),
        ("lm1b-adaptive-mos", 100_000, 113_773_765),
        ("lm1b-adaptive-softmax+pointer+ngram", 100_000, 121_526_951),
    ],
)
def test_parameters_are_as_many_as_published(name, vocab_size, expected):
    with torch.device("meta"):
        model = build_model(presets.get(name), vocab_size=vocab_size)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize(
    "names",
    [
        ("ptb-small-softmax", "ptb-small-mos"),
        ("small", "small-mos", "small-softmax"),
        ("small", "small-transformer", "small-gated-cnn"),
    ],
)
def test_small_runs_are_equal_in_parameters_and_context_size(names):
    configs = [presets.get(name) for name in names]
    with torch.device("meta"):
        models = [build_model(config, vocab_size=10_000) for config in configs]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    assert max(sizes) < 1.001 * min(sizes)
    assert len({model.head.embedding_size for model in models}) == 1


def test_small_networks_can_be_exchanged():
    for first, second in permutations(SMALL_SIZES, 2):
        begun = with_network(presets.get("small"), first)
        assert with_network(begun, second) == with_network(presets.get("small"), second)
    linear = {
        kind: with_network(presets.get("small-mos"), kind).head.activation for kind in SMALL_SIZES
    }
    assert linear == {"awd-lstm": "tanh", "transformer": "identity", "gated-cnn": "tanh"}
    for name in ("ptb-mos", "ptb-transformer-mos"):
        assert with_network(presets.get(name), "gated-cnn") == presets.get(name)


def test_every_head_has_a_small_preset():
    kinds = [name.removeprefix("ptb-small-") for name in presets.PRESETS]
    assert {*HEADS, *COMPOSED} <= set(kinds)
    for kind in (*HEADS, *COMPOSED):
        config = presets.get(f"ptb-small-{kind}")
        with torch.device("meta"):
            head = build_model(config, vocab_size=10_000).head
        assert isinstance(head, head_class(kind))
        assert head.num_components == config.head.num_components


@pytest.mark.parametrize("name", presets.PRESETS)
def test_configurations_come_back_from_json(name):
    config = presets.get(name)
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_has_a_description(name):
    assert presets.PRESETS[name].__doc__


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"one of small, small-mos, .*, got 'ptb'"):
        presets.get("ptb")


def test_unknown_fields_of_a_configuration_are_refused():
    values = config_to_json(presets.get("small")) | {"learning_rate": 3}
    with pytest.raises(ValueError, match="known fields only, got 'learning_rate'"):
        config_from_json(values)


def test_presets_of_published_numbers_start_at_zeros_as_the_papers_did():
    names = {*PUBLISHED, "lm1b-softmax"}
    assert {presets.get(name).head.start_bias for name in names} == {"zeros"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_static_numbers_are_those_of_the_preset_s_docstring(name):
    text = inspect.getdoc(presets.PRESETS[name])
    numbers = [
        str(value)
        for row in PUBLISHED[name]
        if row.method == "static"
        for value in (row.valid, row.test)
    ]
    places = [text.index(number) for number in numbers]
    assert places == sorted(places)


def test_a_run_is_its_preset_whatever_its_seed_and_the_path_of_its_corpus():
    config = replace(presets.PRESETS["ptb-mos"](), seed=5, corpus="/somewhere/penn-treebank")
    assert published(config, "penn-treebank") == PUBLISHED["ptb-mos"]
    assert published(config, "wikitext-2") == ()


def test_a_changed_preset_has_no_published_number():
    config = presets.PRESETS["ptb-mos"]()
    other = replace(config, model=with_options(config.model, activation_penalty=1.0))
    assert published(other, "penn-treebank") == ()
    assert published(presets.PRESETS["small"](), "sotu") == ()


@pytest.mark.parametrize(
    ("num_train", "epochs", "batch_size"),
    [(1_000, 20, 8), (100_000, 20, 20), (400_000, 10, 20), (2_122_080, 2, 20), (10**9, 1, 20)],
)
def test_a_small_run_sees_as_many_tokens_of_any_text(num_train, epochs, batch_size):
    config = fitted(presets.get("small"), num_train)
    assert config.train.epochs == epochs
    small = presets.get("small")
    assert config.batch.batch_size == batch_size
    assert replace(config.head, dropout=small.head.dropout) == small.head


@pytest.mark.parametrize("num_train", [1_000, 2_122_080])
def test_a_run_with_a_budget_is_ended_by_the_clock_or_when_it_learns_nothing_more(num_train):
    small = presets.get("small")
    found = fitted(small, num_train, has_budget=True).train
    assert (found.epochs, found.stop_after) == (1000, 10)
    given = fitted(small, num_train, {"train.epochs"}, has_budget=True).train
    assert (given.epochs, given.stop_after) == (2, None)
    assert fitted(small, num_train, {"train.stop-after"}, has_budget=True).train.stop_after is None


def test_a_short_run_has_a_short_warm_up():
    warmups = [fitted(presets.get("small"), n).train.warmup_steps for n in (1_000, 10**6)]
    # 20 epochs of 1,000 tokens are 72 steps.
    assert warmups == [15, 100]


@pytest.mark.parametrize("limit", [{"tokens": 50_000}, {"steps": 70}])
def test_a_run_that_is_cut_short_has_the_dropout_and_warm_up_of_what_it_reads(limit):
    small = presets.get("small")
    whole = fitted(small, 200_000)
    cut = fitted(replace(small, train=replace(small.train, **limit)), 200_000)
    # A quarter of an epoch in 72 or 70 steps, instead of 20 epochs.
    assert cut.model.options["output_dropout"] == 0 < whole.model.options["output_dropout"]
    assert cut.train.warmup_steps < 20 < whole.train.warmup_steps


def test_what_the_user_has_chosen_stays():
    given = {"train.epochs", "batch.batch-size", "valid-batch-size", "train.warmup-steps"}
    given |= set(OPTIONS)
    assert fitted(presets.get("small"), 1_000, given) == presets.get("small")


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_state_no_defaults_of_the_classes(name):
    """So that a run that repeats one has an equal configuration."""
    assert canonical(presets.get(name)) == presets.get(name)


@pytest.mark.parametrize("name", ["small", "small-transformer", "small-gated-cnn"])
def test_a_fresh_pointer_looks_at_all_states(name):
    torch.manual_seed(0)
    model = build_model(presets.get(name), vocab_size=300, token_counts=[1] * 300).eval()
    tokens = torch.randint(300, (450, 1))
    with torch.no_grad():
        hidden = model.backbone(tokens, model.backbone.initial_state(1)).hidden
        (pointer,) = (part for part in model.modules() if isinstance(part, Pointer))
        log_p = pointer.inputs(hidden, tokens, None).log_attention[-20:]
    assert (-(log_p.exp() * log_p).sum(-1)).exp().min() > 0.7 * pointer.num_states
