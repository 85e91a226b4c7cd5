"""Cross-entropy of softmaxes whose columns come from several contexts, in chunks of tokens.

    -log Σ_k exp(log_weight[k]) · softmax(logits[k])[target]

A block of columns is a context's product with some rows of the output embedding. The first columns
may be made in any other way. A chunk of logits is all that is ever alive: its slope, which is
r (q - e_target), replaces it and is multiplied out block by block; autograd takes it from the
contexts to what they were made from. N tokens, K softmaxes, E embedding size, V vocabulary,
n tokens of a chunk, S columns that are no product.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from highrank.ops.derivatives import differentiable_gradients
from highrank.ops.logit_map import Back, Pieces
from highrank.ops.loss.chunks import new_table, tokens_per_chunk
from highrank.ops.loss.targets import weight_losses
from highrank.ops.mixture_cross_entropy.stream import Gradients, add_gradients
from highrank.ops.precision import at_least_float32, autocast_dtype, log_sum, without_autocast
from highrank.ops.tracing import is_static


class Columns(NamedTuple):
    """Factors and columns of the logits of n tokens."""

    contexts: Sequence[Tensor]
    """(n, E), of each block."""
    own: Tensor | None = None
    """(n, S), the first columns of the first softmax, but for the bias."""


class Block(NamedTuple):
    """Columns that are context @ weight[rows].T + bias[rows]."""

    softmax: int
    columns: slice
    rows: slice


# From features of n tokens, the first S rows of the embedding, and what is shared.
ColumnsOf = Callable[[Sequence[Tensor], Tensor, Sequence[Tensor]], Columns]


class Logits(NamedTuple):
    """A recipe for logits."""

    columns_of: ColumnsOf
    blocks: Sequence[Block]
    weight: Tensor
    """(V, E)."""
    bias: Tensor | None
    """(V,)."""
    shared: Sequence[Tensor] = ()
    num_softmaxes: int = 1
    num_own: int = 0
    """S."""
    num_tables: float = 1.0
    """Memory that a chunk takes, in tables of its logits."""
    pieces: Pieces | None = None
    """A piecewise linear map of the logits, whose slopes are trained."""


def logits_of(logits: Logits, features: Sequence[Tensor]) -> Tensor:
    """(n, K, V), by autograd: what the streamed loss is compared with."""
    weight, bias, S = logits.weight, logits.bias, logits.num_own
    columns = logits.columns_of(features, weight[:S], logits.shared)
    parts = []
    if columns.own is not None:
        parts.append(columns.own if bias is None else columns.own + bias[:S])
    for context, block in zip(columns.contexts, logits.blocks, strict=True):
        own_bias = None if bias is None else bias[block.rows]
        parts.append(F.linear(context, weight[block.rows], own_bias))
    found = torch.cat(parts, -1)
    return found.view(found.shape[0], logits.num_softmaxes, weight.shape[0])


def streamed_cross_entropy(
    logits: Logits,
    log_weight: Tensor,
    features: Sequence[Tensor],
    target: Tensor,
    scale: Tensor | None = None,
    chunk_bytes: int | None = None,
    extra: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of each token (N,), detached, and their sum, which carries the gradients.

    An impossible target has loss +inf and no gradient; the sum leaves it out.

    Args:
        log_weight: (N, K), normalised.
        features: tensors (N, …).
        target: (N,), columns below V.
        scale: (N,), what the loss of each token is multiplied with.
        extra: (N, J), further terms of the mixture, log-weights included.
    """
    pieces = logits.pieces
    tensors = [logits.weight, logits.bias, *features, *logits.shared]
    dtype = autocast_dtype(log_weight.device)
    if dtype is not None:
        tensors = [x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors]
    recipe = _Recipe(
        logits.columns_of,
        logits.blocks,
        logits.num_own,
        0.0 if pieces is None else pieces.limit,
        len(features),
        logits.num_softmaxes,
        torch.is_grad_enabled(),
    )
    if extra is not None:
        # Weights of terms whose log-probability is 0.
        log_weight = torch.cat((log_weight, extra), -1)  # (N, K + J)
    slopes = None if pieces is None else pieces.slopes
    rows = int(logits.num_softmaxes * logits.num_tables)
    itemsize = at_least_float32(log_weight.dtype).itemsize
    most = tokens_per_chunk(rows, len(logits.weight) * itemsize, chunk_bytes, log_weight.device)
    with without_autocast(log_weight.device):
        token_loss, total = _Loss.apply(recipe, most, target, scale, log_weight, slopes, *tensors)
    return token_loss, total


class _Recipe(NamedTuple):
    """The part of `Logits` that is no tensor, and the state of autograd."""

    columns_of: ColumnsOf
    blocks: Sequence[Block]
    num_own: int
    limit: float
    num_features: int
    num_softmaxes: int
    in_training: bool


class _Loss(Function):
    @staticmethod
    def forward(
        ctx: Any, recipe: _Recipe, most: int, target: Tensor, scale: Tensor | None, *tensors: Any
    ) -> tuple[Tensor, Tensor]:
        ctx.recipe, ctx.most, ctx.wanted = recipe, most, ctx.needs_input_grad[4:]
        wanted = [want and recipe.in_training for want in ctx.wanted]
        work = _Work(recipe, tensors, wanted)
        token_loss = work.all_chunks(target, scale, most)
        ctx.gradients = work.gradients
        ctx.save_for_backward(target, scale, *tensors)
        ctx.mark_non_differentiable(token_loss)
        return token_loss, token_loss.masked_fill(token_loss == torch.inf, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # Read once: hooks that offload or recompute do their work at every reading.
        target, scale, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            total = partial(_slow_total, ctx.recipe, target, scale)
            with without_autocast(upstream.device):
                again = differentiable_gradients(total, tensors, ctx.wanted, upstream)
            return None, None, None, None, *again
        # Handed over, not copied; a second backward pass makes new ones.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            work = _Work(ctx.recipe, tensors, ctx.wanted)
            with without_autocast(upstream.device):
                work.all_chunks(target, scale, ctx.most)
            gradients = work.gradients
        found = (
            None if g is None else g.mul_(upstream).to(x.dtype)
            for g, x in zip(gradients, tensors, strict=True)
        )
        return None, None, None, None, *found


def _slow_total(
    recipe: _Recipe,
    target: Tensor,
    scale: Tensor | None,
    log_weight: Tensor,
    slopes: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    *rest: Tensor,
) -> Tensor:
    """The sum of all losses, with N × K × V numbers in memory."""
    K, count = recipe.num_softmaxes, recipe.num_features
    logits = Logits(recipe.columns_of, recipe.blocks, weight, bias, rest[count:], K, recipe.num_own)
    z = logits_of(logits, rest[:count])  # (N, K, V)
    z = z.to(at_least_float32(z.dtype))
    log_q = (z if slopes is None else Pieces(slopes, recipe.limit)(z)).log_softmax(-1)
    index = target[:, None, None].expand(-1, K, 1)
    log_q = log_q.gather(-1, index).squeeze(-1)  # (N, K)
    log_p = log_sum(log_weight + F.pad(log_q, (0, log_weight.shape[1] - K)), -1)  # (N,)
    loss = weight_losses(-log_p, scale)
    return loss.masked_fill(loss == torch.inf, 0.0).sum()


class _Work:
    """A pass over the tokens, and the gradients to which each chunk contributes.

    Those of features are filled in, the others are sums over tokens, in at least float32.
    """

    def __init__(self, recipe: _Recipe, tensors: Sequence[Any], wanted: Sequence[bool]) -> None:
        self.recipe = recipe
        self.log_weight, slopes, self.weight, self.bias, *rest = tensors
        self.pieces = None if slopes is None else Pieces(slopes, recipe.limit)
        self.gradients: list[Tensor | None] = [
            torch.zeros_like(x, dtype=at_least_float32(x.dtype)) if want else None
            for x, want in zip(tensors, wanted, strict=True)
        ]
        self.d_log_weight, self.d_slopes, self.d_weight, self.d_bias, *others = self.gradients
        count = recipe.num_features
        self.features, self.d_features = rest[:count], others[:count]
        self.d_shared = others[count:]
        self.shared = [_leaf(x, g) for x, g in zip(rest[count:], self.d_shared, strict=True)]
        self.own_weight = _leaf(self.weight[: recipe.num_own], self.d_weight)
        self.in_training = any(wanted[1:])

    def all_chunks(self, target: Tensor, scale: Tensor | None, most: int) -> Tensor:
        """The loss of each token (N,).

        Args:
            most: tokens of a chunk.
        """
        N, K = len(self.log_weight), self.recipe.num_softmaxes
        token_loss = torch.empty_like(self.log_weight[:, 0])  # (N,)
        # All chunks have about as many tokens: small products are slow ones.
        size = max(1, -(-N // max(1, -(-N // most))))
        table = new_table(self.weight, min(N, size), K * len(self.weight))
        for start in range(0, N, size):
            rows = slice(start, start + size)
            part = None if scale is None else scale[rows]
            token_loss[rows] = self._chunk(rows, target[rows], part, table)
        return token_loss

    def _chunk(self, rows: slice, target: Tensor, scale: Tensor | None, table: Tensor) -> Tensor:
        """The loss of each token (n,)."""
        pairs = zip(self.features, self.d_features, strict=True)
        features = [_leaf(x[rows], gradient) for x, gradient in pairs]
        with torch.set_grad_enabled(self.in_training):
            columns = self.recipe.columns_of(features, self.own_weight, self.shared)
        log_weight, K = self.log_weight[rows], self.recipe.num_softmaxes  # (n, K + J)
        index = target[:, None, None].expand(-1, K, 1)  # (n, K, 1)
        z, back = self._mapped(self._logits(columns, table[: len(target)], K))
        q, log_q = self._softmaxes(z, index, columns, table)
        joint = log_weight + F.pad(log_q, (0, log_weight.shape[1] - K))  # (n, K + J)
        log_p = joint.logsumexp(-1, keepdim=True)  # (n, 1)
        factor = (joint - log_p).exp_().masked_fill_(log_p == -torch.inf, 0.0)  # (n, K + J)
        if scale is not None:
            factor = factor * scale[:, None]
        if self.d_log_weight is not None:
            self.d_log_weight[rows] = -factor
        factor = factor[:, :K]
        if self.in_training:
            slope = q.scatter_add_(-1, index, torch.full_like(index, -1, dtype=q.dtype))
            if back is not None:
                slope, d_slopes = back(slope.mul_(factor[..., None]))
                factor = torch.ones_like(factor)
                if self.d_slopes is not None:
                    self.d_slopes += d_slopes
            self._add(rows, features, columns, slope.flatten(1), factor)
        return weight_losses(-log_p.squeeze(-1), scale)

    @torch.no_grad()
    def _logits(self, columns: Columns, table: Tensor, num_softmaxes: int) -> Tensor:
        """(n, K, V), in the table where no other precision is needed."""
        S = self.recipe.num_own
        if columns.own is not None:
            bias = 0.0 if self.bias is None else self.bias[:S]
            torch.add(columns.own, bias, out=table[:, :S])
        for context, block in zip(columns.contexts, self.recipe.blocks, strict=True):
            out, weight = table[:, _place(block, len(self.weight))], self.weight[block.rows]
            if self.bias is None:
                torch.mm(context, weight.T, out=out)
            else:
                torch.addmm(self.bias[block.rows], context, weight.T, out=out)
        z = table.view(len(table), num_softmaxes, -1)
        return z.to(at_least_float32(z.dtype))

    def _mapped(self, z: Tensor) -> tuple[Tensor, Back | None]:
        return (z, None) if self.pieces is None else self.pieces.with_gradients(z)

    def _softmaxes(
        self, z: Tensor, index: Tensor, columns: Columns, table: Tensor
    ) -> tuple[Tensor, Tensor]:
        """q (n, K, V), in place of the logits, and log q of the targets (n, K)."""
        at_target = z.gather(-1, index)  # (n, K, 1)
        # In half precision a logit computed again may be rounded to another one.
        if is_static(z) or z.dtype != table.dtype:
            lse = z.logsumexp(-1, keepdim=True)  # (n, K, 1)
            return z.sub_(lse).exp_(), (at_target - lse).squeeze(-1)
        q = torch.softmax(z, -1, out=z)
        target_q = q.gather(-1, index).squeeze(-1)  # (n, K)
        log_q = target_q.log()
        # 1e-30 leaves float32 all its digits: the smallest normal number is 1e-38.
        small = (target_q < 1e-30).any(-1).nonzero().squeeze(1)
        if len(small):
            own = None if columns.own is None else columns.own[small]
            few = Columns([context[small] for context in columns.contexts], own)
            fresh = table.new_empty(len(small), table.shape[1])
            lse = self._mapped(self._logits(few, fresh, q.shape[1]))[0].logsumexp(-1, keepdim=True)
            log_q[small] = (at_target[small] - lse).squeeze(-1)
        return q, log_q

    def _add(
        self,
        rows: slice,
        features: Sequence[Tensor],
        columns: Columns,
        slope: Tensor,
        factor: Tensor,
    ) -> None:
        """Add the gradients of a slope (n, K · V) whose rows have a factor (n, K)."""
        S = self.recipe.num_own
        reached: list[tuple[Tensor, Any]] = []
        if columns.own is not None:
            of_own = slope[:, :S] * factor[:, :1]  # (n, S)
            if self.d_bias is not None:
                self.d_bias[:S] += of_own.sum(0)
            reached.append((columns.own, of_own.to(columns.own.dtype)))
        for context, block in zip(columns.contexts, self.recipe.blocks, strict=True):
            upstream = torch.empty_like(context) if context.requires_grad else None
            weight, bias = (
                None if g is None else g[block.rows] for g in (self.d_weight, self.d_bias)
            )
            add_gradients(
                Gradients(upstream, None, weight, bias, None),
                slice(None),
                context.detach(),
                self.weight[block.rows],
                slope[:, _place(block, len(self.weight))],
                factor[:, block.softmax, None],
            )
            reached.append((context, upstream))
        self._backpropagate(rows, features, [pair for pair in reached if pair[0].requires_grad])

    def _backpropagate(
        self, rows: slice, features: Sequence[Tensor], reached: Sequence[tuple[Tensor, Any]]
    ) -> None:
        """From the columns to what they were made from, by autograd."""
        own = None if self.d_weight is None else self.d_weight[: self.recipe.num_own]
        wholes = [own, *(None if g is None else g[rows] for g in self.d_features), *self.d_shared]
        leaves = [self.own_weight, *features, *self.shared]
        pairs = [(x, g) for x, g in zip(leaves, wholes, strict=True) if g is not None]
        if not reached or not pairs:
            return
        outputs, upstreams = zip(*reached, strict=True)
        wanted = [leaf for leaf, _ in pairs]
        gradients = torch.autograd.grad(outputs, wanted, upstreams, allow_unused=True)
        for (_, whole), gradient in zip(pairs, gradients, strict=True):
            if gradient is not None:
                whole += gradient


def _leaf(tensor: Tensor, gradient: Tensor | None) -> Tensor:
    """The tensor cut off from its history."""
    return tensor.detach().requires_grad_(gradient is not None)


def _place(block: Block, vocab_size: int) -> slice:
    """The block's columns in the table (n, K · V)."""
    start = block.softmax * vocab_size
    return slice(start + block.columns.start, start + block.columns.stop)
