"""Multi-sense softmax: frequent tokens have several output vectors, one softmax over all of them.

Miao, Zhou, Zhao, Shi and Li (2019), Kernelized Bayesian Softmax for Text Generation (KerBS),
without its kernels and without its reallocation of senses:

    p(token) = Σ_{j a sense of token} exp(w_j · h + b_j) / Z,  h = tanh(L hidden + c)

Further senses are the token's first vector plus an offset, so that they move with a tied one.
The mirror image of a mixture of softmaxes: several vectors a token and one context, instead of
several contexts and one vector. The logit of a token is the log-sum-exp of its senses', of which
none is linear in the context; the other tokens have one sense, which bounds the rank of log p by
R + E + 2. It costs 1 + (S - 1)·R/V of a softmax. D hidden size,
E embedding size, R tokens with S senses each, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.heads.bases.embedding import ContextOptions
from highrank.heads.bases.frequency import frequency_order, log_frequencies
from highrank.heads.bases.head import Head
from highrank.heads.bases.logits import LogitHead
from highrank.heads.bases.token_rows import check_sizes
from highrank.ops.precision import at_least_float32, log_sum
from highrank.ops.row_blocks import inverse_permutation, row_blocks
from highrank.ops.streamed_cross_entropy import Block, Columns, Logits
from highrank.ops.tracing import is_static


class MultiSenseSoftmax(LogitHead):
    """One softmax over the senses of all tokens.

    Args:
        num_senses: S, the senses of a frequent token; all others have one.
        num_frequent: R, how many of the most frequent tokens have several; all if V is less.
        sense_noise: standard deviation of each number of the further senses from the first one's
            at the start.
        token_counts: how often the training split has each token; the first R if None.
        options: and sizes, as of `EmbeddingHead`.
    """

    title = "Multi-sense"
    # The order of tokens by frequency would have to change, too.
    resize = Head.resize
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
        **options: Unpack[ContextOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, embedding_size, **options)
        check_sizes(num_senses=num_senses, num_frequent=num_frequent)
        self.num_senses, self.sense_noise = num_senses, sense_noise
        self.latent = self._linear(hidden_size, embedding_size)
        order = torch.tensor(frequency_order(token_counts, vocab_size)[:num_frequent])
        self.register_buffer("frequent", order.sort().values.to(self.weight.device))  # (R,)
        shape = (num_senses - 1, len(order), embedding_size)
        self.offset = nn.Parameter(self.weight.new_empty(shape))
        self.sense_bias = nn.Parameter(self.weight.new_empty(shape[:2]))
        self.reset_parameters()

    @property
    def rank_bound(self) -> int | None:
        """R columns are free; the others have E from the context and 1 from the bias."""
        R = 0 if self.num_senses == 1 else len(self.frequent)
        others = self.embedding_size + (0 if self.bias is None else 1)
        return R + min(others, self.vocab_size - R) + 1

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Senses near the first one, with biases that leave a token's probability as it was."""
        super().reset_parameters()
        if self.bias is not None:
            self.bias[self.frequent] = -math.log(self.num_senses)
        self.sense_bias.fill_(-math.log(self.num_senses))
        self.offset.normal_(std=self.sense_noise)

    @torch.no_grad()
    def start_at_unigram(self, token_counts: Sequence[int]) -> None:
        super().start_at_unigram(token_counts)
        added = log_frequencies(token_counts, self.vocab_size).to(self.sense_bias)
        self.sense_bias.add_(added[self.frequent])

    def features(self, hidden: Tensor, **past: object) -> tuple[Tensor, ...]:
        """Log-weights of the one softmax, and contexts (..., E)."""
        self._check_hidden(hidden)
        context = self._activated(self.latent(hidden)).unsqueeze(-2)  # (..., 1, E)
        zeros = context.new_zeros(context.shape[:-1], dtype=at_least_float32(context.dtype))
        return zeros, self._dropped(context).squeeze(-2)

    def _order(self) -> Tensor:
        """The tokens (V,), those with several senses first."""
        is_rare = torch.ones(self.vocab_size, dtype=torch.long, device=self.frequent.device)
        return is_rare.scatter(0, self.frequent, 0).argsort(stable=True)

    def places(self) -> Tensor:
        return inverse_permutation(self._order())

    def logits(self) -> Logits:
        R, V, order = len(self.frequent), self.vocab_size, self._order()
        (weight,) = row_blocks(self.weight, order, (V,))
        bias = self.weight.new_zeros(V) if self.bias is None else self.bias
        first, others = row_blocks(bias, order, (R, V - R))
        return Logits(
            _columns,
            [Block(0, slice(R, V), slice(R, V))],
            weight,
            # That of the first senses is not added to the others.
            torch.cat((torch.zeros_like(first), others)),
            shared=(self.offset, first, self.sense_bias),
            num_own=R,
            num_tables=1 + 3 * self.num_senses * R / V,
        )


def _columns(features: Sequence[Tensor], weight: Tensor, shared: Sequence[Tensor]) -> Columns:
    """The logit of a token with several senses is the log-sum-exp of theirs."""
    (context,), (offset, bias, sense_bias) = features, shared
    rows = torch.cat((weight[None], weight + offset))  # (S, R, E)
    biases = torch.cat((bias[None], sense_bias))  # (S, R)
    senses = F.linear(context, rows.flatten(0, 1), biases.flatten())  # (n, S · R)
    # A sum without any possible sense needs more passes, and is rare.
    may_be_empty = is_static(context) or bool(biases.isneginf().any())
    total = log_sum if may_be_empty else torch.logsumexp
    return Columns([context], total(senses.unflatten(-1, biases.shape), -2))
