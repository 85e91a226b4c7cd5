"""Configurations that no run can have are refused with the option's name."""

from dataclasses import replace

import pytest

from highrank.build import check_config, check_size
from highrank.training.loop import Run

NAN = float("nan")


@pytest.mark.parametrize(
    ("part", "field", "value", "message"),
    [
        (None, "seed", -1, "seed must be at least 0, got -1"),
        (None, "activation_penalty", -1.0, "activation-penalty must be at least 0, got -1"),
        (None, "temporal_penalty", NAN, "temporal-penalty must be at least 0, got nan"),
        (
            None,
            "valid_batch_size",
            0,
            "valid-batch-size must be between 1 and 100 for",
        ),
        (
            None,
            "valid_batch_size",
            101,
            "valid-batch-size must be between 1 and 100 for",
        ),
        ("batch", "batch_size", 501, "batch.batch-size must be between 1 and 500 for a training"),
        ("batch", "batch_size", 0, "batch.batch-size must be between 1 and 500 for a training"),
        ("batch", "micro_batch_size", 0, "batch.micro-batch-size must be at least 1, got 0"),
        ("batch", "bptt", 0, "batch.bptt must be at least 1, got 0"),
        ("batch", "bptt_std", -1.0, "batch.bptt-std must be at least 0, got -1"),
        ("batch", "bptt_max_delta", -1, "batch.bptt-max-delta must be at least 0, got -1"),
        (
            "batch",
            "bptt_half_probability",
            1.5,
            "batch.bptt-half-probability must be between",
        ),
        ("train", "lr", -1.0, "train.lr must be a positive number, got -1.0"),
        ("train", "lr", NAN, "train.lr must be a positive number, got nan"),
        ("train", "clip", 0.0, "train.clip must be a positive number, got 0.0"),
        ("train", "weight_decay", NAN, "train.weight-decay must be at least 0, got nan"),
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
        ("model", "embedding_range", 0.0, "model.embedding-range must be a positive number"),
        ("head", "num_components", 0, "head.num-components must be at least 1, got 0"),
        ("head", "dropout", NAN, "head.dropout must be at least 0 and below 1, got nan"),
    ],
)
def test_impossible_values_are_named(part, field, value, message, config):
    if part is None:
        wrong = replace(config, **{field: value})
    else:
        wrong = replace(config, **{part: replace(getattr(config, part), **{field: value})})
    with pytest.raises(ValueError) as caught:
        check_config(wrong, num_train=1500, num_valid=200)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("model", "hidden_sizes", (10**9, 10**9)),
        ("model", "hidden_sizes", (2**31 - 1,) * 100),
        ("model", "embedding_size", 10**8),
        ("head", "num_components", 100_000_000),
        ("head", "num_components", 2**31 - 1),
    ],
)
def test_a_model_that_cannot_fit_is_refused_before_it_is_made(part, field, value, config):
    wrong = replace(config, **{part: replace(getattr(config, part), **{field: value})})
    with pytest.raises(ValueError, match="must fit into memory, got"):
        check_size(wrong, vocab_size=20)


def test_options_of_a_head_have_the_types_of_its_arguments(config):
    wrong = replace(config, head=replace(config.head, options={"bias": "no"}))
    with pytest.raises(ValueError, match="head.options.bias must be true or false, got 'no'"):
        check_config(wrong, num_train=1500, num_valid=200)


def test_the_largest_batches_train(config, corpus, tmp_path):
    """The limits are those of the loop, not tighter."""
    stage = replace(config.train, epochs=1)
    batch = replace(config.batch, batch_size=500)
    widest = replace(config, batch=batch, valid_batch_size=100, train=stage, finetune=None)
    assert Run(widest, corpus, tmp_path / "run").go().reason == "finished"


def test_a_refused_configuration_leaves_no_folder(config, corpus, tmp_path):
    with pytest.raises(ValueError, match="valid-batch-size"):
        Run(replace(config, valid_batch_size=0), corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("precision", "calls"), [("float32", []), ("bfloat16", ["prepared"])])
def test_only_bfloat16_is_tried_on_this_cpu(config, monkeypatch, precision, calls):
    found = []
    monkeypatch.setattr("highrank.build.prepare_bfloat16", lambda: found.append("prepared"))
    check_config(replace(config, precision=precision), 1500, 200)
    assert found == calls
