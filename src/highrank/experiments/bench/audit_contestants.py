"""The ways to the singular values of log-probabilities, from a head and its hidden states.

T contexts, V words, E size of a linear head's context, n rows of a block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from highrank.analysis.linear import head_singular_values
from highrank.analysis.rank import press_threshold
from highrank.analysis.singular_values import singular_values
from highrank.analysis.source import head_log_probs
from highrank.analysis.spectrum import Spectrum
from highrank.heads import Head, MixtureOfSoftmaxes, Softmax

SEED = 0
# The mixture's log-probabilities should cost little beside their singular values.
MIXTURE_SIZE, NUM_COMPONENTS = 32, 3


@dataclass(frozen=True, kw_only=True)
class Size:
    num_contexts: int
    """T."""
    vocab_size: int
    """V."""
    embedding_size: int
    """E."""


FULL = Size(num_contexts=20_000, vocab_size=10_000, embedding_size=280)
QUICK = Size(num_contexts=4_000, vocab_size=2_000, embedding_size=280)
TINY = Size(num_contexts=80, vocab_size=40, embedding_size=8)


def svd(head: Head, hidden: Tensor) -> Spectrum:
    """The whole matrix, and an SVD of it without vectors."""
    source = head_log_probs(head, hidden)
    matrix = torch.empty(source.num_contexts, source.vocab_size, dtype=torch.float64)  # (T, V)
    row = 0
    for block in source.blocks():  # (n, V)
        matrix[row : row + len(block)] = block
        row += len(block)
    values = torch.linalg.svdvals(matrix)
    shape, eps = (len(matrix), source.vocab_size), torch.finfo(torch.float64).eps
    return Spectrum(
        values=values,
        shape=shape,
        precision=torch.float64,
        method="svd",
        floor=press_threshold(values[0].item(), shape, eps),
    )


def streamed(method: str, head: Head, hidden: Tensor) -> Spectrum:
    return singular_values(head_log_probs(head, hidden), method)[-1]


def linear(head: Head, hidden: Tensor) -> Spectrum:
    return head_singular_values(head, hidden)[-1]


def log_probabilities(head: Head, hidden: Tensor) -> None:
    """Made and dropped: what all ways but the linear one do, too."""
    for _ in head_log_probs(head, hidden).blocks():
        pass


WAYS: dict[str, Callable[[Head, Tensor], Spectrum | None]] = {
    "svd": svd,
    "stable": partial(streamed, "stable"),
    "fast": partial(streamed, "fast"),
    "linear": linear,
    "log-probabilities": log_probabilities,
}


def prepare(name: str, size: Size) -> Callable[[], Spectrum | None]:
    """Make a head and hidden states; what is returned works on them."""
    make = linear_head if name == "linear" else mixture_head
    return partial(WAYS[name], *make(size))


def mixture_head(size: Size) -> tuple[Head, Tensor]:
    """A mixture of softmaxes, and hidden states (T, D)."""
    head = MixtureOfSoftmaxes(MIXTURE_SIZE, size.vocab_size, NUM_COMPONENTS, MIXTURE_SIZE)
    return _randomised(head, size.num_contexts)


def linear_head(size: Size) -> tuple[Head, Tensor]:
    """One softmax, and hidden states (T, E)."""
    return _randomised(Softmax(size.embedding_size, size.vocab_size), size.num_contexts)


def _randomised(head: Head, num_contexts: int) -> tuple[Head, Tensor]:
    """With logits of about unit size, so that no word is out of reach."""
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in head.parameters():
            size = parameter.shape[-1] if parameter.dim() == 2 else 1
            parameter.normal_(0, size**-0.5, generator=random)
    return head, torch.randn(num_contexts, head.hidden_size, generator=random)
