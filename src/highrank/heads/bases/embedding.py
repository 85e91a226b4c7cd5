"""Heads with an output embedding, a bias, and dropout on the contexts that meet them.

D hidden size, K contexts of a token, E embedding size, V vocabulary; `...` is any leading
dimensions.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from highrank.heads.bases.head import Head
from highrank.heads.bases.token_rows import EMBEDDING_RANGE, check_sizes
from highrank.ops.dropout import sequence_dropout

Activation = Literal["tanh", "identity"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


class EmbeddingOptions(TypedDict, total=False):
    """Keyword arguments of every head's constructor."""

    dropout: float
    batch_first: bool
    device: torch.device | str | None
    dtype: torch.dtype | None
    bias: bool


class ContextOptions(EmbeddingOptions, total=False):
    """Those of a head with contexts activation(Linear(hidden))."""

    activation: Activation


class EmbeddingHead(Head):
    """Base of heads whose logits are products of contexts with an output embedding.

    Args:
        hidden_size, vocab_size: D and V.
        embedding_size: E, the size of each context and of the output embedding.
        activation: "tanh" or "identity", of contexts that are made by a linear layer.
        dropout: on the contexts, one mask per sequence, independent per context.
        bias: whether each token has a bias.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int,
        *,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        check_sizes(embedding_size=embedding_size)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {list(ACTIVATIONS)}, got {activation!r}")
        self.embedding_size, self.dropout, self.batch_first = embedding_size, dropout, batch_first
        self.activation: Activation = activation
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(vocab_size, embedding_size, **options))
        self.bias = nn.Parameter(torch.empty(vocab_size, **options)) if bias else None

    def reset_parameters(self) -> None:
        """Embedding uniform in ±0.1 and bias 0, as in the code of MoS; linear layers as torch."""
        nn.init.uniform_(self.weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def resize(self, vocab_size: int) -> None:
        self._resize_embedding(vocab_size)

    def _activated(self, context: Tensor) -> Tensor:
        return ACTIVATIONS[self.activation](context)

    def _dropped(self, context: Tensor) -> Tensor:
        """Contexts (..., K, E) with dropout, in training: one mask per sequence."""
        if not self.training:
            return context
        return sequence_dropout(context, self.dropout, context.dim() - 2, self.batch_first)


def sizes_of_layers(
    layers: Sequence[int], sizes: Sequence[int] | None, hidden_size: int
) -> Sequence[int]:
    """The size of each layer's hidden states, which are `hidden_size` side by side."""
    if not layers or layers[-1] != -1:
        raise ValueError(f"layers must end with -1, the last one, got {tuple(layers)}")
    sizes = [hidden_size] if sizes is None and len(layers) == 1 else sizes
    if sizes is None or len(sizes) != len(layers) or sum(sizes) != hidden_size:
        raise ValueError(
            f"layer_sizes must be {len(layers)} numbers that add up to {hidden_size}, got {sizes}"
        )
    return sizes
