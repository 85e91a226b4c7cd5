"""Partitioned softmax: Chang and McCallum (2022), ACL 60.

    p = softmax(z),  z_v = w_v · f_{v mod P} + b_v,  f_i = tanh(L_i hidden + c_i)

The vocabulary is split in P blocks, each with a context ("facet") of its own; there is one
normaliser. That is the price of one softmax, and the rank of log p may be P times as high. The
authors' facets are linear (activation="identity"), which bounds the rank by D as well.
"""

from typing import Any, Unpack

import torch
from torch import Tensor

from highrank.heads.bases.embedding import ContextOptions
from highrank.heads.bases.logits import LogitHead, one_each
from highrank.heads.bases.token_rows import check_sizes
from highrank.ops.precision import at_least_float32
from highrank.ops.row_blocks import inverse_permutation
from highrank.ops.streamed_cross_entropy import Block, Logits


class PartitionedSoftmax(LogitHead):
    """One softmax over blocks of the vocabulary that have a context each.

    Args:
        num_partitions: P, blocks of the vocabulary. Token v is in block v mod P.
        options: and sizes, as of `EmbeddingHead`.
    """

    title = "Partition"

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        embedding_size: int,
        *,
        num_partitions: int = 4,
        **options: Unpack[ContextOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, embedding_size, **options)
        check_sizes(num_partitions=num_partitions)
        self.num_partitions = num_partitions
        self.latent = self._linear(hidden_size, num_partitions * embedding_size)
        self.reset_parameters()

    @property
    def rank_bound(self) -> int | None:
        """P · E from the contexts, 1 from the bias, 1 from the normaliser.

        Linear contexts have at most D, and 1 from their own biases.
        """
        size = self.num_partitions * self.embedding_size + (0 if self.bias is None else 1)
        return 1 + (min(size, self.hidden_size + 1) if self.activation == "identity" else size)

    def places(self) -> Tensor:
        return block_places(self.vocab_size, self.num_partitions, self.weight.device)

    def features(self, hidden: Tensor, **past: Any) -> tuple[Tensor, ...]:
        self._check_hidden(hidden)
        context = self._activated(self.latent(hidden))
        context = context.unflatten(-1, (self.num_partitions, -1))  # (..., P, E)
        zeros = context.new_zeros(*hidden.shape[:-1], 1, dtype=at_least_float32(context.dtype))
        return zeros, self._dropped(context)

    def logits(self) -> Logits:
        blocks = partitions(self.vocab_size, self.num_partitions)
        return Logits(one_each, blocks, self.weight, self.bias)


def partitions(vocab_size: int, num_partitions: int, softmax: int = 0) -> list[Block]:
    """Tokens v with v mod P = 0, 1, …, in columns side by side."""
    found, start = [], 0
    for part in range(num_partitions):
        stop = start + len(range(part, vocab_size, num_partitions))
        rows = slice(part, None, num_partitions)
        found.append(Block(softmax, slice(start, stop), rows))
        start = stop
    return found


def block_places(vocab_size: int, num_partitions: int, device: torch.device) -> Tensor:
    """The column of each token (V,), in blocks side by side."""
    tokens = torch.arange(vocab_size, device=device)
    return inverse_permutation(
        torch.cat([tokens[p::num_partitions] for p in range(num_partitions)])
    )
