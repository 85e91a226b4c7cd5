"""Multi-sense softmax: frequent tokens have several output vectors, one softmax over all of them.

Miao, Zhou, Zhao, Shi and Li (2019), Kernelized Bayesian Softmax for Text Generation (KerBS),
without its kernels and without its reallocation of senses:

    p(token) = Σ_{j a sense of token} exp(w_j · h + b_j) / Z,  h = tanh(L hidden + c)

Further senses are the token's first vector plus an offset, so that they move with a tied one.
The mirror image of a mixture of softmaxes: several vectors a token and one context, instead of
several contexts and one vector. The logit of a token is the log-sum-exp of its senses', so no
bound on the rank of log p follows from E. It costs 1 + (S - 1)·R/V of a softmax. D hidden size,
E embedding size, R tokens with S senses each, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.heads.base import Head, check_sizes
from highrank.heads.mixture import Activation
from highrank.heads.softmax import Softmax
from highrank.ops.numerics import at_least_float32


class MultiSenseSoftmax(Head):
    """One softmax over the senses of all tokens.

    Args:
        hidden_size: D.
        vocab_size: V.
        embedding_size: E, the size of the context and of the output vectors.
        num_senses: S, the senses of a frequent token; all others have one.
        num_frequent: R, how many of the most frequent tokens have several; all if V is less.
        sense_noise: standard deviation of each number of the further senses from the first one's
            at the start.
        token_counts: how often the training split has each token; the first R if None.
        activation: "tanh" or "identity".
        dropout: on the context, one mask per sequence.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    frequent: Tensor

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int,
        *,
        num_senses: int = 4,
        num_frequent: int = 1000,
        sense_noise: float = 0.1,
        token_counts: Sequence[int] | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, vocab_size)
        check_sizes(num_senses=num_senses, num_frequent=num_frequent)
        self.softmax = Softmax(
            hidden_size,
            vocab_size,
            embedding_size,
            activation=activation,
            dropout=dropout,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.embedding_size, self.num_senses = embedding_size, num_senses
        self.sense_noise = sense_noise
        counts = torch.zeros(vocab_size) if token_counts is None else torch.tensor(token_counts)
        order = counts.argsort(descending=True, stable=True)[:num_frequent].sort().values
        weight = self.softmax.weight
        self.register_buffer("frequent", order.to(weight.device))  # (R,)
        shape = (num_senses - 1, len(order), embedding_size)
        self.offset = nn.Parameter(weight.new_empty(shape))
        self.sense_bias = nn.Parameter(weight.new_empty(shape[:2]))
        self.reset_parameters()

    @property
    def rank_bound(self) -> int | None:
        """That of one softmax if S = 1; no bound is known otherwise."""
        return self.softmax.rank_bound if self.num_senses == 1 else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Senses near the first one, with biases that leave a token's probability as it was."""
        self.softmax.reset_parameters()
        bias = self.softmax.bias
        assert bias is not None
        bias[self.frequent] = -math.log(self.num_senses)
        self.sense_bias.fill_(-math.log(self.num_senses))
        self.offset.normal_(std=self.sense_noise)

    @property
    def bias(self) -> nn.Parameter | None:
        """Of the first senses."""
        return self.softmax.bias

    def tie(self, weight: Tensor) -> None:
        """The first senses are the input embedding; the others keep their distances to it."""
        self.softmax.tie(weight)

    def features(self, hidden: Tensor, **past: object) -> Tensor:
        return self.softmax.mixture(hidden).context.squeeze(-2)  # (..., E)

    def log_prob_from(self, features: Tensor) -> Tensor:
        logits = F.linear(features, self.softmax.weight, self.softmax.bias)  # (..., V)
        logits = logits.to(at_least_float32(logits.dtype))
        if self.num_senses > 1:
            rows = (self.softmax.weight[self.frequent] + self.offset).flatten(0, 1)  # (…, E)
            senses = F.linear(features, rows, self.sense_bias.flatten())
            senses = senses.to(logits.dtype).unflatten(-1, self.sense_bias.shape)  # (..., S-1, R)
            first = logits[..., self.frequent].unsqueeze(-2)  # (..., 1, R)
            total = torch.cat((first, senses), -2).logsumexp(-2)  # (..., R)
            logits = logits.index_copy(-1, self.frequent, total)
        return logits.log_softmax(-1)
