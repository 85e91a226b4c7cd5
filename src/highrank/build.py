"""From a configuration to objects: its values are checked, its head is found, its model built."""

import inspect
import math
import reprlib
from collections.abc import Sequence
from typing import Any

import torch

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.environment import memory_bytes, prepare_bfloat16
from highrank.files import checked
from highrank.heads import Head, head_arguments, head_class
from highrank.heads.bases.adaptive import AdaptiveHead
from highrank.models import AWDLSTM, LanguageModel
from highrank.models.adaptive_embedding import AdaptiveEmbedding

# Arguments of a head that do not come from its options.
GIVEN = (
    "hidden_size",
    "vocab_size",
    "layer_sizes",
    "token_counts",
    "batch_first",
    "device",
    "dtype",
)
# Far beyond what anybody trains: what is larger is a mistake, and is not tried.
LARGEST, MOST_LAYERS, LARGEST_SEED = 2**31 - 1, 100, 2**64 - 1
# A run has its weights, their gradients and the best weights at least.
COPIES = 3


def build_model(
    config: RunConfig,
    vocab_size: int,
    token_counts: Sequence[int] | None = None,
) -> LanguageModel:
    """The model of a configuration, freshly initialised.

    Args:
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
    head = build_head(config, vocab_size, token_counts)
    weight = getattr(head, "weight", None)
    size = model.embedding_size if weight is None else weight.shape[1]
    if model.tied and size != model.embedding_size:
        raise ValueError(
            f"the last hidden size must be the embedding size for a tied {config.head.kind}, got "
            f"{size} and {model.embedding_size}: change one, set --model.no-tied, or take a head "
            "with a context of its own, as --head.kind mos --head.num-components 1 has"
        )
    if model.tied and isinstance(head, AdaptiveHead) and head.is_banded:
        backbone.embedding = AdaptiveEmbedding(
            model.embedding_size, head.order, head.sizes, head.widths, model.embedding_range
        )
    return LanguageModel(backbone, head, tied=model.tied)


def build_head(
    config: RunConfig,
    vocab_size: int,
    token_counts: Sequence[int] | None = None,
) -> Head:
    """The head alone; it is given what its constructor has an argument for."""
    head, arguments = config.head, head_arguments(config.head.kind)
    values: dict[str, Any] = {
        "num_components": head.num_components,
        "dropout": head.dropout,
        "activation": head.activation,
        "token_counts": token_counts,
    }
    values["layer_sizes"] = sizes = _layer_sizes(config)
    values = {name: value for name, value in values.items() if name in arguments}
    size = arguments.get("embedding_size")
    if size is not None and size.default is inspect.Parameter.empty:
        values["embedding_size"] = config.model.embedding_size
    values |= checked_options(head)
    return head_class(head.kind)(sum(sizes), vocab_size, **values)


def _layer_sizes(config: RunConfig) -> tuple[int, ...]:
    """The sizes of the hidden states that the head asks for."""
    layers = config.head.options.get("layers", head_class(config.head.kind).layers)
    sizes = (config.model.embedding_size, *config.model.hidden_sizes)
    for layer in layers:
        if not -len(sizes) <= layer < len(sizes):
            raise ValueError(
                f"head.layers must be from {-len(sizes)} (the embeddings) to -1, got {layer}"
            )
    return tuple(sizes[layer] for layer in layers)


def checked_options(head: HeadConfig) -> dict[str, Any]:
    """The further options of a head, each an argument of its constructor, of its type."""
    arguments = head_arguments(head.kind)
    known = [name for name in arguments if name not in GIVEN]
    for name in head.options:
        if name not in known:
            raise ValueError(
                f"head.options must be arguments of {head.kind} ({', '.join(known)}), got {name}"
            )
    return {
        name: checked(arguments[name].annotation, value, f"head.options.{name}")
        for name, value in head.options.items()
    }


def check_size(config: RunConfig, vocab_size: int) -> None:
    """Raise ValueError for a model that this machine cannot hold, before anything is allocated."""
    try:
        with torch.device("meta"):
            model = build_model(config, vocab_size)
        size = sum(p.numel() * p.element_size() for p in model.parameters())
    except (RuntimeError, TypeError, OverflowError):
        # Numbers of which torch cannot even make a shape.
        size = None
    memory = memory_bytes()
    if size is None or (memory is not None and COPIES * size > memory):
        found = "sizes beyond all" if size is None else f"{COPIES * size / 1e9:,.0f} GB"
        raise ValueError(
            "a model's weights, their gradients and its best weights must fit into memory, got "
            f"{found}: lower model.hidden-sizes, model.embedding-size or head.num-components"
        )


def check_config(config: RunConfig, num_train: int, num_valid: int) -> None:
    """Raise ValueError for values that no run can have on splits of so many tokens."""
    check_values(config)
    # A training stream has a row to read, one to predict, and the one the loop stops before.
    check_streams("batch.batch-size", config.batch.batch_size, num_train, 3, "training")
    check_streams("valid-batch-size", config.valid_batch_size, num_valid, 2, "validation")
    if config.precision == "bfloat16":
        prepare_bfloat16()


def check_values(config: RunConfig) -> None:
    """Raise ValueError for values that no run can have, whatever its corpus."""
    _at_least(0, "seed", config.seed, LARGEST_SEED)
    _at_least(0.0, "activation-penalty", config.activation_penalty)
    _at_least(0.0, "temporal-penalty", config.temporal_penalty)
    _check_model(config.model)
    if config.validate_every is not None:
        _at_least(1, "validate-every", config.validate_every)
    _at_least(1, "head.num-components", config.head.num_components)
    _fraction("head.dropout", config.head.dropout)
    _check_batch(config.batch)
    _check_stage("train", config.train)
    if config.finetune is not None:
        _check_stage("finetune", config.finetune)
        if config.finetune.warmup_steps:
            raise ValueError(
                "finetune.warmup-steps must be 0, as only the first stage warms up, got "
                f"{config.finetune.warmup_steps}"
            )
    checked_options(config.head)


def check_streams(name: str, value: int, num_tokens: int, num_rows: int, split: str) -> None:
    most = num_tokens // num_rows
    if not 1 <= value <= most:
        raise ValueError(
            f"{name} must be between 1 and {most:,} for a {split} split of {num_tokens:,} tokens, "
            f"got {value}"
        )


def _check_model(model: ModelConfig) -> None:
    _at_least(1, "model.embedding-size", model.embedding_size)
    if not 1 <= len(model.hidden_sizes) <= MOST_LAYERS:
        found = len(model.hidden_sizes)
        raise ValueError(f"model.hidden-sizes must be 1 to {MOST_LAYERS} sizes, got {found}")
    for size in model.hidden_sizes:
        _at_least(1, "model.hidden-sizes", size)
    for name in ("embedding", "input", "hidden", "output", "weight"):
        _fraction(f"model.{name}-dropout", getattr(model, f"{name}_dropout"))
    _positive("model.embedding-range", model.embedding_range)


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
    _at_least(0, f"{name}.warmup-steps", stage.warmup_steps)
    _at_least(1, f"{name}.epochs", stage.epochs)
    if stage.average_power is not None:
        _at_least(0.0, f"{name}.average-power", stage.average_power)
    for option, least in (("switch_after", 0), ("switch_epoch", 1), ("stop_after", 0)):
        value = getattr(stage, option)
        if value is not None:
            _at_least(least, f"{name}.{option.replace('_', '-')}", value)


def _at_least(least: float, name: str, value: float, most: int = LARGEST) -> None:
    """For a whole number there is a largest, too."""
    if isinstance(value, int) and value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {reprlib.repr(value)}")
    if not (value >= least and math.isfinite(value)):
        raise ValueError(f"{name} must be at least {least:g}, got {value}")


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive number, got {value}")
