"""A model's parameters: borrow them and give them back, save them and fill them in."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from highrank.models.language_model import LanguageModel


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Give the model its parameters back on exit, whatever happened inside."""
    saved = [p.detach().clone() for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in zip(model.parameters(), saved, strict=True):
                p.copy_(old)


@contextmanager
def replaced(model: nn.Module, values: Iterable[Tensor]) -> Iterator[None]:
    """Run with other values in the parameters, such as an average; on exit, those from before."""
    with restored(model):
        with torch.no_grad():
            for p, value in zip(model.parameters(), values, strict=True):
                p.copy_(value)
        yield


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Turn off everything random in a model, in training mode too; on exit, as it was before."""
    saved = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in saved:
            module.training = training


def save_state(model: LanguageModel) -> dict[str, Tensor]:
    """The model's tensors, tied ones once."""
    tied = tied_names(model)
    return {
        name: tensor.detach().contiguous()
        for name, tensor in model.state_dict().items()
        if name not in tied
    }


def load_state(model: LanguageModel, state: Mapping[str, Tensor]) -> None:
    """Fill a model with what `save_state` gave."""
    tied = {name: state[first] for name, first in tied_names(model).items()}
    model.load_state_dict({**state, **tied})


def tied_names(model: LanguageModel) -> dict[str, str]:
    """The further names of parameters that have several, each with the first one."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied[name] = first[id(parameter)]
    return tied
