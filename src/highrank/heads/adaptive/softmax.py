"""Adaptive softmax: Grave, Joulin, Cissé, Grangier and Jégou (2017), arXiv 1609.04309.

    p(frequent token) = softmax(W₀ h₀ + b₀)[token]
    p(token of tail i) = softmax(W₀ h₀ + b₀)[class i] · softmax(W_i h_i + b_i)[token]

The first softmax is over the R frequent tokens and one class per tail, h_i are projections of the
hidden state. A tail is computed only where the target is in it, so that the loss costs about a
third of a softmax on text. `nn.AdaptiveLogSoftmaxWithLoss` is the case embedding_size=None.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from highrank.heads.adaptive.frequency import cheapest, costs
from highrank.heads.adaptive.head import AdaptiveHead
from highrank.heads.mixture import Activation
from highrank.ops.precision import at_least_float32


class AdaptiveSoftmax(AdaptiveHead):
    """One softmax over the frequent tokens, and one over each tail of rarer tokens.

    Args:
        hidden_size: D.
        vocab_size: V.
        embedding_size: E, for contexts activation(Linear(hidden)), one for each softmax; None takes
            the hidden state itself for the frequent tokens and Linear(hidden) for the tails.
        frequent: R, how many tokens are in the first softmax; auto takes the R with the least cost
            for the counts of the training split.
        cutoffs: ranks at which further tails begin; without any, there is one tail.
        div_value: each tail has contexts and embeddings this much narrower than the band before it.
        token_counts: how often the training split has each token; None takes the ids to be sorted
            by frequency.
        activation: "tanh" or "identity".
        dropout: on the contexts, one mask per sequence.
        bias: whether each token and each class has a bias.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int | None,
        *,
        frequent: int | Literal["auto"] = "auto",
        cutoffs: tuple[int, ...] = (),
        div_value: float = 1.0,
        token_counts: Sequence[int] | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        cost = costs(token_counts, vocab_size, 1, 1 / div_value)
        edges = all_cutoffs(cheapest(cost) if frequent == "auto" else frequent, cutoffs, vocab_size)
        super().__init__(
            hidden_size,
            vocab_size,
            components=(1,) * (len(edges) + 1),
            embedding_size=embedding_size,
            cutoffs=edges,
            div_value=div_value,
            token_counts=token_counts,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.reset_parameters()

    @property
    def rank_bound(self) -> int | None:
        """All contexts together, a constant for the bias, and one normaliser per softmax."""
        return self._context_span(range(len(self.sizes))) + len(self.sizes)

    def log_weight(self, hidden: Tensor) -> Tensor:
        return hidden.new_zeros(*hidden.shape[:-1], 1, dtype=at_least_float32(hidden.dtype))


def all_cutoffs(frequent: int, cutoffs: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Where each tail begins; without any if all tokens are frequent."""
    if not 1 <= frequent <= vocab_size:
        raise ValueError(f"frequent must be from 1 to {vocab_size}, or auto, got {frequent}")
    return (frequent, *cutoffs) if frequent < vocab_size or cutoffs else ()
