"""From an upgraded model back to a plain one, where its mixture is exactly one softmax.

    Σ_k π_k softmax(W h_k + b) = softmax(W h + b)   if all h_k are the same h = L hidden + c

which is a linear layer with the weight W L and the bias W c + b. So it is with one component, and
with several that do not differ: a mixture that was made without noise and has not been trained.
K components, D hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from highrank.heads import Head
from highrank.heads.low_rank_mos import LowRankMixture
from highrank.heads.mos import MixtureOfSoftmaxes
from highrank.heads.softmax import Softmax
from highrank.integrations.pretrained.output import HeadOutputLayer
from highrank.integrations.pretrained.transplant import transplanted


@torch.no_grad()
def to_softmax(model: Any) -> Any:
    """The plain model of transformers that predicts the same; an error if there is none.

    Its body is that of `model`, which should no longer be used.
    """
    from highrank.integrations.pretrained.classes import base_class

    output = model.get_output_embeddings()
    if not isinstance(output, HeadOutputLayer):
        raise ValueError(f"model must be an upgraded one, got {type(model).__name__}")
    weight, bias = _linear(output)
    plain = base_class(model)
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], len(weight), bias=bias is not None)
    layer.weight, layer.bias = weight, bias  # type: ignore[assignment]
    is_tied = weight is model.get_input_embeddings().weight
    fields = {**model.config.output_head["replaced"], "tie_word_embeddings": is_tied}
    return transplanted(model, plain, fields, layer)


def _linear(output: HeadOutputLayer) -> tuple[nn.Parameter, nn.Parameter | None]:
    """The weight and the bias of the linear layer that the head is, before the scale of logits."""
    matrix, shift = _map_of(output.head)
    weight, bias = output.weight, output.bias
    total = None if bias is None else bias.double()  # (V,)
    if shift is not None and shift.any():
        if total is None:
            raise ValueError("contexts must have no bias where the layer had none, got one")
        total = total + output.weight.double() @ shift.double()
    if matrix is not None and not torch.equal(matrix, torch.eye(len(matrix)).to(matrix)):
        weight = nn.Parameter((weight.double() @ matrix.double()).to(weight.dtype))
    if total is not None and bias is not None:
        bias = nn.Parameter((total / output.scale).to(weight.dtype))
    return weight, bias


def _map_of(head: Head) -> tuple[Tensor | None, Tensor | None]:
    """L (D, D) and c (D,) of the only context; None for the identity and for zero."""
    is_state = isinstance(head, Softmax | LowRankMixture) and head.latent is None
    if is_state and not (isinstance(head, LowRankMixture) and head.up.any()):
        return None, None
    if isinstance(head, MixtureOfSoftmaxes) and head.activation == "identity":
        assert head.latent is not None
        matrices = head.latent.weight.unflatten(0, (head.num_components, -1))  # (K, D, D)
        shifts = head.latent.bias.unflatten(0, (head.num_components, -1))  # (K, D)
        if (matrices == matrices[0]).all() and (shifts == shifts[0]).all():
            return matrices[0], shifts[0]
    raise ValueError(
        "a head must be exactly one softmax of a linear context to be restored, got "
        f"{type(head).__name__} with {head.num_components} components that differ"
    )
