"""Mixtape: Yang, Luong, Salakhutdinov and Le (2019), NeurIPS 32.

    p = softmax(z),  z_v = Σ_k π_vk (w_v · h_k) + b_v,  h_k = tanh(C_k hidden + c_k)

The contexts are mixed in the space of logits, with weights of each token's own, so that one
normaliser is enough. The weights are the leaves of a binary tree with a gate at each of its K - 1
nodes, node 0 being the root and 2j + 1 and 2j + 2 the children of node j:

    gate_vj = σ(x_v · t_j + s_j + β_vj),  t_j = tanh(U_j hidden + a_j),  s_j = u_j · hidden

The R most frequent tokens have gates. All others share σ(s_j), and with it one mixed context, which
bounds the rank of log p by R + E + 2. Tree and sharing are those of Google's code in
mesh-TensorFlow, whose numbers the tests reproduce.
"""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from highrank.heads.bases.embedding import EmbeddingOptions
from highrank.heads.bases.frequency import frequency_order
from highrank.heads.bases.head import Head
from highrank.heads.bases.logits import LogitHead
from highrank.heads.bases.start import start_nearly_equal
from highrank.heads.bases.token_rows import check_sizes
from highrank.ops.gate_tree import mix_leaves, mix_products
from highrank.ops.precision import at_least_float32
from highrank.ops.row_blocks import inverse_permutation, row_blocks
from highrank.ops.streamed_cross_entropy import Block, Columns, Logits


class Mixtape(LogitHead):
    """One softmax over logits that each token mixes from K contexts.

    Args:
        num_components: K, a power of two from 2 on. The paper has 4.
        frequent_fraction: the fraction of the vocabulary, the most frequent tokens, that has gates
            of its own.
        gate_size: numbers of a token that its gates depend on.
        token_counts: how often the training split has each token; None if ids are in order of
            frequency.
        start_noise: start with nearly equal contexts, as in `MixtureOfSoftmaxes`, and gates half
            open.
        options: and sizes, as of `EmbeddingHead`.
    """

    title = "Mixtape"
    default_components = 4
    # The order of tokens by frequency would have to change, too.
    resize = Head.resize

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        frequent_fraction: float = 0.1,
        gate_size: int = 32,
        token_counts: Sequence[int] | None = None,
        start_noise: float | None = None,
        **options: Unpack[EmbeddingOptions],
    ) -> None:
        super().__init__(hidden_size, vocab_size, embedding_size, **options)
        check_sizes(gate_size=gate_size)
        if num_components < 2 or num_components & (num_components - 1):
            raise ValueError(
                f"num_components must be a power of two from 2 on, got {num_components}"
            )
        if not 0 <= frequent_fraction <= 1:
            raise ValueError(f"frequent_fraction must be from 0 to 1, got {frequent_fraction}")
        self.num_components, self.gate_size = num_components, gate_size
        self.start_noise = start_noise
        self.num_frequent = round(frequent_fraction * vocab_size)
        num_nodes = num_components - 1
        self.latent = self._linear(hidden_size, num_components * embedding_size)
        self.gate = self._linear(hidden_size, num_nodes * gate_size)
        self.shared_gate = self._linear(hidden_size, num_nodes, bias=False)
        self.gate_embedding = nn.Parameter(self.weight.new_empty(self.num_frequent, gate_size))
        self.gate_bias = nn.Parameter(self.weight.new_empty(self.num_frequent, num_nodes))
        order = torch.tensor(frequency_order(token_counts, vocab_size))
        self.register_buffer("order", order.to(self.weight.device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gates normal, as in mesh-TensorFlow; the rest as in the other heads."""
        super().reset_parameters()
        nn.init.normal_(self.gate_embedding)
        nn.init.normal_(self.gate_bias)
        priors = self.shared_gate.weight, self.gate_embedding, self.gate_bias
        start_nearly_equal([(self.latent, self.num_components)], priors, self.start_noise)

    @property
    def rank_bound(self) -> int | None:
        """R columns are free; the others have E from the mixed context and 1 from the bias."""
        others = self.embedding_size + (0 if self.bias is None else 1)
        return self.num_frequent + min(others, self.vocab_size - self.num_frequent) + 1

    def places(self) -> Tensor:
        return inverse_permutation(self.get_buffer("order"))

    def features(self, hidden: Tensor, **past: Any) -> tuple[Tensor, ...]:
        """Log-weights of the one softmax, contexts (..., K, E), gates' features (..., K-1, G)."""
        self._check_hidden(hidden)
        context = torch.tanh(self.latent(hidden)).unflatten(-1, (self.num_components, -1))
        share = self.shared_gate(hidden)  # (..., K-1)
        gate = torch.tanh(self.gate(hidden)).unflatten(-1, (-1, self.gate_size))
        zeros = share.new_zeros(*share.shape[:-1], 1, dtype=at_least_float32(share.dtype))
        return zeros, self._dropped(context), gate, share

    def logits(self) -> Logits:
        """The frequent tokens' columns come first."""
        R, V, order = self.num_frequent, self.vocab_size, self.get_buffer("order")
        (weight,) = row_blocks(self.weight, order, (V,))
        bias = None if self.bias is None else self.bias[order]
        # x_v · t_j + s_j + β_vj in one product: a 1 and β_v stand beside x_v.
        gate = (self.gate_embedding, self.gate_embedding.new_ones(R, 1), self.gate_bias)
        others = Block(0, slice(R, V), slice(R, V))
        return Logits(
            _columns,
            [others],
            weight,
            bias,
            shared=(torch.cat(gate, -1),),
            num_own=R,
            # A frequent token has about 3 K numbers while gradients are made.
            num_tables=1 + 3 * self.num_components * R / V,
        )


def _columns(features: Sequence[Tensor], frequent: Tensor, shared: Sequence[Tensor]) -> Columns:
    context, gate, share = features  # (n, K, E), (n, K-1, G), (n, K-1)
    (gate_weight,) = shared  # (R, G+K)
    node = torch.eye(share.shape[-1], dtype=gate.dtype, device=gate.device)
    node = node.expand(gate.shape[0], -1, -1)  # (n, K-1, K-1)
    gate = torch.cat((gate, share[..., None], node), -1)  # (n, K-1, G+K)
    own = mix_products(context, frequent, gate, gate_weight)  # (n, R)
    common = mix_leaves(context, share.sigmoid()[..., None])  # (n, E)
    return Columns([common], own)
