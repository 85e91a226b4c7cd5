"""The shapes of `bench loss`, and inputs made from a seed.

N tokens, K components, E embedding size, V vocabulary, D hidden size.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# Standard deviation of the logits.
LOGIT_SCALE = 2.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What meets the loss in one step of a model."""

    name: str
    num_tokens: int
    """N."""
    num_components: int
    """K."""
    embedding_size: int
    """E."""
    vocab_size: int
    """V."""
    hidden_size: int
    """D: it enters only the size of the softmax with as many parameters."""

    @property
    def table_bytes(self) -> int:
        """Of the logits of all tokens, components and words, in float32."""
        return 4 * self.num_tokens * self.num_components * self.vocab_size

    @property
    def softmax_size(self) -> int:
        """The context size E' at which a softmax has as many parameters as the mixture."""
        D, K, E, V = self.hidden_size, self.num_components, self.embedding_size, self.vocab_size
        mixture = D * K + D * K * E + K * E + V * E + V
        # A softmax has D · E' + E' + V · E' + V.
        return max(1, round((mixture - V) / (D + 1 + V)))


class Inputs(NamedTuple):
    context: Tensor  # (N, K, E)
    log_weight: Tensor  # (N, K)
    weight: Tensor  # (V, E)
    bias: Tensor  # (V,)
    target: Tensor  # (N,)


def _shape(name: str, N: int, K: int, E: int, V: int, D: int) -> Shape:
    return Shape(
        name=name,
        num_tokens=N,
        num_components=K,
        embedding_size=E,
        vocab_size=V,
        hidden_size=D,
    )


SHAPES = {
    shape.name: shape
    for shape in (
        # What the paper's models see at once: 12 × 70 words of Penn Treebank, 5 × 70 of WikiText-2.
        _shape("ptb", 840, 15, 280, 10_000, 620),
        _shape("wt2", 350, 15, 300, 33_278, 650),
        # The vocabulary of GPT-2, and one of the size that larger models have.
        _shape("gpt2", 512, 4, 256, 50_257, 768),
        _shape("wide", 256, 8, 256, 131_072, 1024),
    )
}
# A vocabulary and one of eight times its size.
GROWTH = (
    _shape("small vocabulary", 256, 8, 64, 32_768, 512),
    _shape("large vocabulary", 256, 8, 64, 262_144, 512),
)
# Large enough for the kernels of the real shapes, small enough to leave no memory behind.
TINY = _shape("tiny", 64, 2, 32, 1000, 32)


@lru_cache(maxsize=1)
def mixture_inputs(shape: Shape, seed: int) -> Inputs:
    """Shared by the contestants of a shape; all but the targets require gradients."""
    return _inputs(shape, shape.num_components, shape.embedding_size, seed)


def softmax_inputs(shape: Shape, seed: int) -> Inputs:
    """Of one softmax with as many parameters: K = 1, E' instead of E."""
    inputs = _inputs(shape, 1, shape.softmax_size, seed)
    return inputs._replace(log_weight=torch.zeros(shape.num_tokens, 1))


def _inputs(shape: Shape, K: int, E: int, seed: int) -> Inputs:
    random = torch.Generator().manual_seed(seed)
    N, V = shape.num_tokens, shape.vocab_size
    context = torch.randn(N, K, E, generator=random)
    log_weight = torch.randn(N, K, generator=random).log_softmax(-1)
    weight = torch.randn(V, E, generator=random).mul_(LOGIT_SCALE / E**0.5)
    bias = torch.randn(V, generator=random)
    target = torch.randint(V, (N,), generator=random)
    for tensor in (context, log_weight, weight, bias):
        tensor.requires_grad_()
    return Inputs(context, log_weight, weight, bias, target)
