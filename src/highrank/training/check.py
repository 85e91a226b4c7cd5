"""What is wrong with a configuration, found before anything is written."""

import math

from highrank.config import BatchConfig, RunConfig, StageConfig
from highrank.environment import prepare_bfloat16


def check_config(config: RunConfig, num_train: int, num_valid: int | None = None) -> None:
    """Raise ValueError for values that no run can have on texts of so many tokens."""
    _at_least(0, "seed", config.seed)
    _at_least(0.0, "activation-penalty", config.activation_penalty)
    _at_least(0.0, "temporal-penalty", config.temporal_penalty)
    # A training column has a row to read, one to predict, and the one the loop stops before.
    _check_columns("batch.batch-size", config.batch.batch_size, num_train, 3, "training")
    if num_valid is not None:
        _check_columns("valid-batch-size", config.valid_batch_size, num_valid, 2, "validation")
    _check_batch(config.batch)
    _check_stage("train", config.train)
    if config.finetune is not None:
        _check_stage("finetune", config.finetune)
    _check_growth(config)
    if config.precision == "bfloat16":
        prepare_bfloat16()


def _check_columns(name: str, value: int, num_tokens: int, num_rows: int, text: str) -> None:
    most = num_tokens // num_rows
    if not 1 <= value <= most:
        raise ValueError(
            f"{name} must be between 1 and {most:,} for a {text} text of {num_tokens:,} tokens, "
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
        raise ValueError(f"head.grow-at must be a share below 1 or a whole epoch, got {at}")
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
