"""Multi-facet softmax (MFS): Chang and McCallum (2022), ACL 60.

    p = Σ_k π_k · softmax(z_k),  z_1v = w_v · f_{v mod P} + b_v,  z_kv = w_v · f_{P+k-1} + b_v
    f_i = L_i q + c_i,  π = softmax(M q + d),  q = [last, GELU(G block + e)]

A mixture of K softmaxes of which the first is partitioned (`partition.py`). Its input is the last
layer's hidden state beside a summary of a block: the hidden states of several layers, at this
position and some before it. The authors' setting for GPT-2 is K = 3, P = 4, three layers and two
earlier positions; their loss adds 1e-8 to p, this one is exact.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.heads.bases.embedding import EmbeddingOptions, sizes_of_layers
from highrank.heads.bases.logits import LogitHead
from highrank.heads.bases.mixture import log_weights
from highrank.heads.bases.past import check_past
from highrank.heads.bases.start import start_nearly_equal
from highrank.heads.bases.token_rows import check_sizes
from highrank.heads.partition import block_places, partitions
from highrank.ops.streamed_cross_entropy import Columns, Logits

# Noise around the identity that facets start from.
START = 1e-4


class MultiFacetSoftmax(LogitHead):
    """K softmaxes over linear facets of the hidden states, the first partitioned.

    Args:
        hidden_size: D, of all layers' hidden states side by side.
        num_components: K.
        num_partitions: P, blocks of the vocabulary in the first softmax.
        layers: whose hidden states are in the block; the last one must be -1.
        num_previous: earlier positions in the block; from 1 on the head is stateful.
        layer_sizes: the size of each layer's hidden states; None with one layer.
        start_noise: start with nearly equal facets, as `MixtureOfSoftmaxes` with its contexts.
        options: and sizes, as of `EmbeddingHead`.
    """

    title = "MFS"
    default_components = 3

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        num_partitions: int = 4,
        layers: tuple[int, ...] = (-1,),
        num_previous: int = 0,
        layer_sizes: Sequence[int] | None = None,
        start_noise: float | None = None,
        **options: Unpack[EmbeddingOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, embedding_size, **options)
        check_sizes(num_components=num_components, num_partitions=num_partitions)
        if num_previous < 0:
            raise ValueError(f"num_previous must be at least 0, got {num_previous}")
        self.num_components, self.num_partitions = num_components, num_partitions
        self.layers, self.num_previous = tuple(layers), num_previous
        self.start_noise = start_noise
        self.last_size = sizes_of_layers(layers, layer_sizes, hidden_size)[-1]
        num_facets, size = num_partitions + num_components - 1, 2 * self.last_size
        self.block = self._linear((1 + num_previous) * hidden_size, self.last_size)
        self.latent = self._linear(size, num_facets * embedding_size)
        self.prior = self._linear(size, num_components)
        self.reset_parameters()

    @property
    def is_stateful(self) -> bool:
        return self.num_previous > 0

    def context_length(self, hidden: int) -> int:
        return hidden + self.num_previous

    def reset_parameters(self) -> None:
        """Facets start as the last hidden state, where sizes allow it, so p as one softmax."""
        super().reset_parameters()
        if self.last_size == self.embedding_size:
            self._start_as_identity()
        num_facets = self.num_partitions + self.num_components - 1
        start_nearly_equal([(self.latent, num_facets)], [self.prior.weight], self.start_noise)

    def _start_as_identity(self) -> None:
        E = self.embedding_size
        nn.init.zeros_(self.latent.bias)
        nn.init.uniform_(self.latent.weight, -START / 2, START / 2)
        with torch.no_grad():
            facets = self.latent.weight.unflatten(0, (-1, E))  # (facets, E, 2 · E)
            facets[-1].zero_()
            facets[:, :, :E] += torch.eye(E, dtype=facets.dtype, device=facets.device)

    @property
    def rank_bound(self) -> int | None:
        """None with several softmaxes; one is a partitioned softmax with linear contexts."""
        if self.num_components > 1:
            return None
        size = self.num_partitions * self.embedding_size + (0 if self.bias is None else 1)
        return 1 + min(size, 2 * self.last_size + 1)

    def initial_state(self, batch_size: int) -> Tensor:
        size = self.num_previous, batch_size, self.hidden_size
        return torch.zeros(size, device=self.weight.device, dtype=self.weight.dtype)

    def advance(self, hidden: Tensor, tokens: Tensor, state: Tensor) -> Tensor:
        """The last hidden states (num_previous, B, D)."""
        check_past(self, hidden, tokens, state)
        if self.batch_first:
            hidden = hidden.transpose(0, 1)
        return torch.cat((state.to(hidden.dtype), hidden))[-self.num_previous :]

    def places(self) -> Tensor:
        return block_places(self.vocab_size, self.num_partitions, self.weight.device)

    def features(self, hidden: Tensor, **past: Any) -> tuple[Tensor, ...]:
        """Log-weights (..., K) and facets (..., P + K - 1, E)."""
        self._check_hidden(hidden)
        block = self._block(hidden, **past) if self.is_stateful else hidden
        summary = F.gelu(self.block(block))
        q = torch.cat((hidden[..., -self.last_size :], summary), -1)
        facet = self.latent(q).unflatten(-1, (-1, self.embedding_size))
        return log_weights(self.prior(q)), self._dropped(facet)

    def logits(self) -> Logits:
        """All softmaxes have the partition's order of columns, the others with one facet each."""
        blocks = [
            block
            for softmax in range(self.num_components)
            for block in partitions(self.vocab_size, self.num_partitions, softmax)
        ]
        return Logits(
            self._columns, blocks, self.weight, self.bias, num_softmaxes=self.num_components
        )

    def _columns(self, features: Sequence[Tensor], *_: Any) -> Columns:
        (facet,) = features  # (n, P + K - 1, E)
        P, each = self.num_partitions, facet.unbind(1)
        return Columns([*each[:P], *(context for context in each[P:] for _ in range(P))])

    def _block(
        self,
        hidden: Tensor,
        tokens: Tensor | None = None,
        state: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Hidden states of each position and of those before it, side by side; zeros at first."""
        check_past(self, hidden, tokens, state)
        if self.batch_first:
            hidden = hidden.transpose(0, 1)
        before = self.initial_state(hidden.shape[1]) if state is None else state
        known, T = torch.cat((before.to(hidden.dtype), hidden)), hidden.shape[0]
        starts = range(self.num_previous, -1, -1)
        block = torch.cat([known[start : start + T] for start in starts], -1)  # (T, B, …)
        return block.transpose(0, 1) if self.batch_first else block
