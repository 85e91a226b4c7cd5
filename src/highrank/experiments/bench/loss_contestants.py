"""The ways to the mixture's loss and its gradients, and what they are measured against.

N tokens, K components, R = rows of a chunk (its tokens · K), E embedding size, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.experiments.bench.harness import Contestant
from highrank.experiments.bench.loss_inputs import (
    TINY,
    Inputs,
    Shape,
    mixture_inputs,
    softmax_inputs,
)
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.ops.mixture_cross_entropy.stream import tokens_per_chunk

# What the official code adds to each probability before the logarithm.
EPSILON = 1e-8
Loss = Callable[[Inputs], Tensor]


def contestants(shape: Shape, seed: int, chunk_bytes: int | None, rows: int) -> list[Contestant]:
    """All of them.

    Args:
        chunk_bytes: memory for the logits of one chunk of tokens, where this package chunks.
        rows: of a chunk of the composition.
    """
    fused = partial(our_loss, "fused", chunk_bytes)
    return [
        _contestant("limit", partial(prepare_limit, seed, chunk_bytes), shape),
        mixture_contestant("fused", fused, shape, seed),
        mixture_contestant("chunked", partial(our_loss, "chunked", chunk_bytes), shape, seed),
        composition_contestant("composition", shape, seed, rows),
        mixture_contestant("original", original_loss, shape, seed),
        mixture_contestant("log-space", log_space_loss, shape, seed),
        _contestant(
            "softmax",
            partial(prepare, fused, softmax_inputs, seed),
            shape,
            note=f"context size {shape.softmax_size}",
        ),
    ]


def mixture_contestant(
    name: str, loss: Loss, shape: Shape, seed: int, note: str = "", skip: str | None = None
) -> Contestant:
    return _contestant(name, partial(prepare, loss, mixture_inputs, seed), shape, note, skip)


def composition_contestant(name: str, shape: Shape, seed: int, rows: int) -> Contestant:
    loss, note = partial(composition_loss, rows), f"chunks of {rows} rows"
    return mixture_contestant(name, loss, shape, seed, note, missing_composition())


def prepare(
    loss: Loss, make_inputs: Callable[[Shape, int], Inputs], seed: int, shape: Shape
) -> Callable[[], float]:
    """One forward and backward pass, to context, log_weight, weight and bias; it returns the loss.

    The gradients are made and dropped.
    """
    inputs = make_inputs(shape, seed)
    differentiable = [tensor for tensor in inputs[:4] if tensor.requires_grad]

    def work() -> float:
        value = loss(inputs)
        torch.autograd.grad(value, differentiable)
        return value.item()

    return work


def our_loss(backend: str, chunk_bytes: int | None, inputs: Inputs) -> Tensor:
    """This package's."""
    context, log_weight, weight, bias, target = inputs
    return mixture_cross_entropy(
        context, log_weight, weight, target, bias=bias, backend=backend, chunk_bytes=chunk_bytes
    )


def original_loss(inputs: Inputs) -> Tensor:
    """That of the paper's official code: tables of probabilities, and an epsilon."""
    context, log_weight, weight, bias, target = inputs
    prob = F.linear(context, weight, bias).softmax(-1)  # (N, K, V)
    prob = (prob * log_weight.exp()[..., None]).sum(1)  # (N, V)
    return F.nll_loss(prob.add_(EPSILON).log(), target)


def log_space_loss(inputs: Inputs) -> Tensor:
    """Tables of log-probabilities: exact, and the whole distribution."""
    context, log_weight, weight, bias, target = inputs
    log_p = F.linear(context, weight, bias).log_softmax(-1)  # (N, K, V)
    return F.nll_loss((log_weight[..., None] + log_p).logsumexp(1), target)


def composition_loss(rows: int, inputs: Inputs) -> Tensor:
    """PyTorch's chunked loss of each component, and a logsumexp over the components."""
    context, log_weight, weight, bias, target = inputs
    N, K, E = context.shape
    nll = F.linear_cross_entropy(
        context.reshape(N * K, E),
        weight,
        target.repeat_interleave(K),
        linear_bias=bias,
        reduction="none",
        options=nn.LinearCrossEntropyOptions(batch_chunk_size=rows),
    )
    return -(log_weight - nll.view(N, K)).logsumexp(-1).mean()


def missing_composition() -> str | None:
    """Why PyTorch's chunked loss cannot be used here, if it cannot."""
    if hasattr(F, "linear_cross_entropy") and hasattr(nn, "LinearCrossEntropyOptions"):
        return None
    return f"needs torch 2.13 or newer, got {torch.__version__}"


def prepare_limit(seed: int, chunk_bytes: int | None, shape: Shape) -> Callable[[], None]:
    """The three matrix multiplies alone, on the chunks of `fused`, into memory that is there."""
    inputs = mixture_inputs(shape, seed)
    rows, weight = inputs.context.detach().flatten(0, 1), inputs.weight.detach()  # (N · K, E)
    K, V = shape.num_components, shape.vocab_size
    chunks = rows.split(tokens_per_chunk(K * V * 4, chunk_bytes) * K)  # (R, E) each
    logits = rows.new_empty(len(chunks[0]), V)  # (R, V)
    outs = torch.empty_like(rows).split(len(chunks[0]))  # (R, E) each
    weight_gradient = torch.zeros_like(weight)

    def multiply() -> None:
        for chunk, out in zip(chunks, outs, strict=True):
            z = logits[: len(chunk)]  # (R, V)
            torch.mm(chunk, weight.T, out=z)
            torch.mm(z, weight, out=out)
            weight_gradient.addmm_(z.T, chunk)

    return multiply


def _contestant(
    name: str,
    prepare_shape: Callable[[Shape], Callable[[], float | None]],
    shape: Shape,
    note: str = "",
    skip: str | None = None,
) -> Contestant:
    return Contestant(
        name=name,
        prepare=partial(prepare_shape, shape),
        warm_up=partial(prepare_shape, TINY),
        note=note,
        skip=skip,
    )
