"""What the two mixtures share: K contexts, and their weights from a linear prior without bias.

Which component said a word: the posterior over the components of a mixture.

    r_k = π_k · softmax(W h_k + b)[word] / p(word)

D hidden size, K components, E embedding size; `...` is any leading dimensions.
"""

import torch
from torch import Tensor, nn

from highrank.heads.base import Head, Mixture
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.ops.mixture_cross_entropy.arguments import check_targets
from highrank.ops.numerics import at_least_float32


class MixtureHead(Head):
    """π = softmax(P hidden) and h_k = activation(L_k hidden + c_k); a subclass mixes."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        activation: str = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            hidden_size,
            vocab_size,
            num_components=num_components,
            embedding_size=embedding_size,
            activation=activation,
            dropout=dropout,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.prior = nn.Linear(hidden_size, num_components, bias=False, device=device, dtype=dtype)

    def mixture(self, hidden: Tensor) -> Mixture:
        context = self._contexts(hidden)  # (..., K, E)
        logits = self.prior(hidden)  # (..., K)
        return Mixture(logits.log_softmax(-1, dtype=at_least_float32(logits.dtype)), context)


@torch.no_grad()
def log_responsibility(head: Head, hidden: Tensor, target: Tensor) -> Tensor:
    """log r (..., K), normalised. A head with one softmax, as MoC, has K = 1 here.

    Of a word that no component can say, the weights before it.

    Args:
        hidden: (..., D).
        target: (...), word ids.
    """
    if target.shape != hidden.shape[:-1]:
        raise ValueError(f"target must be {tuple(hidden.shape[:-1])}, got {tuple(target.shape)}")
    check_targets(target.reshape(-1), head.vocab_size)
    log_weight, context = head.softmaxes(hidden)  # (..., K), (..., K, E)
    loss = mixture_cross_entropy(
        context.unsqueeze(-2),  # (..., K, 1, E)
        torch.zeros_like(log_weight).unsqueeze(-1),  # (..., K, 1)
        head.weight,
        target.unsqueeze(-1).expand(log_weight.shape),  # (..., K)
        bias=head.bias,
        reduction="none",
    )  # (..., K)
    joint = log_weight - loss
    is_impossible = joint.isneginf().all(-1, keepdim=True)  # (..., 1)
    return torch.where(is_impossible, log_weight, joint).log_softmax(-1)
