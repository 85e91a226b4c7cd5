"""Parameters of a head for each token of the vocabulary: shared, started, resized."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from highrank.heads.bases.frequency import log_frequencies

# Output embeddings start uniform in ± this, as in the code of MoS.
EMBEDDING_RANGE = 0.1


class TokenRows(nn.Module):
    """An output embedding `weight` (V, E) and perhaps a `bias` (V,)."""

    weight: nn.Parameter
    vocab_size: int

    def tie(self, weight: Tensor) -> None:
        """Share the output embedding with an input embedding's `weight`, an nn.Parameter.

        Replacing parameters, as `to_empty` and `load_state_dict(assign=True)` do, ends the sharing,
        as everywhere in torch: tie again. A `LanguageModel` does so by itself.
        """
        wanted, found = tuple(self.weight.shape), parameter_shape(weight)
        if found != wanted:
            raise ValueError(f"weight must be (vocab_size, embedding_size) = {wanted}, got {found}")
        assert isinstance(weight, nn.Parameter)
        self.weight = weight

    @torch.no_grad()
    def scale_embedding(self, factor: float) -> None:
        """Multiply the output embedding, which starts in ±EMBEDDING_RANGE."""
        self.weight.mul_(factor)

    @torch.no_grad()
    def start_at_unigram(self, token_counts: Sequence[int]) -> None:
        """Add log-frequencies to the bias, so that the output embedding need not learn them.

        A head without a bias stays as it is.

        Args:
            token_counts: how often the training split has each token.
        """
        bias = getattr(self, "bias", None)
        if bias is not None:
            bias.add_(log_frequencies(token_counts, self.vocab_size).to(bias))

    def resize(self, vocab_size: int) -> None:
        """Change the number of tokens, keeping the first ones; new ones start as all tokens did.

        A tied embedding is replaced here only: resize it, too, and tie again.
        """
        kind, V = type(self).__name__, self.vocab_size
        raise ValueError(f"vocab_size must stay {V}: {kind} cannot be resized, got {vocab_size}")

    @torch.no_grad()
    def _resize_embedding(self, vocab_size: int) -> None:
        """`resize` of an output embedding, a bias, and nothing else."""
        check_sizes(vocab_size=vocab_size)
        kept = min(vocab_size, self.vocab_size)
        weight = self.weight.new_empty(vocab_size, self.weight.shape[1])
        nn.init.uniform_(weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        weight[:kept] = self.weight[:kept]
        self.weight = nn.Parameter(weight, self.weight.requires_grad)
        old = self._parameters.get("bias")
        if old is not None:
            bias = old.new_zeros(vocab_size)
            bias[:kept] = old[:kept]
            self.register_parameter("bias", nn.Parameter(bias, old.requires_grad))
        self.vocab_size = vocab_size


def parameter_shape(weight: Tensor) -> tuple[int, ...]:
    if not isinstance(weight, nn.Parameter):
        raise ValueError(f"weight must be an nn.Parameter, got {type(weight).__name__}")
    return tuple(weight.shape)


def check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
