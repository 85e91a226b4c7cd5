"""Which component said a word: the posterior over the components of a mixture.

    r_k = π_k · softmax(W h_k + b)[word] / p(word)

D hidden size, K components, E embedding size; `...` is any leading dimensions.
"""

import torch
from torch import Tensor

from highrank.heads.base import Head
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy


@torch.no_grad()
def log_responsibility(head: Head, hidden: Tensor, target: Tensor) -> Tensor:
    """log r (..., K), normalised. A head with one softmax, as MoC, has K = 1 here.

    Args:
        hidden: (..., D).
        target: (...), word ids.
    """
    log_weight, context = head.softmaxes(hidden)  # (..., K), (..., K, E)
    loss = mixture_cross_entropy(
        context.unsqueeze(-2),  # (..., K, 1, E)
        torch.zeros_like(log_weight).unsqueeze(-1),  # (..., K, 1)
        head.weight,
        target.unsqueeze(-1).expand(log_weight.shape),  # (..., K)
        bias=head.bias,
        reduction="none",
    )  # (..., K)
    return (log_weight - loss).log_softmax(-1)
