"""Constant components beside a mixture of softmaxes: word frequencies and learned topics.

    p(token) = g_0 · Σ_k π_k softmax(W h_k + b)[token] + Σ_j g_j · β_j[token]

β_1 is the unigram distribution of the training split, add-one smoothed, and is not trained; the
others are softmax(T_j), as the topics of Blei, Ng and Jordan (2003), Latent Dirichlet Allocation.
Only their weights g depend on the hidden state, so all of them cost J log-softmaxes over V per
batch, and J numbers per token. With a softmax beside them log p has no rank bound; P alone of the
constants would have rank J. J constant components, J - 1 of them learned, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from highrank.heads.extra import ExtendedMixture
from highrank.heads.mixture import Activation
from highrank.heads.mos import MixtureOfSoftmaxes
from highrank.ops.precision import at_least_float32


class ConstantComponents(ExtendedMixture):
    """K softmaxes, the unigram distribution and learned constant distributions.

    Args:
        hidden_size: D.
        vocab_size: V.
        num_components: K, the softmaxes; one is a softmax over tanh(Linear(hidden)).
        embedding_size: E.
        num_topics: how many constant distributions are learned.
        constant_weight: Σ_j g_j, the weight of all constant distributions at the start.
        token_counts: how often the training split has each token; all alike if None.
        activation: "tanh" or "identity", of the softmaxes' contexts.
        dropout: on the contexts.
        bias: whether each token has a bias.
        start_noise: start with nearly equal contexts, as in `MixtureOfSoftmaxes`.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    log_count: Tensor

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        num_topics: int = 8,
        constant_weight: float = 0.1,
        token_counts: Sequence[int] | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        start_noise: float | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        softmaxes = MixtureOfSoftmaxes(
            hidden_size,
            vocab_size,
            num_components,
            embedding_size,
            activation=activation,
            dropout=dropout,
            bias=bias,
            start_noise=start_noise,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        if num_topics < 0:
            raise ValueError(f"num_topics must be at least 0, got {num_topics}")
        super().__init__(softmaxes, num_extra=1 + num_topics, extra_weight=constant_weight)
        counts = torch.zeros(vocab_size) if token_counts is None else torch.tensor(token_counts)
        if counts.shape != (vocab_size,):
            raise ValueError(f"token_counts must be {vocab_size} numbers, got {len(counts)}")
        self.register_buffer("log_count", (counts.double() + 1).log().to(softmaxes.weight))  # (V,)
        self.topic = nn.Parameter(softmaxes.weight.new_empty(num_topics, vocab_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Everything starts as the unigram distribution, topics with noise of their own.

        So do the softmaxes, by their bias. Otherwise the constants would explain every token better
        at first and get all the gradient, and the softmaxes would never learn.
        """
        super().reset_parameters()
        with torch.no_grad():
            self.topic.normal_().add_(self.log_count)
            if self.bias is not None:
                self.bias.copy_(self.log_count.log_softmax(0))

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """New tokens have a count of 0."""
        self.softmaxes.resize(vocab_size)
        kept = min(vocab_size, self.vocab_size)
        count = self.log_count.new_zeros(vocab_size)
        topic = self.topic.new_empty(len(self.topic), vocab_size).normal_()
        count[:kept], topic[:, :kept] = self.log_count[:kept], self.topic[:, :kept]
        self.log_count, self.topic = count, nn.Parameter(topic, self.topic.requires_grad)
        self.vocab_size = vocab_size

    def extra(self, hidden: Tensor, **past: Any) -> tuple[()]:
        """Nothing that depends on the token."""
        return ()

    def log_constants(self) -> Tensor:
        """log β, (J, V)."""
        logits = torch.cat((self.log_count[None], self.topic))
        return logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))

    def extra_log_prob(self, extra: tuple[()], log_gate: Tensor) -> Tensor:
        return (log_gate[..., None] + self.log_constants()).logsumexp(-2)

    def extra_log_prob_of(self, extra: tuple[()], target: Tensor) -> Tensor:
        known = target.long().clamp(0, self.vocab_size - 1)
        return self.log_constants().T[known]  # (..., J)
