"""From a configuration to objects, and from a run's folder to its trained model."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import torch

from highrank.config import RunConfig
from highrank.heads import Head, MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.models import AWDLSTM, LanguageModel

MIXTURES = {"moc": MixtureOfContexts, "mos": MixtureOfSoftmaxes}


def build_model(
    config: RunConfig, vocab_size: int, num_components: int | None = None
) -> LanguageModel:
    """The model of a configuration, freshly initialised.

    Args:
        num_components: K, if it is not the configuration's: a head that is to grow starts with 1.
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
    return LanguageModel(backbone, build_head(config, vocab_size, num_components), tied=model.tied)


def build_head(config: RunConfig, vocab_size: int, num_components: int | None = None) -> Head:
    head, hidden_size = config.head, config.model.hidden_sizes[-1]
    if head.kind == "softmax":
        if config.model.tied and config.model.embedding_size != hidden_size:
            raise ValueError(
                "the last hidden size must be the embedding size for a tied softmax, got "
                f"{hidden_size} and {config.model.embedding_size}: change one, set "
                "--model.no-tied, or take --head.kind mos --head.num-components 1"
            )
        return Softmax(hidden_size, vocab_size, dropout=head.dropout)
    return MIXTURES[head.kind](
        hidden_size,
        vocab_size,
        num_components or head.num_components,
        config.model.embedding_size,
        activation=head.activation,
        dropout=head.dropout,
    )


def save_state(model: LanguageModel) -> dict[str, torch.Tensor]:
    """The model's tensors, a tied embedding once."""
    state = model.state_dict()
    if model.head.weight is model.backbone.embedding.weight:
        del state["head.weight"]
    return {name: tensor.detach().contiguous() for name, tensor in state.items()}


def load_state(model: LanguageModel, state: Mapping[str, torch.Tensor]) -> None:
    """Fill a model with what `save_state` gave."""
    if model.head.weight is model.backbone.embedding.weight:
        state = {**state, "head.weight": state["backbone.embedding.weight"]}
    model.load_state_dict(state)


def num_components_of(config: RunConfig, state: Mapping[str, torch.Tensor]) -> int:
    """K of saved weights: a head that was to grow may not have grown yet."""
    if config.head.kind == "softmax":
        return 1
    return len(state["head.prior.weight"])


def config_from_json(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `dataclasses.asdict` turned into JSON."""
    config = _dataclass_from(RunConfig, values)
    assert isinstance(config, RunConfig)
    return config


def _dataclass_from(kind: Any, values: Mapping[str, Any]) -> Any:
    hints, names = get_type_hints(kind), {f.name for f in dataclasses.fields(kind)}
    if unknown := set(values) - names:
        raise ValueError(f"config.json must have known fields only, got {sorted(unknown)}")
    found = {}
    for name, value in values.items():
        hint = hints[name]
        kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        nested = next((k for k in kinds if dataclasses.is_dataclass(k)), None)
        if nested is not None and value is not None:
            value = _dataclass_from(nested, value)
        found[name] = tuple(value) if isinstance(value, list) else value
    return kind(**found)
