"""The divergence of two heads' distributions over the whole vocabulary, for distillation.

From hidden states to the loss in memory that does not grow with tokens × vocabulary, for any two
heads. D hidden size, K components, E embedding size, V vocabulary, N tokens; `...` is any leading
dimensions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from highrank.heads.bases.head import Head, flattened
from highrank.heads.bases.mixture import MixtureHead, single
from highrank.heads.bases.past import check_names
from highrank.heads.linear import LinearHead
from highrank.ops.divergence import Direction, check_divergence, divergence
from highrank.ops.divergence.sides import Dense, Softmaxes
from highrank.ops.divergence.stream import streamed_divergence
from highrank.ops.logit_map import LogitMap
from highrank.ops.loss import Reduction, check_reduction
from highrank.ops.loss.targets import reduce_losses
from highrank.ops.mixed_linear import is_wider, linear
from highrank.ops.mixture_log_prob import in_chunks
from highrank.ops.precision import at_least_float32
from highrank.ops.sharding import full_tensor, is_distributed
from highrank.ops.tracing import in_torch_func, is_traced

BACKENDS, IGNORED = ("auto", "dense"), -100


class DivergenceOptions(TypedDict, total=False):
    """Further arguments of `head_kl`."""

    mask: Tensor | None  # (...), bool: the positions that count
    target: Tensor | None  # (...), token ids: positions with -100 count for nothing
    student_past: dict[str, Any]
    """`tokens` and `state` of a student that looks back."""
    teacher_past: dict[str, Any]
    """The same of a teacher."""
    trains_teacher: bool
    """Whether gradients flow to the teacher, too."""
    backend: str
    """"auto", or "dense": log-probabilities of chunks of tokens, by autograd."""
    chunk_bytes: int | None
    """Memory for the logits of one chunk of tokens."""


def head_kl(
    student: nn.Module,
    student_hidden: Tensor,
    teacher: nn.Module,
    teacher_hidden: Tensor,
    direction: Direction = "forward",
    temperature: float = 1.0,
    reduction: Reduction = "mean",
    **options: Unpack[DivergenceOptions],
) -> Tensor:
    """The divergence between two heads' distributions, exact, in nats.

        forward   KL(teacher ‖ student)
        reverse   KL(student ‖ teacher)
        js        ½ KL(teacher ‖ m) + ½ KL(student ‖ m),  m = ½ (teacher + student)

    Gradients flow to the student's hidden states and parameters. Where the first distribution of a
    KL has a token that the second rules out it is +inf, without a gradient.

    Args:
        student, teacher: heads with one vocabulary; or an nn.Linear, its logits being those of a
            softmax; or the output layer of an upgraded model. The sizes of hidden states may
            differ. A head in training mode draws its dropout masks.
        student_hidden, teacher_hidden: (..., D), each of its head, for the same positions.
        direction: "forward", "reverse" or "js".
        temperature: τ: both distributions are softmax(log p / τ) over the vocabulary. For one
            softmax that is dividing the logits by τ. Gradients get smaller by about τ²; the result
            is not multiplied by it.
        reduction: "mean" over the positions that count, "sum", or "none": (...), 0 where a position
            does not count.
        options: mask, target, student_past, teacher_past, trains_teacher, backend and chunk_bytes.
    """
    check_divergence(direction, temperature)
    check_reduction(reduction)
    _check_options(options)
    trains_teacher = options.get("trains_teacher", False)
    s = _read(student, student_hidden, options.get("student_past", {}), True)
    t = _read(teacher, teacher_hidden, options.get("teacher_past", {}), trains_teacher)
    _check_sides(s, t)
    kept = _kept(s.shape, options)
    if kept is not None:
        s, t = s.at(kept), t.at(kept)
    is_plain = options.get("backend", "auto") == "auto" and not trains_teacher
    leaf, request = s.leaves[0], (direction, temperature, reduction, options.get("chunk_bytes"))
    if is_plain and s.softmaxes is not None and not (is_traced(leaf) or in_torch_func()):
        other = t.dense() if t.softmaxes is None else t.softmaxes(t.features)
        token_loss, loss = streamed_divergence(s.softmaxes(s.features), other, *request)
    else:
        token_loss, loss = _dense_divergence(s, t, *request)
    if reduction != "none":
        return loss
    if kept is not None:
        token_loss = token_loss.new_zeros(s.shape.numel()).index_copy(0, kept, token_loss)
    return token_loss.reshape(s.shape)


class _Side(NamedTuple):
    """A head and the features of its tokens."""

    shape: torch.Size
    """Of the positions."""
    features: Any
    """A pytree of tensors (N, …)."""
    log_prob_from: Callable[[Any], Tensor]
    is_trained: bool
    softmaxes: Callable[[Any], Softmaxes] | None
    """From the features, if they make a mixture of softmaxes."""
    vocab_size: int

    def log_prob(self, features: Any) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.is_trained):
            return self.log_prob_from(features)

    @property
    def leaves(self) -> list[Tensor]:
        return tree_flatten(self.features)[0]

    def at(self, index: Tensor | slice) -> "_Side":
        """Some of the tokens."""
        return self._replace(features=tree_map(lambda leaf: leaf[index], self.features))

    def dense(self) -> Dense:
        dtype = at_least_float32(self.leaves[0].dtype)
        return Dense(lambda tokens: self.log_prob(self.at(tokens).features), dtype)


def _dense_divergence(
    student: _Side,
    teacher: _Side,
    direction: Direction,
    temperature: float,
    reduction: Reduction,
    chunk_bytes: int | None,
) -> tuple[Tensor, Tensor]:
    """Chunks of tokens, streamed through autograd: the backward pass recomputes each chunk."""
    leaves, tree = tree_flatten((student.features, teacher.features))

    def chunk_loss(*leaves: Tensor) -> Tensor:
        of_student, of_teacher = tree_unflatten(leaves, tree)
        tables = student.log_prob(of_student), teacher.log_prob(of_teacher)
        return divergence(*tables, direction, temperature)

    row_bytes = student.vocab_size * student.dense().dtype.itemsize
    token_loss = in_chunks(chunk_loss, leaves, row_bytes, chunk_bytes)
    return token_loss, reduce_losses(token_loss, None, reduction)


def _read(head: nn.Module, hidden: Tensor, past: dict[str, Any], is_trained: bool) -> _Side:
    """What the module makes of hidden states (..., D)."""
    inner = getattr(head, "head", None)
    if isinstance(inner, Head):
        # The output layer of an upgraded model.
        layer: Any = head
        return _read(inner, layer.states(hidden), past, is_trained)
    shape = hidden.shape[:-1]
    if isinstance(head, nn.Linear):
        flat = (hidden if is_trained else hidden.detach()).reshape(-1, hidden.shape[-1])
        weight, bias = _whole(head, is_trained)
        log_prob = partial(_linear_log_prob, weight, bias)
        mixture = partial(_linear_softmaxes, weight, bias, None)
        known = None if is_wider(flat, weight) else mixture
        return _Side(shape, flat, log_prob, is_trained, known, head.out_features)
    if not isinstance(head, Head):
        raise TypeError(
            f"student and teacher must be heads or nn.Linear, got {type(head).__name__}"
        )
    check_names(head, past)
    with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
        features = flattened(head.features(hidden, **past), len(shape))
    softmaxes = _softmaxes_of(head, hidden)
    return _Side(shape, features, head.log_prob_from, is_trained, softmaxes, head.vocab_size)


def _softmaxes_of(head: Head, hidden: Tensor) -> Callable[[Any], Softmaxes] | None:
    """The head's features as a mixture of softmaxes of one output embedding, if they are one."""
    if isinstance(getattr(head, "weight", None), Tensor) and is_wider(hidden, head.weight):
        return None
    if isinstance(head, LinearHead) and head.weight.dtype == hidden.dtype:
        bias = None if head.bias is None else head.bias * head.scale
        return partial(_linear_softmaxes, head.weight, bias, head.logit_map, scale=head.scale)
    is_usual = type(head).log_prob_from is MixtureHead.log_prob_from
    if not isinstance(head, MixtureHead) or not is_usual or is_distributed(head.weight):
        return None
    logit_map = head.logit_map
    if isinstance(logit_map, nn.Module):
        return None
    return lambda f: Softmaxes(f.context, f.log_weight, head.weight, head.bias, logit_map)


def _linear_softmaxes(
    weight: Tensor,
    bias: Tensor | None,
    logit_map: LogitMap | None,
    hidden: Tensor,
    scale: float = 1.0,
) -> Softmaxes:
    log_weight, context = single(hidden.unsqueeze(-2) * scale)
    return Softmaxes(context, log_weight, weight, bias, logit_map)


def _whole(layer: nn.Linear, is_trained: bool) -> tuple[Tensor, Tensor | None]:
    """The weight and the bias; those of a teacher are gathered if processes have parts of them."""
    weight, bias = layer.weight, layer.bias
    if not is_distributed(weight):
        return weight, bias
    if is_trained:
        raise ValueError(
            "an nn.Linear that is trained must have its whole weight in each process, got a "
            "DTensor: a `Softmax` with this weight, after `prepare_fsdp`, may have it"
        )
    return full_tensor(weight.detach()), None if bias is None else full_tensor(bias.detach())


def _linear_log_prob(weight: Tensor, bias: Tensor | None, hidden: Tensor) -> Tensor:
    logits = linear(hidden, weight, bias)
    found: Tensor = logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))
    return found


def _kept(shape: torch.Size, options: DivergenceOptions) -> Tensor | None:
    """The positions that count, as indices; None if all do."""
    mask, target = options.get("mask"), options.get("target")
    for name, tensor in (("mask", mask), ("target", target)):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be {tuple(shape)}, got {tuple(tensor.shape)}")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, got {mask.dtype}")
    if target is not None:
        is_target = target != IGNORED
        mask = is_target if mask is None else mask & is_target
    if mask is None:
        return None
    kept = mask.reshape(-1).nonzero().squeeze(1)
    return None if len(kept) == mask.numel() else kept


def _check_options(options: DivergenceOptions) -> None:
    known = DivergenceOptions.__annotations__
    if unknown := set(options) - set(known):
        raise TypeError(f"options must be of {', '.join(known)}, got {sorted(unknown)}")
    if options.get("backend", "auto") not in BACKENDS:
        raise ValueError(f"backend must be one of {BACKENDS}, got {options['backend']!r}")
    chunk_bytes = options.get("chunk_bytes")
    if chunk_bytes is not None and chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be at least 1, got {chunk_bytes}")


def _check_sides(student: _Side, teacher: _Side) -> None:
    if student.vocab_size != teacher.vocab_size:
        raise ValueError(
            f"teacher must have the student's vocabulary of {student.vocab_size}, "
            f"got {teacher.vocab_size}"
        )
    if student.shape != teacher.shape:
        raise ValueError(
            f"teacher_hidden must be for positions {tuple(student.shape)}, "
            f"got {tuple(teacher.shape)}"
        )
