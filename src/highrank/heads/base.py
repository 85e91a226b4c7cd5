"""What every output layer has: probabilities, a loss in bounded memory, prediction, sampling.

A head states its idea in `log_prob_from`; everything else follows. Letters, here and in the heads:
N tokens, D hidden size, K components, E embedding size, V vocabulary; `...` is any leading
dimensions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.checkpoint import checkpoint

from highrank.ops.mixture_cross_entropy.arguments import check_reduction, check_targets
from highrank.ops.mixture_cross_entropy.reference import reduce
from highrank.ops.mixture_log_prob import token_slices
from highrank.ops.numerics import at_least_float32
from highrank.ops.sampling import check_sampling, draw, tempered


class HeadOutput(NamedTuple):
    """As `nn.AdaptiveLogSoftmaxWithLoss` returns it."""

    output: Tensor
    """log p of each target (...), 0 where it is ignored. Detached unless `reduction` is "none"."""
    loss: Tensor
    """The reduced negative log-likelihood."""


class Head(nn.Module):
    """Base of all heads: p(token | hidden).

    A subclass writes `log_prob_from`, `rank_bound` and, where something must be computed for whole
    sequences (dropout that is shared over time, a look at past tokens), `features`. It has the
    output embedding `weight`, or its own `tie`.

    A head that looks back sets `is_stateful` and writes `initial_state` and `advance`; its methods
    then take `tokens` and `state` besides the hidden states, as `past`.
    """

    num_components: int = 1
    """Softmaxes that are computed for each token (K)."""
    layers: tuple[int, ...] = (-1,)
    """Layers of the backbone whose hidden states, side by side, are what this head is given."""
    is_stateful: bool = False
    """Whether it remembers tokens and states of the windows before."""
    weight: nn.Parameter

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, vocab_size=vocab_size)
        self.hidden_size, self.vocab_size = hidden_size, vocab_size

    @property
    def rank_bound(self) -> int | None:
        """No matrix of log-probabilities has a higher rank; None if no bound is known."""
        return None

    def features(self, hidden: Tensor, **past: Any) -> Any:
        """What the prediction of each token is made from: a pytree of tensors (..., anything)."""
        return hidden

    def log_prob_from(self, features: Any) -> Tensor:
        """log p of every token (..., V), normalised, in at least float32; nothing random."""
        raise NotImplementedError

    def initial_state(self, batch_size: int) -> Any:
        """What a stateful head remembers before the first window. Dimension 1 is the batch."""
        raise NotImplementedError

    def advance(self, hidden: Tensor, tokens: Tensor, state: Any) -> Any:
        """What it remembers after a window of hidden states (T, B, D) and tokens (T, B)."""
        raise NotImplementedError

    def tie(self, weight: nn.Parameter) -> None:
        """Share the output embedding with an input embedding's `weight`."""
        if not isinstance(weight, nn.Parameter):
            raise ValueError(f"weight must be an nn.Parameter, got {type(weight).__name__}")
        if weight.shape != self.weight.shape:
            raise ValueError(
                f"weight must be (vocab_size, embedding_size) = {tuple(self.weight.shape)}, "
                f"got {tuple(weight.shape)}"
            )
        self.weight = weight

    def log_prob(self, hidden: Tensor, **past: Any) -> Tensor:
        """log p of every token (..., V), normalised."""
        return self.log_prob_from(self.features(hidden, **past))

    def forward(
        self,
        hidden: Tensor,
        target: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        **past: Any,
    ) -> HeadOutput | Tensor:
        """The log-probability of each target, and the loss; without targets, `log_prob(hidden)`.

        Args:
            hidden: (..., D).
            target: (...), token ids, or `ignore_index`.
            reduction: "mean" over the targets that are not ignored, "sum" or "none".
            past: `tokens` and `state`, for a stateful head.
        """
        features = self.features(hidden, **past)
        if target is None:
            return self.log_prob_from(features)
        return self._loss(features, target, reduction, ignore_index)

    @torch.no_grad()
    def predict(self, hidden: Tensor, **past: Any) -> Tensor:
        """The likeliest token (...)."""
        features = self.features(hidden, **past)
        return self._by_chunks(
            hidden.shape[:-1], features, lambda chunk: self.log_prob_from(chunk).argmax(-1)
        )

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        **past: Any,
    ) -> Tensor:
        """A token (...) for each hidden state; `temperature` and cuts act on the probabilities."""
        check_sampling(temperature, top_k, top_p)
        is_plain = temperature == 1 and top_k is None and top_p is None

        def tokens_of(chunk: Any) -> Tensor:
            if is_plain:
                return self._draw(chunk, generator)
            return draw(tempered(self.log_prob_from(chunk), temperature, top_k, top_p), generator)

        return self._by_chunks(hidden.shape[:-1], self.features(hidden, **past), tokens_of)

    def _draw(self, features: Any, generator: torch.Generator | None) -> Tensor:
        """A token (N,) for the features of each of N."""
        return draw(self.log_prob_from(features), generator)

    def _loss(self, features: Any, target: Tensor, reduction: str, ignore_index: int) -> HeadOutput:
        """Chunks of tokens, streamed through autograd: the backward pass recomputes each chunk."""
        check_reduction(reduction)
        flat = flattened(features, target.dim())
        ids = target.reshape(-1).long()  # (N,)
        kept = (ids != ignore_index).nonzero().squeeze(1)
        check_targets(ids[kept], self.vocab_size)
        leaves, tree = tree_flatten(flat)

        def chunk_loss(ids: Tensor, *leaves: Tensor) -> Tensor:
            log_p = self.log_prob_from(tree_unflatten(leaves, tree))  # (n, V)
            return -log_p.gather(-1, ids[:, None]).squeeze(-1)  # (n,)

        found = [ids.new_empty(0, dtype=at_least_float32(leaves[0].dtype))]
        for rows in token_slices(len(kept), self.vocab_size, found[0].itemsize):
            chosen = kept[rows]
            parts = (ids[chosen], *(leaf[chosen] for leaf in leaves))
            loss = checkpoint(chunk_loss, *parts, use_reentrant=False, preserve_rng_state=False)
            found.append(loss)
        kept_loss = torch.cat(found)  # (kept,)
        token_loss = kept_loss.new_zeros(len(ids)).index_copy(0, kept, kept_loss)
        token_loss = token_loss.reshape(target.shape)
        if reduction == "none":
            return HeadOutput(0.0 - token_loss, token_loss)
        return HeadOutput(0.0 - token_loss.detach(), reduce(kept_loss, reduction))

    def _by_chunks(
        self, shape: torch.Size, features: Any, tokens_of: Callable[[Any], Tensor]
    ) -> Tensor:
        """Tokens (...) without log-probabilities for all of them at once."""
        flat = flattened(features, len(shape))
        leaves = tree_flatten(flat)[0]
        found = torch.empty(shape.numel(), dtype=torch.long, device=leaves[0].device)
        itemsize = at_least_float32(leaves[0].dtype).itemsize
        for rows in token_slices(len(found), self.vocab_size, itemsize):
            found[rows] = tokens_of(tree_map(lambda leaf, rows=rows: leaf[rows], flat))
        return found.reshape(shape)


def flattened(features: Any, num_leading: int) -> Any:
    """The tensors with their leading dimensions as one, (N, …)."""
    return tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[num_leading:]), features)


def check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
