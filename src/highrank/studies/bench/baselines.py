"""The variants of `bench loss`: implementations of the mixture's loss, and its lower bound.

Each does one forward and backward pass: the mean loss, and its gradients.

N tokens, K components, R = rows of a chunk (its tokens · K), E embedding size, V vocabulary,
D hidden size.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.ops.linear_cross_entropy import linear_cross_entropy
from highrank.ops.loss.chunks import tokens_per_chunk
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.studies.bench.harness import Variant

SEED = 0
# Standard deviation of the logits.
LOGIT_SCALE = 2.0
# The official code adds it to each probability before the logarithm.
EPSILON = 1e-8


@dataclass(frozen=True)
class Shape:
    """The sizes that the loss sees in one step of a model."""

    name: str
    num_tokens: int
    num_components: int
    embedding_size: int
    vocab_size: int
    hidden_size: int
    """It enters only the size of the softmax with as many parameters."""

    @property
    def softmax_size(self) -> int:
        """The context size E' at which a softmax has as many parameters as the mixture."""
        D, K, E, V = self.hidden_size, self.num_components, self.embedding_size, self.vocab_size
        mixture = D * K + D * K * E + K * E + V * E + V
        # A softmax has D · E' + E' + V · E' + V.
        return max(1, round((mixture - V) / (D + 1 + V)))


SHAPES = {
    shape.name: shape
    for shape in (
        # A batch of the paper's models: 12 × 70 tokens of Penn Treebank, 5 × 70 of WikiText-2.
        Shape("ptb", 840, 15, 280, 10_000, 620),
        Shape("wt2", 350, 15, 300, 33_278, 650),
        # The vocabulary of GPT-2, and one of the size that larger models have.
        Shape("gpt2", 512, 4, 256, 50_257, 768),
        Shape("wide", 256, 8, 256, 131_072, 1024),
        # One softmax, where torch has a fused loss of its own.
        Shape("one-small", 64, 1, 64, 1_000, 64),
        Shape("one", 1024, 1, 256, 32_000, 256),
        Shape("one-gpt2", 4096, 1, 768, 50_257, 768),
    )
}
# A vocabulary and one of eight times its size.
GROWTH = (
    Shape("small vocabulary", 256, 8, 64, 32_768, 512),
    Shape("large vocabulary", 256, 8, 64, 262_144, 512),
)
# Large enough for the kernels of the real shapes, small enough to leave no memory behind.
TINY = Shape("tiny", 64, 2, 32, 1000, 32)


class Inputs(NamedTuple):
    context: Tensor  # (N, K, E)
    log_weight: Tensor  # (N, K)
    weight: Tensor  # (V, E)
    bias: Tensor  # (V,)
    target: Tensor  # (N,)


Loss = Callable[[Inputs], Tensor]


@lru_cache(maxsize=1)
def mixture_inputs(shape: Shape) -> Inputs:
    """Inputs that the variants of a shape share; all but the targets require gradients."""
    return _inputs(shape, shape.num_components, shape.embedding_size)


def softmax_inputs(shape: Shape) -> Inputs:
    """Inputs of one softmax with as many parameters: K = 1, E' instead of E."""
    return _inputs(shape, 1, shape.softmax_size)


def _inputs(shape: Shape, K: int, E: int) -> Inputs:
    random = torch.Generator().manual_seed(SEED)
    N, V = shape.num_tokens, shape.vocab_size
    context = torch.randn(N, K, E, generator=random)
    log_weight = torch.randn(N, K, generator=random).log_softmax(-1)
    weight = torch.randn(V, E, generator=random).mul_(LOGIT_SCALE / E**0.5)
    bias = torch.randn(V, generator=random)
    target = torch.randint(V, (N,), generator=random)
    for tensor in (context, log_weight, weight, bias):
        tensor.requires_grad_()
    # The weight of one component is 1, and has no gradient.
    log_weight = log_weight if K > 1 else torch.zeros(N, 1)
    return Inputs(context, log_weight, weight, bias, target)


def variants(shape: Shape, chunk_bytes: int | None, rows: int) -> list[Variant]:
    """All of them.

    Args:
        chunk_bytes: memory for the logits of one chunk of tokens, where this package chunks.
        rows: of a chunk of the composition.
    """
    fused = partial(package_loss, "fused", chunk_bytes)
    prepared: dict[str, Callable[[Shape], Callable[[], float | None]]] = {
        "matmul": partial(prepare_matmul, chunk_bytes),
        "fused": partial(prepare, fused),
        "chunked": partial(prepare, partial(package_loss, "chunked", chunk_bytes)),
        "compiled": partial(prepare_compiled, chunk_bytes),
        "composition": partial(prepare, partial(composition_loss, rows)),
        "original": partial(prepare, original_loss),
        "log-space": partial(prepare, log_space_loss),
        "softmax": partial(prepare, fused, make_inputs=softmax_inputs),
    }
    notes = {
        "composition": f"chunks of {rows} rows",
        "softmax": f"context size {shape.softmax_size}",
    }
    skipped = {"composition": missing_composition()}
    if not shutil.which("c++"):
        skipped["compiled"] = "torch.compile needs a C++ compiler"
    return [
        Variant(
            name=name,
            prepare=partial(prepare_shape, shape),
            warm_up=partial(prepare_shape, TINY),
            note=notes.get(name, ""),
            skip=skipped.get(name),
        )
        for name, prepare_shape in prepared.items()
    ]


def prepare(
    loss: Loss, shape: Shape, make_inputs: Callable[[Shape], Inputs] = mixture_inputs
) -> Callable[[], float]:
    """One forward and backward pass, to context, log_weight, weight and bias; it returns the loss.

    The gradients are made and dropped.
    """
    inputs = make_inputs(shape)
    differentiable = [tensor for tensor in inputs[:4] if tensor.requires_grad]

    def work() -> float:
        value = loss(inputs)
        torch.autograd.grad(value, differentiable)
        return value.item()

    return work


def prepare_compiled(chunk_bytes: int | None, shape: Shape) -> Callable[[], float]:
    """As `fused`, in a graph of torch.compile."""
    loss = partial(package_loss, "auto", chunk_bytes)
    return prepare(torch.compile(loss, dynamic=True, fullgraph=True), shape)


def package_loss(backend: str, chunk_bytes: int | None, inputs: Inputs) -> Tensor:
    """This package's loss; for one component that of one softmax."""
    context, log_weight, weight, bias, target = inputs
    if context.shape[1] == 1 and backend == "fused" and chunk_bytes is None:
        return linear_cross_entropy(context.squeeze(1), weight, target, linear_bias=bias)
    return mixture_cross_entropy(
        context, log_weight, weight, target, bias=bias, backend=backend, chunk_bytes=chunk_bytes
    )


def original_loss(inputs: Inputs) -> Tensor:
    return F.nll_loss(original_log_prob(*inputs[:4]), inputs.target)


def original_log_prob(
    context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """As the paper's official code: every probability (..., K, V), and an epsilon."""
    prob = F.linear(context, weight, bias).softmax(-1)  # (..., K, V)
    prob = (prob * log_weight.exp()[..., None]).sum(-2)  # (..., V)
    return prob.add_(EPSILON).log()


def log_space_loss(inputs: Inputs) -> Tensor:
    """Tables of log-probabilities; for one component torch's two calls."""
    context, _, weight, bias, target = inputs
    if context.shape[1] == 1:
        return F.cross_entropy(F.linear(context.squeeze(1), weight, bias), target)
    return F.nll_loss(dense_log_prob(*inputs[:4]), target)


def dense_log_prob(
    context: Tensor, log_weight: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """As mixtures are usually written: exact, every log-probability (..., K, V) at once."""
    log_p = F.linear(context, weight, bias).log_softmax(-1)  # (..., K, V)
    return (log_weight[..., None] + log_p).logsumexp(-2)  # (..., V)


def composition_loss(rows: int, inputs: Inputs) -> Tensor:
    """PyTorch's chunked loss of each component, and a logsumexp over the components if several."""
    context, log_weight, weight, bias, target = inputs
    N, K, E = context.shape
    nll = F.linear_cross_entropy(
        context.reshape(N * K, E),
        weight,
        target.repeat_interleave(K),
        linear_bias=bias,
        reduction="none" if K > 1 else "mean",
        options=nn.LinearCrossEntropyOptions(batch_chunk_size=rows),
    )
    if K == 1:
        return nll
    return -(log_weight - nll.view(N, K)).logsumexp(-1).mean()


def missing_composition() -> str | None:
    """Why PyTorch's chunked loss cannot be used here, if it cannot."""
    if hasattr(F, "linear_cross_entropy") and hasattr(nn, "LinearCrossEntropyOptions"):
        return None
    return f"needs torch 2.13 or newer, got {torch.__version__}"


def prepare_matmul(chunk_bytes: int | None, shape: Shape) -> Callable[[], None]:
    """The lower bound: three matrix multiplies on the chunks of `fused`, into existing memory."""
    inputs = mixture_inputs(shape)
    rows, weight = inputs.context.detach().flatten(0, 1), inputs.weight.detach()  # (N · K, E)
    K, V = shape.num_components, shape.vocab_size
    size = tokens_per_chunk(K, V * 4, chunk_bytes, rows.device)
    chunks = rows.split(size * K)  # (R, E) each
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
