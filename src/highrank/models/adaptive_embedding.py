"""Adaptive input embeddings: Baevski and Auli (2019), arXiv 1809.10853.

Tokens are in bands by frequency. Rarer bands have narrower embeddings, which a linear layer brings
to the size that the model reads. The bands may be shared with those of an adaptive softmax; the
linear layers are not, as theirs start from the hidden state. E embedding size, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AdaptiveEmbedding(nn.Module):
    """An `nn.Embedding` whose rare tokens have fewer parameters.

    Args:
        embedding_size: E, what comes out.
        order: (V,), token ids by frequency, the most frequent first.
        sizes: how many tokens each band has; V in all.
        widths: numbers of each band's embeddings.
        embedding_range: embeddings start uniform in ± this.
    """

    rank: Tensor
    """(V,), the place of each token in the order of frequency."""

    def __init__(
        self,
        embedding_size: int,
        order: Tensor,
        sizes: Sequence[int],
        widths: Sequence[int],
        embedding_range: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if sum(sizes) != len(order) or len(sizes) != len(widths):
            raise ValueError(
                f"sizes and widths must be of the same bands, of {len(order)} tokens in all, got "
                f"{list(sizes)} and {list(widths)}"
            )
        self.num_embeddings, self.embedding_dim = len(order), embedding_size
        self.sizes, self.embedding_range = tuple(sizes), embedding_range
        self.register_buffer("rank", order.argsort().to(device))
        self.bands = nn.ParameterList(
            torch.empty(size, width, device=device, dtype=dtype)
            for size, width in zip(sizes, widths, strict=True)
        )
        self.projections = nn.ModuleList(
            nn.Identity()
            if width == embedding_size
            else nn.Linear(width, embedding_size, bias=False, device=device, dtype=dtype)
            for width in widths
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings uniform, linear layers as torch does."""
        for band in self.bands:
            nn.init.uniform_(band, -self.embedding_range, self.embedding_range)
        for layer in self.projections:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def forward(self, tokens: Tensor) -> Tensor:
        """(..., E) of tokens (...)."""
        rank = self.rank[tokens].reshape(-1)  # (N,)
        places, parts, start = [], [], 0
        for size, band, project in zip(self.sizes, self.bands, self.projections, strict=True):
            inside = ((rank >= start) & (rank < start + size)).nonzero().squeeze(1)  # (n,)
            places.append(inside)
            parts.append(project(F.embedding(rank[inside] - start, band)))  # (n, E)
            start += size
        found = torch.cat(parts)  # (N, E)
        found = torch.empty_like(found).index_copy(0, torch.cat(places), found)
        return found.reshape(*tokens.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, sizes={list(self.sizes)}"
