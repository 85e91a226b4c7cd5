"""Cross-entropy of softmaxes whose logits any function makes, in chunks of tokens.

    -log Σ_k exp(log_weight[k]) · softmax(logits[k])[target]

The gradient in the logits, r (q - e_target), is made by hand while they are at hand; autograd takes
it from there to whatever the logits were made from. A chunk of logits is all that is ever alive.
N tokens, K components, V vocabulary, n tokens of a chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from highrank.ops.numerics import at_least_float32

# Logits of a chunk. Tables that autograd keeps for its backward pass come on top.
CHUNK_BYTES = 16 * 2**20

LogitsOf = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]


def streamed_cross_entropy(
    logits_of: LogitsOf,
    log_weight: Tensor,
    features: Sequence[Tensor],
    shared: Sequence[Tensor],
    target: Tensor,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:
    """The loss of each token (N,), detached, and their sum, which carries the gradients.

    An impossible target has loss +inf and no gradient; the sum leaves it out.

    Args:
        logits_of: logits (n, K, V) of the features of n tokens and what is shared, differentiable
            in both. They are overwritten, and must not be needed for their own gradient. Should
            they be a view, autograd makes a copy of their gradient.
        log_weight: (N, K), normalised.
        features: tensors (N, …).
        shared: tensors that all tokens use, such as the output embedding.
        target: (N,), below V.
    """
    in_training = torch.is_grad_enabled()
    sizes = _Sizes(len(features), vocab_size, in_training)
    token_loss, total = _Loss.apply(logits_of, sizes, target, log_weight, *features, *shared)
    return token_loss, total


class _Sizes(NamedTuple):
    num_features: int
    vocab_size: int
    in_training: bool


class _Loss(Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_of: LogitsOf,
        sizes: _Sizes,
        target: Tensor,
        log_weight: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        wanted = [sizes.in_training and wants for wants in ctx.needs_input_grad[4:]]
        N, K = log_weight.shape
        token_loss = torch.empty_like(log_weight[:, 0])  # (N,)
        d_log_weight = torch.empty_like(log_weight)
        gradients = _Gradients(tensors, wanted, sizes.num_features)
        size = _chunk_size(N, K * sizes.vocab_size * log_weight.itemsize)
        for start in range(0, N, size):
            rows = slice(start, start + size)
            leaves = gradients.leaves(rows)
            chunk = log_weight[rows], target[rows]
            token_loss[rows], d_log_weight[rows], found = _chunk(logits_of, leaves, *chunk)
            gradients.add(rows, found)
        ctx.gradients = (d_log_weight, *gradients.totals())
        ctx.mark_non_differentiable(token_loss)
        return token_loss, token_loss.masked_fill(token_loss == torch.inf, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (g if g is None else (g * upstream).to(g.dtype) for g in ctx.gradients)
        return None, None, None, *scaled


class _Leaves(NamedTuple):
    """A chunk's features and what is shared, cut off from their history."""

    features: tuple[Tensor, ...]
    shared: tuple[Tensor, ...]

    @property
    def wanted(self) -> list[Tensor]:
        return [leaf for leaf in (*self.features, *self.shared) if leaf.requires_grad]


class _Gradients:
    """Of features, filled in by chunks, and of what is shared, summed over them."""

    def __init__(self, tensors: tuple[Tensor, ...], wanted: list[bool], num_features: int) -> None:
        self.tensors, self.num_features = tensors, num_features
        self.wanted = [index for index, wants in enumerate(wanted) if wants]
        self.found: dict[int, Tensor] = {}
        self.shared = self._cut(range(num_features, len(tensors)), None)

    def leaves(self, rows: slice) -> _Leaves:
        return _Leaves(self._cut(range(self.num_features), rows), self.shared)

    def add(self, rows: slice, gradients: Sequence[Tensor | None]) -> None:
        """What one chunk contributes, to the wanted ones in order."""
        for index, gradient in zip(self.wanted, gradients, strict=True):
            if gradient is None:
                continue
            if index < self.num_features:
                whole = self.found.setdefault(index, torch.empty_like(self.tensors[index]))
                whole[rows] = gradient
            elif index in self.found:
                self.found[index].add_(gradient)
            else:
                self.found[index] = gradient

    def totals(self) -> list[Tensor | None]:
        """None where none is wanted, or nothing depends on it."""
        if not len(self.tensors[0]):
            return [torch.zeros_like(tensor) for tensor in self.tensors]
        return [self.found.get(index) for index in range(len(self.tensors))]

    def _cut(self, indices: range, rows: slice | None) -> tuple[Tensor, ...]:
        parts = ((index, self.tensors[index]) for index in indices)
        return tuple(
            (tensor if rows is None else tensor[rows]).detach().requires_grad_(index in self.wanted)
            for index, tensor in parts
        )


def _chunk_size(num_tokens: int, bytes_per_token: int) -> int:
    """Tokens of each chunk: all have about as many, since small products are slow ones."""
    most = max(1, CHUNK_BYTES // bytes_per_token)
    num_chunks = max(1, -(-num_tokens // most))
    return max(1, -(-num_tokens // num_chunks))


def _chunk(
    logits_of: LogitsOf, leaves: _Leaves, log_weight: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Sequence[Tensor | None]]:
    """Losses (n,), the gradient in log_weight (n, K), and those in the leaves that want one."""
    wanted = leaves.wanted
    with torch.set_grad_enabled(bool(wanted)):
        logits = logits_of(leaves.features, leaves.shared)  # (n, K, V)
    z = logits.detach()
    z = z.to(at_least_float32(z.dtype))
    q = torch.softmax(z, -1, out=z) if z.is_cpu else z.softmax(-1)  # (n, K, V)
    index = target[:, None, None].expand(-1, q.shape[1], 1)  # (n, K, 1)
    log_q = _log_probability(q, index, logits_of, leaves)  # (n, K)
    joint = log_weight + log_q  # (n, K)
    log_p = joint.logsumexp(-1, keepdim=True)  # (n, 1)
    is_impossible = log_p == -torch.inf  # (n, 1)
    responsibility = (joint - log_p).exp_().masked_fill_(is_impossible, 0.0)  # (n, K)
    found: Sequence[Tensor | None] = ()
    if wanted:
        slope = q.scatter_add_(-1, index, torch.full_like(index, -1, dtype=q.dtype))
        # Of one component it is 1.
        if q.shape[1] > 1 or is_impossible.any():
            slope.mul_(responsibility[..., None])
        found = torch.autograd.grad(logits, wanted, slope.to(logits.dtype), allow_unused=True)
    return -log_p.squeeze(-1), -responsibility, found


def _log_probability(q: Tensor, index: Tensor, logits_of: LogitsOf, leaves: _Leaves) -> Tensor:
    """log q[index] (n, K), also where q[index] is too small for the dtype."""
    target_q = q.gather(-1, index).squeeze(-1)  # (n, K)
    log_q = target_q.log()
    # 1e-30 leaves float32 all its digits: the smallest normal number is 1e-38.
    small = (target_q < 1e-30).any(-1).nonzero().squeeze(1)  # (S,)
    if len(small):
        with torch.no_grad():
            logits = logits_of([leaf[small] for leaf in leaves.features], leaves.shared)
        exact = logits.to(q.dtype).log_softmax(-1)  # (S, K, V)
        log_q[small] = exact.gather(-1, index[small]).squeeze(-1)
    return log_q
