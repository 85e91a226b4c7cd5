"""Configurations that no run can have are refused with the option's name."""

from dataclasses import fields, replace

import pytest

from highrank.build import build_model, check_run
from highrank.config import HeadConfig, with_options
from highrank.training.session import open_session

NAN = float("nan")


@pytest.mark.parametrize(
    ("part", "field", "value", "message"),
    [
        (None, "seed", -1, "seed must be at least 0, got -1"),
        (None, "valid_batch_size", 0, "valid-batch-size must be at least 1, got 0"),
        (
            None,
            "valid_batch_size",
            101,
            "valid-batch-size must be between 1 and 100 for",
        ),
        ("batch", "batch_size", 501, "batch.batch-size must be between 1 and 500 for a training"),
        ("batch", "batch_size", 0, "batch.batch-size must be at least 1, got 0"),
        ("batch", "micro_batch_size", 0, "batch.micro-batch-size must be at least 1, got 0"),
        ("batch", "bptt", 0, "batch.bptt must be at least 1, got 0"),
        ("batch", "bptt_std", -1.0, "batch.bptt-std must be at least 0 and finite, got -1"),
        ("batch", "bptt_std", 1e308, "batch.bptt-std must be at most 1e+38, got 1e+308"),
        ("model", "activation_penalty", -1.0, "model.activation-penalty must be at least 0, got"),
        ("model", "embedding_range", 1e308, "model.embedding-range must be at most 1e+38"),
        (
            "model",
            "kind",
            "mlp",
            "model.kind must be one of awd-lstm, transformer, gated-cnn, got 'mlp'",
        ),
        (
            "batch",
            "kind",
            "bags",
            "batch.kind must be one of streams, blocks, sentences, got 'bags'",
        ),
        ("train", "steps", 0, "train.steps must be at least 1, got 0"),
        ("train", "tokens", 2**63, "train.tokens must be at most"),
        ("train", "lr", -1.0, "train.lr must be a positive number, got -1.0"),
        ("train", "lr", NAN, "train.lr must be a finite number, got nan"),
        ("train", "clip", 0.0, "train.clip must be a positive number, got 0.0"),
        ("train", "weight_decay", -1e39, "train.weight-decay must be at most 1e+38 in magnitude"),
        ("train", "warmup_steps", -1, "train.warmup-steps must be at least 0, got -1"),
        ("finetune", "warmup_steps", 5, "finetune.warmup-steps must be 0"),
        ("train", "epochs", 0, "train.epochs must be at least 1, got 0"),
        ("train", "switch_epoch", 0, "train.switch-epoch must be at least 1, got 0"),
        ("finetune", "stop_after", -1, "finetune.stop-after must be at least 0, got -1"),
        (None, "seed", 2**64, "seed must be at most 18,446,744,073,709,551,615, got 1844"),
        ("model", "hidden_sizes", (), "model.hidden-sizes must be 1 to 100 sizes, got 0"),
        ("model", "hidden_sizes", (3, 0), "model.hidden-sizes must be at least 1, got 0"),
        ("model", "embedding_size", 10**40, "model.embedding-size must be at most"),
        ("model", "weight_dropout", 1.0, "model.weight-dropout must be at least 0 and below 1"),
        ("model", "embedding_range", 0.0, "model.embedding-range must be positive, got 0.0"),
        ("head", "num_components", 0, "head.num-components must be at least 1, got 0"),
        ("head", "dropout", 1.0, "head.dropout must be at least 0 and below 1, got 1.0"),
        ("head", "num_components", 100_000, "head.num-components must be at most 1,024, got"),
    ],
)
def test_impossible_values_are_named(part, field, value, message, config, corpus):
    with pytest.raises(ValueError) as caught:
        check_run(changed(config, part, field, value), corpus)
    assert str(caught.value).startswith(message)


def changed(config, part, field, value):
    """The configuration with another value of a field, or of an option of a kind."""
    if part is None:
        return replace(config, **{field: value})
    one = getattr(config, part)
    is_option = field not in {known.name for known in fields(one)}
    new = with_options(one, **{field: value}) if is_option else replace(one, **{field: value})
    return replace(config, **{part: new})


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("model", "hidden_sizes", (10**9, 10**9)),
        ("model", "hidden_sizes", (2**31 - 1,) * 100),
        ("model", "embedding_size", 10**8),
    ],
)
def test_a_model_that_cannot_fit_is_refused_before_it_is_made(part, field, value, config, corpus):
    with pytest.raises(ValueError, match="must fit into memory, got"):
        check_run(changed(config, part, field, value), corpus)


def test_options_of_a_head_have_the_types_of_its_arguments(config, corpus):
    wrong = replace(config, head=replace(config.head, options={"bias": "no"}))
    with pytest.raises(ValueError, match="head.bias must be true or false, got 'no'"):
        check_run(wrong, corpus)


def test_the_largest_batches_train(config, corpus, tmp_path):
    """The limits are those of the loop, not tighter."""
    stage = replace(config.train, epochs=1)
    batch = replace(config.batch, batch_size=500)
    widest = replace(config, batch=batch, valid_batch_size=100, train=stage, finetune=None)
    assert open_session(widest, corpus, tmp_path / "run").go().reason == "finished"


def test_a_refused_configuration_leaves_no_folder(config, corpus, tmp_path):
    with pytest.raises(ValueError, match="valid-batch-size"):
        open_session(replace(config, valid_batch_size=0), corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("precision", "calls"), [("float32", []), ("bfloat16", ["prepared"])])
def test_only_bfloat16_is_tried_on_this_cpu(config, corpus, monkeypatch, precision, calls):
    found = []
    monkeypatch.setattr("highrank.build.prepare_bfloat16", lambda: found.append("prepared"))
    check_run(replace(config, precision=precision), corpus)
    assert found == calls


def test_parameters_are_counted_with_the_frequencies_of_the_corpus(config, corpus):
    head = HeadConfig(kind="adaptive-softmax", num_components=1, options={"div_value": 2.0})
    config = replace(config, head=head)
    model = build_model(config, len(corpus.vocabulary), corpus.token_counts)
    want = sum(p.numel() for p in model.parameters())
    assert check_run(config, corpus).num_parameters == want
