"""The loss where each process has some rows of `weight` and `bias`, and all have the same tokens.

A softmax needs of the other processes only the largest logit, the sum of exponentials and the
target's logit: three numbers for each token and component. What every process then has of the
gradients is whole: those of its own rows, and those of contexts and weights of components.
N tokens, K components, R = rows of a chunk (its tokens · K), M targets of a token, E embedding
size, V tokens of the vocabulary that are here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.loss.chunks import new_table, tokens_per_chunk
from highrank.ops.loss.targets import (
    index_or_none,
    reduce_losses,
    total_mass,
    weight_losses,
    weighted_sum,
)
from highrank.ops.mixture_cross_entropy.reference import (
    NUM_DIFFERENTIABLE,
    NUM_TENSORS,
    Inputs,
    Losses,
    Request,
)
from highrank.ops.precision import at_least_float32, without_autocast
from highrank.ops.sharding import (
    VocabularyShard,
    all_reduce_sum,
    all_reduce_sums,
    check_same_tokens,
    row_argmax,
    row_max,
)


class Scores(NamedTuple):
    """What the processes have agreed on: no number of it belongs to one token of the vocabulary."""

    loss: Tensor  # (N,), before token weights
    lse: Tensor  # (N, K)
    coefficient: Tensor  # (N, K), what the softmaxes are multiplied with in the slope
    posterior: Tensor  # (N, K, M), what is taken away from the slope at the targets
    d_log_weight: Tensor  # (N, K)
    d_extra: Tensor | None  # (N, J)


def losses(inputs: Inputs, request: Request, shard: VocabularyShard, backend: str) -> Losses:
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "A sharded vocabulary is not for compilers: leave its head to eager mode."
        )
    if backend != "auto":
        raise ValueError(f'backend must be "auto" for a sharded vocabulary, got {backend!r}')
    size = _tokens_per_chunk(inputs, request.chunk_bytes, shard)
    check_same_tokens(shard, inputs.context, inputs.target, size)
    if inputs.smoothing is not None:
        inputs = inputs._replace(smoothing=inputs.smoothing[shard.start : shard.stop])
    # Asked here: `forward` runs without gradients, and needs_input_grad knows nothing of no_grad.
    in_training = torch.is_grad_enabled()
    token_loss, loss, *found = _Loss.apply(*inputs, request, shard, size, in_training)
    return token_loss, loss, dict(zip(request.also, found, strict=True))


class _Loss(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        *fields, request, shard, size, in_training = arguments
        inputs, is_none = Inputs(*fields), request.reduction == "none"
        wanted = ctx.needs_input_grad[:NUM_DIFFERENTIABLE]
        # Of a reduced loss the upstream gradient is one number: all else can be made at once.
        at_once = in_training and any(wanted) and not is_none
        ctx.gradients = _Gradients(inputs, wanted) if at_once else None
        scores, by_products = _scored(inputs, shard, size, ctx.gradients, request.also)
        ctx.reduction, ctx.shard, ctx.size = request.reduction, shard, size
        ctx.others = inputs[NUM_TENSORS:]
        ctx.save_for_backward(*inputs[:NUM_TENSORS], *scores)
        token_loss = weight_losses(scores.loss, inputs.token_weight)
        loss = (
            token_loss.sum()
            if is_none
            else reduce_losses(token_loss, inputs.mass, request.reduction)
        )
        found = [by_products[name] for name in request.also]
        ctx.mark_non_differentiable(loss if is_none else token_loss, *found)
        return (token_loss, loss, *found)

    @staticmethod
    def backward(ctx: Any, per_token: Tensor, upstream: Tensor, *_: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("Second derivatives of a sharded loss are not available.")
        # Read once: hooks that offload or recompute do their work at every reading.
        tensors = ctx.saved_tensors
        inputs = Inputs._make((*tensors[:NUM_TENSORS], *ctx.others))
        scores = Scores(*tensors[NUM_TENSORS:])
        if ctx.reduction == "mean":
            mass = total_mass(scores.loss == torch.inf, inputs.mass)
            upstream = upstream / torch.where(mass == 0, 1, mass)
        # Handed over, not copied; a second backward pass makes new ones.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            gradients = _Gradients(inputs, ctx.needs_input_grad[:NUM_DIFFERENTIABLE])
            upstream = per_token if ctx.reduction == "none" else upstream
            with without_autocast(upstream.device):
                _recompute(inputs, scores, upstream, ctx.shard, ctx.size, gradients)
        else:
            gradients.scale(upstream)
        if gradients.context is not None:
            all_reduce_sum(gradients.context, ctx.shard)
        return (*gradients.in_dtypes_of(inputs), *[None] * 11)


class _Gradients:
    """Of context, log_weight, weight, bias and extra, in at least float32; None if not wanted."""

    def __init__(self, inputs: Inputs, wanted: tuple[bool, ...]) -> None:
        dtype = at_least_float32(inputs.context.dtype)
        given: Sequence[Any] = inputs[:NUM_DIFFERENTIABLE]
        self.context, self.log_weight, self.weight, self.bias, self.extra = (
            x.new_zeros(x.shape, dtype=dtype) if want and x is not None else None
            for want, x in zip(wanted, given, strict=True)
        )

    def add(
        self, part: Inputs, scores: Scores, tokens: slice, slope: Tensor, factor: Tensor | None
    ) -> None:
        """What one chunk contributes; impossible targets contribute nothing.

        Args:
            slope: of the tokens' losses in the logits (R, V), but for the factor.
            factor: (n, K).
        """
        scale = torch.ones_like(scores.loss) if part.token_weight is None else part.token_weight
        scale = scale.masked_fill(scores.loss == torch.inf, 0.0)[:, None]  # (n, 1)
        if self.extra is not None and scores.d_extra is not None:
            self.extra[tokens] = scores.d_extra * scale
        if self.log_weight is not None:
            self.log_weight[tokens] = scores.d_log_weight * scale
        factor = scale.expand(scores.lse.shape) if factor is None else factor * scale  # (n, K)
        self._add_products(part, tokens, slope, factor.reshape(-1, 1))

    def scale(self, factor: Tensor) -> None:
        for gradient in self._all():
            if gradient is not None:
                gradient.mul_(factor)

    def in_dtypes_of(self, inputs: Inputs) -> list[Tensor | None]:
        given: Sequence[Any] = inputs[:NUM_DIFFERENTIABLE]
        return [
            None if g is None else g.to(x.dtype) for g, x in zip(self._all(), given, strict=True)
        ]

    def _add_products(self, part: Inputs, tokens: slice, slope: Tensor, factor: Tensor) -> None:
        rows = part.context.reshape(-1, part.context.shape[-1])  # (R, E)
        if self.bias is not None:
            self.bias.addmv_(slope.T, factor.squeeze(1))
        slope = slope.to(rows.dtype)
        if self.context is not None:
            out = self.context[tokens].view(rows.shape)
            torch.mul(slope @ part.weight, factor, out=out)
        if self.weight is not None:
            thin = (rows * factor).to(rows.dtype)  # (R, E)
            if self.weight.dtype == thin.dtype:
                # As an operator with `out`: flop counters do not know the one in place.
                torch.addmm(self.weight, slope.T, thin, out=self.weight)
            else:
                self.weight.add_(slope.T @ thin)

    def _all(self) -> tuple[Tensor | None, ...]:
        return self.context, self.log_weight, self.weight, self.bias, self.extra


def _scored(
    inputs: Inputs,
    shard: VocabularyShard,
    size: int,
    gradients: _Gradients | None,
    also: tuple[str, ...],
) -> tuple[Scores, dict[str, Tensor]]:
    """The scores of all tokens, a chunk at a time, and of each chunk its gradients."""
    table, found, others = _table(inputs, size), [], []
    for tokens in _slices(inputs, size):
        part = _part(inputs, tokens)
        z, map_slope = _logits(part, table)
        top = row_max(z, shard)  # (R, 1)
        spots = _Spots(part, shard)
        at_target = spots.read(z)  # (R, M)
        z.sub_(top)
        log_q = None if part.smoothing is None else z.clone()  # (R, V)
        e = z.exp_()
        sums, at_target = all_reduce_sums(
            (e.sum(-1, keepdim=True), at_target), shard
        )  # (R, 1), (R, M)
        scores = _scores(part, top + sums.log(), at_target)
        smoothed = None
        if log_q is not None:
            scores, smoothed = _smoothed(part, scores, log_q.sub_(sums.log()), shard)
        found.append(scores)
        others.append(_by_products(also, part, scores, e, sums, shard))
        if gradients is not None:
            slope, factor = _slope(part, scores, e, sums, spots, smoothed)
            slope = slope if map_slope is None else slope.mul_(map_slope)
            gradients.add(part, scores, tokens, slope, factor)
    columns = zip(*found, strict=True)
    scores = Scores._make(None if column[0] is None else torch.cat(column) for column in columns)
    return scores, {name: torch.cat([each[name] for each in others]) for name in also}


def _recompute(
    inputs: Inputs,
    scores: Scores,
    upstream: Tensor,
    shard: VocabularyShard,
    size: int,
    gradients: _Gradients,
) -> None:
    """Add the gradients of Σ upstream · loss; the processes exchange nothing."""
    scale = upstream.expand(len(inputs.target))  # (N,)
    if inputs.token_weight is not None:
        scale = scale * inputs.token_weight
    inputs, table = inputs._replace(token_weight=scale), _table(inputs, size)
    for tokens in _slices(inputs, size):
        part, own = _part(inputs, tokens), Scores._make(index_or_none(x, tokens) for x in scores)
        z, map_slope = _logits(part, table)
        z.sub_(own.lse.reshape(-1, 1))
        smoothed = None if part.smoothing is None else _posteriors(part, z)[1]
        ones = z.new_ones(len(z), 1)
        slope, factor = _slope(part, own, z.exp_(), ones, _Spots(part, shard), smoothed)
        slope = slope if map_slope is None else slope.mul_(map_slope)
        gradients.add(part, own, tokens, slope, factor)


class _Spots:
    """Where in the rows that are here the targets of a chunk are."""

    def __init__(self, part: Inputs, shard: VocabularyShard) -> None:
        target = part.target.repeat_interleave(part.log_weight.shape[1], 0)  # (R, M)
        self.is_here = (target >= shard.start) & (target < shard.stop)
        self.index = (target - shard.start).masked_fill(~self.is_here, 0)

    def read(self, table: Tensor) -> Tensor:
        """The entries of a table (R, V) at the targets (R, M), 0 at those that are elsewhere."""
        if not table.shape[1]:
            return table.new_zeros(self.index.shape)
        return table.gather(1, self.index).masked_fill(~self.is_here, 0.0)

    def subtract(self, table: Tensor, values: Tensor) -> Tensor:
        """The table without the values (R, M) at the targets that are here, in place."""
        if not table.shape[1]:
            return table
        return table.scatter_add_(1, self.index, -values.masked_fill(~self.is_here, 0.0))


def _scores(part: Inputs, lse: Tensor, at_target: Tensor) -> Scores:
    """From log-sum-exps (R, 1) and target logits (R, M) of the whole vocabulary."""
    log_weight = part.log_weight
    n, K = log_weight.shape
    joint = log_weight[..., None] + (at_target - lse).unflatten(0, (n, K))  # (n, K, M)
    if part.extra is not None:
        joint = torch.cat((joint, part.extra[..., None]), 1)  # (n, K + J, M)
    log_p = joint.logsumexp(1, keepdim=True)  # (n, 1, M)
    posterior = (joint - log_p).exp().masked_fill(log_p == -torch.inf, 0.0)  # (n, K + J, M)
    if part.amount is not None:
        posterior = posterior * part.amount[:, None]
    of_each = posterior.sum(-1)  # (n, K + J)
    loss, coefficient, d_log_weight = (
        weighted_sum(-log_p[:, 0], part.amount),
        of_each[:, :K],
        -of_each,
    )
    lse = lse.view(n, K)
    if part.z_loss:
        penalty = part.z_loss * log_weight.exp() * lse  # (n, K)
        loss, coefficient = loss + (penalty * lse).sum(-1), coefficient + 2 * penalty
        d_log_weight = torch.cat((d_log_weight[:, :K] + penalty * lse, d_log_weight[:, K:]), 1)
    d_extra = None if part.extra is None else d_log_weight[:, K:]
    return Scores(loss, lse, coefficient, posterior[:, :K], d_log_weight[:, :K], d_extra)


def _smoothed(
    part: Inputs, scores: Scores, log_q: Tensor, shard: VocabularyShard
) -> tuple[Scores, Tensor]:
    """The scores with label smoothing, and s_v times the posterior of each component (n, K, V)."""
    loss, smoothed = _posteriors(part, log_q)
    loss, sums = all_reduce_sums((loss, smoothed.sum(-1)), shard)  # (n,), (n, K)
    scores = scores._replace(
        loss=scores.loss + loss,
        coefficient=scores.coefficient + sums,
        d_log_weight=scores.d_log_weight - sums,
    )
    return scores, smoothed


def _posteriors(part: Inputs, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """-Σ_v s_v log p_v (n,) over what is here, and s_v · posterior of each component (n, K, V)."""
    assert part.smoothing is not None
    log_weight = part.log_weight[..., None]  # (n, K, 1)
    joint = log_q.unflatten(0, part.log_weight.shape) + log_weight  # (n, K, V)
    log_p = joint.logsumexp(1)  # (n, V)
    posterior = joint.sub_(log_p[:, None]).exp_().mul_(part.smoothing)
    # A token that no component can predict has no posterior.
    posterior.masked_fill_((log_p == -torch.inf)[:, None], 0.0)
    return weighted_sum(-log_p, part.smoothing), posterior


def _slope(
    part: Inputs,
    scores: Scores,
    e: Tensor,
    sums: Tensor,
    spots: _Spots,
    smoothed: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """The slope in the logits (R, V), in place of e, and what its rows are to be multiplied with.

    Args:
        e: e / sums are the softmaxes, (R, V).
        sums: (R, 1).
    """
    is_plain = part.target.shape[1] == 1 and smoothed is None and not part.z_loss
    # The sums may be too large for float16.
    if is_plain and part.context.dtype != torch.float16:
        factor = scores.coefficient / sums.view(scores.lse.shape)  # (n, K)
        return spots.subtract(e, sums), factor
    slope = e.mul_(scores.coefficient.reshape(-1, 1) / sums)
    if smoothed is not None:
        slope.sub_(smoothed.view(slope.shape))
    return spots.subtract(slope, scores.posterior.reshape(spots.index.shape)), None


def _by_products(
    also: tuple[str, ...],
    part: Inputs,
    scores: Scores,
    e: Tensor,
    sums: Tensor,
    shard: VocabularyShard,
) -> dict[str, Tensor]:
    found = {"lse": scores.lse}
    if "prediction" in also or "entropy" in also:
        n, K = scores.lse.shape
        factor = part.log_weight.exp() / sums.view(n, K)  # (n, K)
        p = torch.einsum("nk,nkv->nv", factor, e.unflatten(0, (n, K)))  # (n, V)
        found["entropy"] = all_reduce_sum(torch.special.entr(p).sum(-1), shard)
        found["prediction"] = row_argmax(p, shard)
    return {name: found[name] for name in also}


def _tokens_per_chunk(inputs: Inputs, chunk_bytes: int | None, shard: VocabularyShard) -> int:
    """The same in every process: as many as the one with the most rows can hold."""
    itemsize = at_least_float32(inputs.context.dtype).itemsize
    # Smoothing keeps three more tables: log-probabilities, posteriors, and what makes them.
    num_tables = 1 if inputs.smoothing is None else 4
    rows = num_tables * inputs.context.shape[1]
    # A vocabulary may be smaller than the number of processes.
    row_bytes = max(1, shard.most_rows) * itemsize
    return tokens_per_chunk(rows, row_bytes, chunk_bytes, inputs.context.device)


def _slices(inputs: Inputs, size: int) -> list[slice]:
    """Chunks of tokens; an empty one if there are no tokens."""
    return [slice(start, start + size) for start in range(0, max(1, len(inputs.context)), size)]


def _table(inputs: Inputs, size: int) -> Tensor:
    N, K, _ = inputs.context.shape
    return new_table(inputs.context, min(N, size) * K, len(inputs.weight))


def _part(inputs: Inputs, tokens: slice) -> Inputs:
    rows: dict[str, Any] = {
        name: index_or_none(getattr(inputs, name), tokens)
        for name in ("context", "log_weight", "extra", "target", "amount", "token_weight")
    }
    return inputs._replace(**rows)


def _logits(part: Inputs, table: Tensor) -> tuple[Tensor, Tensor | None]:
    """φ(W row + b) in the table (R, V), and φ′."""
    rows = part.context.reshape(-1, part.context.shape[-1])  # (R, E)
    z = table[: len(rows)]
    if part.bias is None:
        torch.mm(rows, part.weight.T, out=z)
    else:
        torch.addmm(part.bias, rows, part.weight.T, out=z)
    z = z.to(at_least_float32(z.dtype))
    return (z, None) if part.logit_map is None else part.logit_map.with_slope(z)
