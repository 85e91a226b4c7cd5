"""Which component said a word: the posterior over the components of a mixture.

    r_k = π_k · softmax(W h_k + b)[word] / p(word)

D hidden size, K components, E embedding size; `...` is any leading dimensions.
"""

import torch
from torch import Tensor

from highrank.heads.base import Head
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.ops.mixture_cross_entropy.arguments import check_targets


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
