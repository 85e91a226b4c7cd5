"""Cross-entropy of a mixture of softmaxes: one public function, several backends.

    -log Σ_k exp(log_weight[k]) · softmax(weight @ context[k] + bias)[target]

The derivation and the bytes each backend needs are in this folder's README.md.
N tokens, K components, M targets of a token, E embedding size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from highrank.ops.loss import (
    ByProduct,
    LossOptions,
    Reduction,
    Target,
    check_arguments,
    check_by_products,
    check_options,
    check_reduction,
    check_targets,
    check_weights,
)
from highrank.ops.loss.targets import (
    Targets,
    drop_ignored,
    index_or_none,
    make_targets,
    shift_targets,
)
from highrank.ops.mixture_cross_entropy import reference, registered
from highrank.ops.mixture_cross_entropy.autograd import chunked_losses, fused_losses
from highrank.ops.mixture_cross_entropy.entropy import entropy_of, with_gradient
from highrank.ops.mixture_cross_entropy.reducer import ShardReducer
from highrank.ops.mixture_cross_entropy.reference import Inputs, Losses, Request
from highrank.ops.mixture_cross_entropy.stream import chunk_size
from highrank.ops.precision import at_least_float32, in_autocast_dtype, without_autocast
from highrank.ops.sharding import (
    VocabularyShard,
    check_same_tokens,
    full_tensor,
    local_rows,
    shard_of,
    with_summed_gradient,
)
from highrank.ops.tracing import in_forward_mode, in_torch_func, is_fake, needs_operators

Backend = Callable[[Inputs, Request], Losses]
Extra = tuple[Tensor, Tensor]

# Each takes flat tensors and returns the losses of the tokens and the reduced loss, in one pass.
BACKENDS: dict[str, Backend] = {
    "reference": reference.losses,
    "chunked": chunked_losses,
    "fused": fused_losses,
}


class MixtureLoss(NamedTuple):
    """The loss of each token, 0 where the target is ignored, and the reduced loss."""

    token_loss: Tensor
    loss: Tensor
    by_products: dict[str, Tensor]
    """Those that `also` names; 0 where the target is ignored, log_weight aside."""


def mixture_cross_entropy(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    target: Target,
    *,
    bias: Tensor | None = None,
    extra: Extra | None = None,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    **options: Unpack[LossOptions],
) -> Tensor:
    """-log Σ_k exp(log_weight[k]) · softmax(weight @ context[k] + bias)[target], reduced.

    Exact: no epsilon, and never a table of K × V probabilities for all tokens. The loss has at
    least float32's precision. A target that no component can predict (a bias of -inf) has loss
    +inf and no gradient: the gradients are those of the batch without it.

    Args:
        context: (..., K, E), the vectors that meet the output embedding.
        log_weight: (..., K), log-probabilities of the components.
        weight: (V, E), the output embedding. The logits are in the precision of the contexts; a
            weight in a lower one is converted in blocks of rows, and never copied as a whole.
        target: (...), integers below V, or `ignore_index`. For distillation two tensors
            (..., M): ids, and probabilities, whose cross-entropy with the mixture is the loss.
        bias: (V,).
        extra: further terms of the mixture, such as a pointer or an n-gram: their log-weights and
            their log-probabilities of the target, each (..., J). All weights sum to one.
        reduction: "mean" over the targets that are not ignored, "sum", or "none".
        ignore_index: a target that counts for nothing.
        logit_map: φ, applied to each logit, such as `Softcap(30.0)`.
        logit_scale: multiplies the logits, bias included, before the map.
        class_weight: (V,), the weight of each token of the vocabulary as a target.
        token_weight: (...), the weight of each position. "mean" divides by the sum of weights.
        label_smoothing: ε; the target is (1 - ε) · one-hot + ε / V.
        z_loss: ζ; adds ζ Σ_k exp(log_weight[k]) · (log-sum-exp of the k-th logits)².
        shift: position t predicts the target at t + shift, along the last dimension of `target`.
        group: processes with a part of the vocabulary and all of the tokens each; None: all.
        shard: start and stop of the vocabulary's rows that are here, as `weight` and `bias`: a part
            for each process, possibly empty. A `weight` that is a DTensor, sharded on dimension 0,
            needs neither. Gradients are whole in every process, of its rows and of the others.
        backend: "fused" computes gradients in the forward pass, for "mean" and "sum"; "chunked"
            recomputes in the backward pass, for any upstream gradient and `torch.func`;
            "reference" is the definition, also in forward mode; "auto" takes the one that can do
            the work and, while compiling or exporting, an operator that compilers know.
        chunk_bytes: memory for the logits of one chunk of tokens; chosen from the shapes if None.
    """
    if "also" in options:
        raise TypeError("also must be left out here, got one: mixture_loss returns by-products")
    found = mixture_loss(
        context,
        log_weight,
        weight,
        target,
        bias=bias,
        extra=extra,
        reduction=reduction,
        ignore_index=ignore_index,
        **options,
    )
    if extra is not None:
        check_weights(log_weight, extra[0])
    return found.loss


def mixture_loss(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    target: Target,
    *,
    bias: Tensor | None = None,
    extra: Extra | None = None,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    also: Sequence[ByProduct] = (),
    **options: Unpack[LossOptions],
) -> MixtureLoss:
    """The loss of `mixture_cross_entropy`, and that of each token from the same pass.

    Gradients flow through `loss`; `token_loss` is detached unless `reduction` is "none".

    Args:
        also: by-products of the pass: "lse" (the log-sum-exp of each component's logits),
            "prediction" (the likeliest token), "entropy" (in nats), "log_weight". Gradients flow
            through "log_weight" and, unless the vocabulary is sharded, through "entropy".
    """
    check_reduction(reduction)
    check_options(options)
    check_by_products(also, extra is not None)
    if shift := options.get("shift", 0):
        target = shift_targets(target, shift)
        context, log_weight = context[..., :-shift, :, :], log_weight[..., :-shift, :]
        extra = None if extra is None else (extra[0][..., :-shift, :], extra[1][..., :-shift, :])
    shard = shard_of(weight, bias, options.get("group"), options.get("shard"))
    if shard is not None:
        context, log_weight = full_tensor(context), full_tensor(log_weight)
        weight, bias = local_rows(weight), None if bias is None else local_rows(bias)
    scale = options.get("logit_scale")
    if scale is not None:
        context = context * scale
        if shard is not None and isinstance(scale, Tensor):
            scale = with_summed_gradient(scale, shard)
        bias = None if bias is None else _scaled(bias, scale)
    context, weight, bias = in_autocast_dtype(context, weight, bias)
    check_arguments(context, log_weight, weight, target, bias, extra, 1 if shard is None else 0)
    vocab_size = len(weight) if shard is None else shard.vocab_size
    dtype = at_least_float32(context.dtype)
    targets = make_targets(target, options, vocab_size, dtype)
    targets, kept = drop_ignored(targets, ignore_index, dtype)
    check_targets(targets.target, vocab_size)
    inputs = _flatten(context, log_weight, weight, bias, extra, targets, kept, options)
    computed = tuple(name for name in also if name != "log_weight")
    request = Request(reduction, options.get("chunk_bytes"), computed)
    with without_autocast(context.device):
        backend = options.get("backend", "auto")
        losses = _choose_backend(backend, reduction, context)
        if shard is not None:
            losses = partial(_sharded_losses, shard=shard, backend=backend)
        token_loss, loss, found = losses(inputs, request)
        if "entropy" in found and shard is None:
            found["entropy"] = _differentiable_entropy(found["entropy"], inputs, request)
    shape = context.shape[:-2]
    token_loss = _unflatten(token_loss, kept, shape)
    found = {name: _unflatten(x, kept, shape) for name, x in found.items()}
    if "log_weight" in also:
        found["log_weight"] = log_weight
    return MixtureLoss(token_loss, token_loss if reduction == "none" else loss, found)


def _scaled(bias: Tensor, scale: float | Tensor) -> Tensor:
    """The bias times the scale; -inf stays -inf, and gives the scale no gradient."""
    impossible = bias == -torch.inf
    return (bias.masked_fill(impossible, 0.0) * scale).masked_fill(impossible, -torch.inf)


def _differentiable_entropy(entropy: Tensor, inputs: Inputs, request: Request) -> Tensor:
    if not torch.is_grad_enabled():
        return entropy
    if needs_operators(inputs.context):
        return entropy_of(*inputs.differentiable[:4], inputs.logit_map)
    return with_gradient(entropy, inputs, request.chunk_bytes)


def _flatten(
    context: Tensor,
    log_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    extra: Extra | None,
    targets: Targets,
    kept: Tensor | None,
    options: LossOptions,
) -> Inputs:
    """The inputs of a backend: a row for each token that is kept."""
    dtype = at_least_float32(context.dtype)
    if extra is not None and options.get("label_smoothing"):
        raise ValueError("label_smoothing must come without extra terms, got both")
    joint = None if extra is None else (extra[0] + extra[1]).to(dtype)
    rows = (
        context.reshape(-1, *context.shape[-2:]),
        log_weight.to(dtype).reshape(-1, log_weight.shape[-1]),
        None if joint is None else joint.reshape(-1, joint.shape[-1]),
    )
    h, log_pi, terms = rows if kept is None else (index_or_none(x, kept) for x in rows)
    assert h is not None and log_pi is not None
    others = options.get("logit_map"), options.get("z_loss", 0.0)
    return Inputs(h, log_pi, weight, bias, terms, *targets, *others)


def _unflatten(values: Tensor, kept: Tensor | None, shape: torch.Size) -> Tensor:
    """Values of the kept tokens (N, …) at their positions (..., …), and 0 elsewhere."""
    if kept is not None:
        zeros = values.new_zeros(shape.numel(), *values.shape[1:])
        values = zeros.index_copy(0, kept, values)
    return values.reshape((*shape, *values.shape[1:]))


def _sharded_losses(
    inputs: Inputs, request: Request, shard: VocabularyShard, backend: str
) -> Losses:
    """The losses where each process has some rows of `weight` and `bias`, and all tokens."""
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "A sharded vocabulary is not for compilers: leave its head to eager mode."
        )
    if backend != "auto":
        raise ValueError(f'backend must be "auto" for a sharded vocabulary, got {backend!r}')
    if inputs.smoothing is not None:
        inputs = inputs._replace(smoothing=inputs.smoothing[shard.start : shard.stop])
    reducer = ShardReducer(shard)
    size = chunk_size(inputs, request.chunk_bytes, reducer)
    check_same_tokens(shard, inputs.context, inputs.target, size)
    losses = chunked_losses if request.reduction == "none" else fused_losses
    return losses(inputs, request, reducer)


def _choose_backend(backend: str, reduction: str, context: Tensor) -> Backend:
    if backend == "auto":
        if torch.compiler.is_compiling() or is_fake(context):
            return registered.losses
        if in_forward_mode():
            return BACKENDS["reference"]
        # torch.func cannot see through gradients that were made in the forward pass.
        return BACKENDS["chunked" if reduction == "none" or in_torch_func() else "fused"]
    if backend == "registered":
        return registered.losses
    if backend not in BACKENDS:
        raise ValueError(f"backend must be auto or one of {list(BACKENDS)}, got {backend!r}")
    if backend != "reference" and in_forward_mode():
        raise ValueError(f'backend must be "auto" or "reference" in forward mode, got {backend!r}')
    if backend == "fused" and reduction == "none":
        raise ValueError(
            'backend must be "chunked" or "reference" for reduction="none", got "fused"'
        )
    if backend == "fused" and in_torch_func():
        raise ValueError(
            'backend must be "chunked" or "reference" inside torch.func transforms, got "fused"'
        )
    return BACKENDS[backend]
