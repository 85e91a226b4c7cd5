"""Fit an output layer to a language whose true distribution is known.

Each context has a free vector of its own, so that nothing but the output layer limits the fit. The
exact cross-entropy over all contexts is minimised, without sampling. C contexts, D hidden size, V
vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from highrank.data import Language
from highrank.heads import Head, MixtureOfContexts, MixtureOfSoftmaxes, Softmax

# Size of the free vectors; a head with a larger context gets larger ones.
HIDDEN_SIZE = 64


class Fitted(NamedTuple):
    log_prob: Tensor
    """(C, V), float64."""
    num_parameters: int
    rank_bound: int | None


def fit_head(
    language: Language,
    kind: str,
    context_size: int,
    num_components: int,
    seed: int,
    num_steps: int = 1000,
) -> Fitted:
    """Adam with a cosine schedule on the exact cross-entropy, over all contexts at once."""
    torch.manual_seed(seed)
    head = make_head(kind, context_size, num_components, language.vocab_size)
    hidden = nn.Parameter(torch.randn(language.num_contexts, head.hidden_size))  # (C, D)
    joint = torch.from_numpy(language.stationary[:, None] * language.prob).float()  # (C, V)
    optimizer = torch.optim.Adam([hidden, *head.parameters()], lr=0.15)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = -(joint * head.log_prob(hidden)).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        log_prob = head.double().log_prob(hidden.double())  # (C, V)
    return Fitted(log_prob, count_parameters(head, language.num_contexts), head.rank_bound)


def make_head(
    kind: str, context_size: int, num_components: int, vocab_size: int, device: str | None = None
) -> Head:
    """A softmax, MoC or MoS with linear contexts."""
    sizes = (max(HIDDEN_SIZE, context_size), vocab_size)
    if kind == "softmax":
        return Softmax(*sizes, context_size, activation="identity", device=device)
    mixture = {"moc": MixtureOfContexts, "mos": MixtureOfSoftmaxes}[kind]
    return mixture(*sizes, num_components, context_size, activation="identity", device=device)


def count_parameters(head: Head, num_contexts: int) -> int:
    """All trained numbers: the head's, and the free vector of each context."""
    return num_contexts * head.hidden_size + sum(p.numel() for p in head.parameters())
