"""Constant components: word frequencies and learned topics.

    q_1 = the unigram distribution of the training split,   q_j = softmax(T_j)

The first is add-one smoothed and is not trained; the others are topics, as those of Blei, Ng and
Jordan (2003), Latent Dirichlet Allocation. Only their weights depend on the hidden state, so all of
them cost J log-softmaxes over V per batch, and J numbers per token. With a softmax beside them
log p has no rank bound; P alone of the constants would have rank J. J constant components, J - 1 of
them learned, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from highrank.heads.bases.component import Component
from highrank.heads.bases.frequency import log_frequencies
from highrank.heads.bases.mixture import log_weights


class Constant(Component):
    """The unigram distribution and learned constant distributions.

    The bias of the base should start at the unigram distribution, too (`start_at_unigram`). If it
    does not, the constants explain every token better at first and get all the gradient.

    Args:
        hidden_size, vocab_size: D and V.
        num_topics: how many constant distributions are learned.
        constant_weight: Σ_j g_j, the weight of all constant distributions at the start.
        token_counts: how often the training split has each token; all alike if None.
    """

    name = "constant"
    log_frequency: Tensor

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        num_topics: int = 8,
        constant_weight: float = 0.1,
        token_counts: Sequence[int] | None = None,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        if num_topics < 0:
            raise ValueError(f"num_topics must be at least 0, got {num_topics}")
        self.num_terms, self.start_weight = 1 + num_topics, constant_weight
        counts = [0] * vocab_size if token_counts is None else token_counts
        self.register_buffer("log_frequency", log_frequencies(counts, vocab_size))  # (V,)
        self.topic = nn.Parameter(torch.empty(num_topics, vocab_size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Topics start as the unigram distribution, with noise of their own."""
        self.topic.normal_().add_(self.log_frequency)

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """New tokens are as rare as the rarest."""
        kept, known = min(vocab_size, self.vocab_size), self.log_frequency
        frequency = known.new_full((vocab_size,), known.min().item())
        topic = self.topic.new_empty(len(self.topic), vocab_size).normal_().add_(frequency)
        frequency[:kept], topic[:, :kept] = known[:kept], self.topic[:, :kept]
        self.log_frequency, self.topic = frequency, nn.Parameter(topic, self.topic.requires_grad)
        self.vocab_size = vocab_size

    def log_constants(self) -> Tensor:
        """log q, (J, V)."""
        return log_weights(torch.cat((self.log_frequency[None], self.topic)))

    def log_prob(self, inputs: Any, log_gate: Tensor) -> Tensor:
        return (log_gate[..., None] + self.log_constants()).logsumexp(-2)

    def log_prob_of(self, inputs: Any, target: Tensor) -> Tensor:
        known = target.long().clamp(0, self.vocab_size - 1)
        return self.log_constants().T[known]  # (..., J)
