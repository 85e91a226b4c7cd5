"""From a configuration to objects: its values are checked, its head is found, its model built."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

from highrank.config import BatchConfig, HeadConfig, RunConfig, StageConfig
from highrank.environment import prepare_bfloat16
from highrank.heads import Head, head_arguments, head_class
from highrank.models import AWDLSTM, LanguageModel

# Arguments of a head that do not come from its options.
GIVEN = ("hidden_size", "vocab_size", "token_counts", "batch_first", "device", "dtype")


def build_model(
    config: RunConfig,
    vocab_size: int,
    num_components: int | None = None,
    token_counts: Sequence[int] | None = None,
) -> LanguageModel:
    """The model of a configuration, freshly initialised.

    Args:
        num_components: K, if it is not the configuration's: a head that is to grow starts with 1.
        token_counts: how often the training split has each token, for heads that want it.
    """
    model = config.model
    backbone = AWDLSTM(
        vocab_size,
        model.embedding_size,
        model.hidden_sizes,
        embedding_dropout=model.embedding_dropout,
        input_dropout=model.input_dropout,
        hidden_dropout=model.hidden_dropout,
        output_dropout=model.output_dropout,
        weight_dropout=model.weight_dropout,
        embedding_range=model.embedding_range,
    )
    head = build_head(config, vocab_size, num_components, token_counts)
    size = getattr(head, "embedding_size", model.embedding_size)
    if model.tied and size != model.embedding_size:
        raise ValueError(
            f"the last hidden size must be the embedding size for a tied {config.head.kind}, got "
            f"{size} and {model.embedding_size}: change one, set --model.no-tied, or take "
            "--head.kind mos --head.num-components 1"
        )
    return LanguageModel(backbone, head, tied=model.tied)


def build_head(
    config: RunConfig,
    vocab_size: int,
    num_components: int | None = None,
    token_counts: Sequence[int] | None = None,
) -> Head:
    """The head alone; it is given what its constructor has an argument for."""
    head, arguments = config.head, head_arguments(config.head.kind)
    values: dict[str, Any] = {
        "num_components": num_components or head.num_components,
        "dropout": head.dropout,
        "activation": head.activation,
        "token_counts": token_counts,
    }
    values = {name: value for name, value in values.items() if name in arguments}
    size = arguments.get("embedding_size")
    if size is not None and size.default is inspect.Parameter.empty:
        values["embedding_size"] = config.model.embedding_size
    values |= checked_options(head)
    kind = head_class(head.kind)
    sizes = (config.model.embedding_size, *config.model.hidden_sizes)
    layers = values.get("layers", kind.layers)
    return kind(sum(sizes[layer] for layer in layers), vocab_size, **values)


def checked_options(head: HeadConfig) -> dict[str, Any]:
    """The further options of a head, each an argument of its constructor."""
    known = [name for name in head_arguments(head.kind) if name not in GIVEN]
    for name in head.options:
        if name not in known:
            raise ValueError(
                f"head.options must be arguments of {head.kind} ({', '.join(known)}), got {name}"
            )
    return dict(head.options)


def check_config(config: RunConfig, num_train: int, num_valid: int) -> None:
    """Raise ValueError for values that no run can have on splits of so many tokens."""
    _at_least(0, "seed", config.seed)
    _at_least(0.0, "activation-penalty", config.activation_penalty)
    _at_least(0.0, "temporal-penalty", config.temporal_penalty)
    # A training stream has a row to read, one to predict, and the one the loop stops before.
    _check_streams("batch.batch-size", config.batch.batch_size, num_train, 3, "training")
    _check_streams("valid-batch-size", config.valid_batch_size, num_valid, 2, "validation")
    _check_batch(config.batch)
    _check_stage("train", config.train)
    if config.finetune is not None:
        _check_stage("finetune", config.finetune)
    checked_options(config.head)
    _check_growth(config)
    if config.precision == "bfloat16":
        prepare_bfloat16()


def _check_streams(name: str, value: int, num_tokens: int, num_rows: int, split: str) -> None:
    most = num_tokens // num_rows
    if not 1 <= value <= most:
        raise ValueError(
            f"{name} must be between 1 and {most:,} for a {split} split of {num_tokens:,} tokens, "
            f"got {value}"
        )


def _check_batch(batch: BatchConfig) -> None:
    if batch.micro_batch_size is not None:
        _at_least(1, "batch.micro-batch-size", batch.micro_batch_size)
    _at_least(1, "batch.bptt", batch.bptt)
    _at_least(0.0, "batch.bptt-std", batch.bptt_std)
    _at_least(0, "batch.bptt-max-delta", batch.bptt_max_delta)
    if not 0 <= batch.bptt_half_probability <= 1:
        found = batch.bptt_half_probability
        raise ValueError(f"batch.bptt-half-probability must be between 0 and 1, got {found}")


def _check_stage(name: str, stage: StageConfig) -> None:
    _positive(f"{name}.lr", stage.lr)
    _positive(f"{name}.clip", stage.clip)
    _at_least(0.0, f"{name}.weight-decay", stage.weight_decay)
    _at_least(1, f"{name}.epochs", stage.epochs)
    for option, least in (("switch_after", 0), ("switch_epoch", 1), ("stop_after", 0)):
        value = getattr(stage, option)
        if value is not None:
            _at_least(least, f"{name}.{option.replace('_', '-')}", value)


def _check_growth(config: RunConfig) -> None:
    at = config.head.grow_at
    if at is None:
        return
    if config.head.kind != "mos":
        raise ValueError(
            f"head.kind must be mos for head.grow-at, got {config.head.kind}: add "
            "--head.grow-at None"
        )
    if not (0 <= at < 1 or (at >= 1 and float(at).is_integer())):
        raise ValueError(f"head.grow-at must be a fraction below 1 or a whole epoch, got {at}")
    if at > config.train.epochs and config.finetune is None:
        raise ValueError(
            f"head.grow-at must be at most train.epochs, {config.train.epochs}, got {at:g}"
        )


def _at_least(least: float, name: str, value: float) -> None:
    if not (value >= least and math.isfinite(value)):
        raise ValueError(f"{name} must be at least {least:g}, got {value}")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive number, got {value}")
