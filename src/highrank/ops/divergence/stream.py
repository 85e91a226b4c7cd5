"""The divergence of a mixture of softmaxes from another distribution, streamed over the vocabulary.

A chunk of tokens is taken through blocks of columns: once for the normalisers, once for the loss
and the sums that its slope needs, once for the gradients. No table is as wide as the vocabulary
unless the logits of a chunk fit the memory it is given: then they are kept, and otherwise computed
again in each pass. Definitions are in `__init__.py`.
N tokens, n of a chunk, K components, R = n · K rows, E embedding size, V vocabulary, v columns of a
block.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from highrank.ops.divergence import Direction
from highrank.ops.divergence.sides import (
    Dense,
    Mixture,
    Sizes,
    Softmaxes,
    Table,
)
from highrank.ops.logit_map import LogitMap
from highrank.ops.loss import check_precision
from highrank.ops.loss.targets import reduce_summed_loss
from highrank.ops.precision import at_least_float32, in_autocast_dtype, without_autocast

LOG_2 = math.log(2)
# Of the slopes, whose logarithms are to the base 2.
UNITS: dict[Direction, float] = {"forward": 1.0, "reverse": LOG_2, "js": LOG_2 / 2}


@dataclass(frozen=True)
class Problem:
    """Arguments of the divergence besides the student's tensors."""

    teacher: Softmaxes | Dense
    logit_map: LogitMap | None
    direction: Direction
    temperature: float
    chunk_bytes: int | None


class Gradients(NamedTuple):
    """Sums over tokens are in at least float32; None where no gradient is wanted."""

    context: Tensor | None
    log_weight: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def streamed_divergence(
    student: Softmaxes,
    teacher: Softmaxes | Dense,
    direction: Direction,
    temperature: float,
    reduction: str,
    chunk_bytes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The divergence of each token (N,) and the reduced one, with gradients to the student.

    They flow through the first with `reduction` "none", and through the second otherwise.

    Args:
        chunk_bytes: memory for the logits of one chunk of tokens; None takes 96 MiB, and for a
            large vocabulary as much as the gradient of the weight, if there is one.
    """
    if isinstance(teacher, Softmaxes):
        teacher = _cast(teacher)
    student = _cast(student)
    problem = Problem(teacher, student.logit_map, direction, temperature, chunk_bytes)
    is_fused = reduction != "none" and torch.is_grad_enabled()
    token_loss, total = _Divergence.apply(*student[:-1], problem, is_fused)
    if reduction == "none":
        return token_loss, token_loss
    return token_loss, reduce_summed_loss(total, token_loss == torch.inf, None, reduction)


def _cast(source: Softmaxes) -> Softmaxes:
    context, weight, bias = in_autocast_dtype(source.context, source.weight, source.bias)
    check_precision(context, weight, bias)
    return source._replace(context=context, weight=weight, bias=bias)


class _Divergence(Function):
    """For a reduced loss the gradients are made in the forward pass, and scaled in the backward."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *tensors, problem, is_fused = arguments
        ctx.save_for_backward(*tensors)
        ctx.problem, ctx.is_fused = problem, is_fused
        wanted = ctx.needs_input_grad[:4] if is_fused else (False,) * 4
        token_loss, ctx.gradients = _stream(tensors, problem, wanted, None)
        if is_fused:
            ctx.mark_non_differentiable(token_loss)
        return token_loss, token_loss.masked_fill(token_loss == torch.inf, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, of_tokens: Tensor, of_total: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = _Divergence._gradients(ctx, of_tokens, of_total)
        if torch.is_grad_enabled():
            # Not constants, as what is made without a graph would be taken for.
            leaves = [x for x in (*ctx.saved_tensors, of_tokens, of_total) if x is not None]
            found = [None if g is None else _OnceOnly.apply(g, *leaves) for g in found]
        return *found, None, None

    @staticmethod
    def _gradients(ctx: Any, of_tokens: Tensor, of_total: Tensor) -> list[Tensor | None]:
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[:4]
        # Handed over, not copied; a second backward pass makes them again.
        gradients, ctx.gradients = ctx.gradients if ctx.is_fused else None, None
        if gradients is None:
            upstream = None if ctx.is_fused else of_tokens + of_total
            gradients = _stream(tensors, ctx.problem, wanted, upstream)[1]
        if ctx.is_fused:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(of_total)
        pairs = zip(gradients, tensors, strict=True)
        return [None if g is None else g.to(x.dtype) for g, x in pairs]


class _OnceOnly(Function):
    """A gradient that refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *leaves: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> None:
        raise RuntimeError(
            "Second derivatives of a streamed divergence are not available: use backend='dense'."
        )


def _stream(
    tensors: Sequence[Any], problem: Problem, wanted: Sequence[bool], upstream: Tensor | None
) -> tuple[Tensor, Gradients]:
    """The divergence of each token (N,), and the gradients of Σ upstream · divergence."""
    student = Softmaxes._make((*tensors, problem.logit_map))
    context, teacher = student.context, problem.teacher
    of_teacher = teacher.context.dtype if isinstance(teacher, Softmaxes) else teacher.dtype
    dtype = torch.promote_types(*map(at_least_float32, (context.dtype, of_teacher)))
    gradients = _new_gradients(tensors, wanted, len(context) > 0)
    sizes = Sizes.of(student, teacher, dtype, problem.chunk_bytes, gradients.weight is not None)
    token_loss = context.new_empty(len(context), dtype=dtype)
    with torch.no_grad(), without_autocast(context.device):
        work = _Work(student, problem, sizes, dtype)
        for start in range(0, len(context), sizes.tokens):
            tokens = slice(start, min(start + sizes.tokens, len(context)))
            scale = None if upstream is None else upstream[tokens].to(dtype)
            token_loss[tokens] = work.chunk(tokens, gradients, scale)
    return token_loss, gradients


def _new_gradients(tensors: Sequence[Any], wanted: Sequence[bool], has_tokens: bool) -> Gradients:
    """Zeros; that of the weight, the largest, is overwritten by the first chunk if there is one."""

    def new(name: str, tensor: Tensor) -> Tensor:
        make = torch.empty_like if name == "weight" and has_tokens else torch.zeros_like
        return make(tensor, dtype=at_least_float32(tensor.dtype))

    triples = zip(Gradients._fields, tensors, wanted, strict=True)
    return Gradients(*(new(name, tensor) if want else None for name, tensor, want in triples))


class _Work:
    """Passes over the blocks of a chunk."""

    def __init__(
        self, student: Softmaxes, problem: Problem, sizes: Sizes, dtype: torch.dtype
    ) -> None:
        common = problem.temperature, sizes, dtype
        self.student, self.problem = Mixture(student, *common), problem
        self.teacher: Mixture | Table
        if isinstance(problem.teacher, Softmaxes):
            self.teacher = Mixture(problem.teacher, *common)
        else:
            self.teacher = Table(problem.teacher, *common)
        self.num_blocks = len(self.student.weights)
        # Two kept tables of logits then have room for all that a slope is made from.
        is_direct = isinstance(self.teacher, Mixture) and self.teacher.is_direct
        self.has_room = sizes.keeps and is_direct and self.student.is_direct

    def chunk(self, tokens: slice, gradients: Gradients, upstream: Tensor | None) -> Tensor:
        """The divergence of each token (n,); its gradients are added."""
        for side in (self.student, self.teacher):
            side.begin(tokens)
        self.is_careful = self.student.has_impossible or self.teacher.has_impossible
        is_forward, (n, K) = self.problem.direction == "forward", self.student.shape
        wants = any(gradient is not None for gradient in gradients)
        loss, total, moved = self._zeros(n), None, None
        stores = wants and self.has_room
        # The slope of one softmax needs no sums.
        is_simple = is_forward and K == 1 and not self.is_careful and not stores
        if not (is_simple and wants):
            total, moved = self._measure(loss, K > 1 and wants, stores)
        if not wants:
            return loss
        scale = torch.full_like(loss, UNITS[self.problem.direction] / self.problem.temperature)
        # No simple divergence is infinite.
        scale = scale.masked_fill_(loss == torch.inf, 0.0)
        scale = scale if upstream is None else scale * upstream
        slopes = _Slopes(self.student, gradients, scale, beta=0.0 if tokens.start == 0 else 1.0)
        for index in range(self.num_blocks):
            if stores:
                block, (part, p) = None, self._stored(index)
            else:
                block = self.student.block(index, slope=True)
                part, p = self._pieces(block.bits, index, loss if is_simple else None)
            slope = (p if total is None else p.mul_(total)).sub_(part)[:, None]  # (n, 1, v)
            slopes.add(index, slope if block is None else self.student.slope(block, slope, moved))
        slopes.finish(tokens, moved)
        return loss

    def _measure(
        self, loss: Tensor, moves: bool, stores: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Σ_v part (n, 1), None if it is 1, and the gradient in the log-weights (n, K, 1).

        Args:
            loss: (n,), to which the divergences are added.
            moves: whether there is to be a gradient in the log-weights.
            stores: whether `part` and p are left in the place of the logits.
        """
        n, K = self.student.shape
        total = None if self.problem.direction == "forward" else self._zeros(n, 1)
        of_part, of_p = self._zeros(n, K, 1), self._zeros(n, K, 1)
        for index in range(self.num_blocks):
            block = self.student.block(index)
            part, p = self._pieces(block.bits, index, loss, stores)
            if total is not None:
                total += part.sum(-1, keepdim=True)
            if moves:
                posterior = self.student.posterior(block)  # (n, K, v)
                of_part += posterior @ part[..., None]
                of_p += posterior @ p[..., None]
        if not moves:
            return total, None
        of_p = of_p if total is None else of_p.mul_(total[..., None])
        return total, of_p.sub_(of_part)

    def _stored(self, index: int) -> tuple[Tensor, Tensor]:
        """Where `part` and p of a block are, (n, v) each."""
        assert isinstance(self.teacher, Mixture)
        return self.student.tables[index], self.teacher.tables[index]

    def _pieces(
        self, bits: Tensor, index: int, loss: Tensor | None, stores: bool = False
    ) -> tuple[Tensor, Tensor]:
        """`part` and the student's p, each (n, v); the block's divergence is added to the loss.

        With total = Σ_v part the slope of the divergence in log p is total · p - part, in units of
        `UNITS`.
        """
        other, unit = self.teacher.bits(index), UNITS[self.problem.direction]
        is_js = self.problem.direction == "js"
        place, place_of_p = (bits, None) if is_js else (other, bits)
        if stores:
            place, place_of_p = self._stored(index)
        if self.problem.direction == "forward":
            ratio = None if loss is None else other - bits  # (n, v)
            p, q = torch.exp2(bits, out=place_of_p), torch.exp2(other, out=place)
            if loss is not None and ratio is not None:
                loss.add_(self._finite(ratio.mul_(q), torch.inf).sum(-1), alpha=LOG_2)
            return q, p
        if self.problem.direction == "reverse":
            ratio, p = other.sub_(bits), torch.exp2(bits, out=place_of_p)
            part = self._finite(torch.mul(ratio, p, out=place), torch.inf)
            if loss is not None:
                loss.sub_(part.sum(-1), alpha=unit)
            return self._finite(part, 0.0), p
        p, q = torch.exp2(bits, out=place_of_p), other.exp2()
        # One logarithm for both: p log m/p and q log m/q, m = (p + q) / 2.
        log_m = torch.lerp(p, q, 0.5).clamp_(min=torch.finfo(p.dtype).tiny).log2_()
        part = self._finite(torch.mul(torch.sub(log_m, bits, out=bits), p, out=place), 0.0)
        if loss is not None:
            rest = self._finite(log_m.sub_(other).mul_(q), 0.0)
            loss.sub_(part.sum(-1).add_(rest.sum(-1)), alpha=unit)
        return part, p

    def _finite(self, terms: Tensor, infinity: float) -> Tensor:
        """Terms p · log ratio, 0 where p is 0 and the ratio is infinite."""
        if not self.is_careful:
            return terms
        return terms.nan_to_num_(nan=0.0, posinf=infinity, neginf=-infinity)

    def _zeros(self, *shape: int) -> Tensor:
        return self.student.total_lift.new_zeros(shape)


class _Slopes:
    """Gradients of a chunk from the slopes of its blocks.

    Args:
        scale: (n,), of each token's divergence.
        beta: 0 for the first chunk, which overwrites the gradient of the weight; 1 for the others.
    """

    def __init__(self, student: Mixture, gradients: Gradients, scale: Tensor, beta: float) -> None:
        n, K = student.shape
        self.student, self.gradients, self.scale, self.beta = student, gradients, scale, beta
        width, rows = len(student.weights[0]), student.rows
        self.factor = scale[:, None].expand(n, K).reshape(-1)  # (R,)
        self.scaled = (rows * self.factor[:, None]).to(rows.dtype)  # (R, E)
        self.of_rows = scale.new_zeros(rows.shape)  # (R, E)
        weight, bias = gradients.weight, gradients.bias
        self.of_weights = None if weight is None else weight.split(width)  # (v, E) each
        self.of_biases = None if bias is None else bias.split(width)  # (v,) each

    def add(self, index: int, slope: Tensor) -> None:
        """Add what a block's slope (n, K, v) contributes."""
        slope, weight = slope.flatten(0, 1), self.student.weights[index]  # (R, v)
        if self.of_biases is not None:
            self.of_biases[index].add_(torch.mv(slope.T, self.factor))
        slope = slope.to(weight.dtype)
        if self.gradients.context is not None:
            _add_product(self.of_rows, slope, weight, beta=1.0)
        if self.of_weights is not None:
            _add_product(self.of_weights[index], slope.T, self.scaled, self.beta)

    def finish(self, tokens: slice, moved: Tensor | None) -> None:
        of_context, of_log_weight = self.gradients.context, self.gradients.log_weight
        if of_context is not None:
            of_rows = self.of_rows.mul_(self.factor[:, None])
            of_context[tokens] = of_rows.view(of_context[tokens].shape)
        if of_log_weight is not None and moved is not None:
            of_log_weight[tokens] = moved.squeeze(-1) * self.scale[:, None]


def _add_product(total: Tensor, a: Tensor, b: Tensor, beta: float) -> None:
    """Make beta · total + a @ b of a total that may have more digits; 0 ignores what is in it."""
    if total.dtype == a.dtype:
        total.addmm_(a, b, beta=beta)
    elif beta == 0:
        total.copy_(a @ b)
    else:
        total += a @ b
