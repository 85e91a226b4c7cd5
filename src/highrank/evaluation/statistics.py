"""Gradient statistics of the training split: what scales the steps of dynamic evaluation.

Krause, Kahembwe, Murray and Renals (2018), arXiv 1709.07432, and their code. For each element of
each parameter, σ = √(mean over batches of g²), where g is the gradient of a batch's mean loss. A
batch is as many steps long as the segments that the evaluation learns from: their --bptt is both.

They are computed once and kept beside the run, in a file whose name has a hash of the weights, the
training split and the sizes of the batches. T time, B batches.
"""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from highrank.data.batches import Streams
from highrank.evaluation.static import Forward, Output, forward_of
from highrank.models.tensors import read_tensors, write_tensors
from highrank.models.weights import without_dropout
from highrank.ops.precision import at_least_float32
from highrank.progress import OnProgress

BATCH_SIZE, SEGMENT = 100, 5
# Tokens that are hashed at once: the corpus may be a memory map larger than memory.
CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class GradientStatistics:
    rms: Mapping[str, Tensor]
    """σ by the parameter's name, in the parameter's shape; a tied parameter once."""
    num_batches: int
    """B."""
    segment: int
    """Steps of a batch."""

    @property
    def num_tensors(self) -> int:
        return len(self.rms)

    @property
    def mean_rms(self) -> float:
        """σ̄: the mean over tensors of each tensor's mean σ."""
        means = [rms.cpu().mean(dtype=torch.float64).item() for rms in self.rms.values()]
        return sum(means) / len(means)


def gradient_statistics(
    model: nn.Module,
    tokens: NDArray[np.integer],
    *,
    batch_size: int = BATCH_SIZE,
    segment: int = SEGMENT,
    on_progress: OnProgress | None = None,
    forward: Forward | None = None,
) -> GradientStatistics:
    """σ of every parameter on the training split, with everything random off.

    The state is carried from a zero start; the model is left as it was.

    Args:
        tokens: the training split.
        segment: steps of each stream in a batch; the evaluation's segments must be as long.
        forward: of a model that is no `LanguageModel`.
    """
    if segment < 1:
        raise ValueError(f"segment must be at least 1, got {segment}")
    data = Streams(tokens, batch_size, next(model.parameters()).device)
    if len(data) < 3:
        raise ValueError(
            f"the corpus must have at least three tokens for each of {batch_size} streams, "
            f"got {len(tokens)} tokens"
        )
    forward, parameters = forward_of(model, forward), dict(model.named_parameters())
    squares = [torch.zeros_like(p, dtype=at_least_float32(p.dtype)) for p in parameters.values()]
    parts, state = list(batches(len(data), segment)), None
    with differentiable(model, parameters.values()):
        for index, (start, length) in enumerate(parts, 1):
            tokens_in, target = data[start : start + length], data[start + 1 : start + 1 + length]
            out = forward_with_graph(forward, tokens_in, target, state)
            state = out.state
            found = gradients(out, list(parameters.values()))
            with torch.no_grad():
                wide = [g.to(s.dtype) for g, s in zip(found, squares, strict=True)]
                torch._foreach_addcmul_(squares, wide, wide)
            if on_progress is not None:
                on_progress(index / len(parts), "gradients on the training split")
    rms = {name: s.div_(len(parts)).sqrt_() for name, s in zip(parameters, squares, strict=True)}
    return GradientStatistics(rms=rms, num_batches=len(parts), segment=segment)


def batches(num_rows: int, segment: int) -> Iterator[tuple[int, int]]:
    """Start and length of each batch: ⌈(T - 2) / segment⌉ of them, as in the published code.

    The last may be short; one of a single step is left out.
    """
    for start in range(0, num_rows - 2, segment):
        yield start, min(segment, num_rows - 1 - start)


def chosen(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Parameter]:
    """The parameters with these names, or of the modules with these names; all if None.

    A tied parameter is chosen by any of its names, and appears under the first.
    """
    parameters = dict(model.named_parameters())
    if names is None:
        return parameters
    found: set[nn.Parameter] = set()
    for name in names:
        of_name = {
            parameter
            for full_name, parameter in model.named_parameters(remove_duplicate=False)
            if f"{full_name}.".startswith(f"{name}.")
        }
        if not of_name:
            known = ", ".join(child for child, _ in model.named_children())
            raise ValueError(
                f"adapt must name parameters, or modules such as {known}, got {name!r}"
            )
        found |= of_name
    return {name: parameter for name, parameter in parameters.items() if parameter in found}


@contextmanager
def differentiable(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Everything random off, and gradients for these parameters only; on exit, as before."""
    saved = [(p, p.requires_grad) for p in model.parameters()]
    with without_dropout(model):
        try:
            model.requires_grad_(False)
            for p in parameters:
                p.requires_grad_(True)
            yield
        finally:
            for p, requires_grad in saved:
                p.requires_grad_(requires_grad)


def forward_with_graph(forward: Forward, tokens: Tensor, target: Tensor, state: Any) -> Output:
    """The output with a graph behind its loss, and a state without one."""
    # The recurrent layers of cuDNN have no backward pass in evaluation mode; torch's own have.
    was_enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        with torch.enable_grad():
            out = forward(tokens, target, state)
    finally:
        torch.backends.cudnn.enabled = was_enabled
    return out._replace(state=tree_map_only(Tensor, Tensor.detach, out.state))


def gradients(out: Output, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, ...]:
    """Of the loss; zeros for a parameter that it does not depend on."""
    return torch.autograd.grad(out.loss, parameters, materialize_grads=True)


def statistics_beside(
    folder: Path,
    model: nn.Module,
    tokens: NDArray[np.integer],
    *,
    batch_size: int = BATCH_SIZE,
    segment: int = SEGMENT,
    on_progress: OnProgress | None = None,
) -> GradientStatistics:
    """As `gradient_statistics`, from folder/statistics-<key>.safetensors if that is there."""
    key = _key(model, tokens, batch_size, segment)
    path = folder / f"statistics-{key[:16]}.safetensors"
    found = _load(path, key, segment)
    if found is None:
        found = gradient_statistics(
            model, tokens, batch_size=batch_size, segment=segment, on_progress=on_progress
        )
        tensors = {name: rms.cpu().contiguous() for name, rms in found.rms.items()}
        try:
            write_tensors(path, tensors, key=key, num_batches=str(found.num_batches))
        except (OSError, SafetensorError) as error:
            # They are complete; only the next evaluation has to make them again.
            warnings.warn(f"{path} could not be kept: {error}", stacklevel=2)
    # In the order and on the device of the parameters: a file has an order of its own.
    rms = {name: found.rms[name].to(p.device) for name, p in model.named_parameters()}
    return replace(found, rms=rms)


def _key(model: nn.Module, tokens: NDArray[np.integer], batch_size: int, segment: int) -> str:
    """A hash of all that the statistics depend on."""
    # Reworded, it would change the names of files that exist.
    digest = hashlib.sha256(f"{batch_size} columns, {segment} steps".encode())
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # As bytes already in torch: numpy does not know bfloat16.
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    for start in range(0, len(tokens), CHUNK):
        digest.update(np.asarray(tokens[start : start + CHUNK]).astype("<i8").tobytes())
    return digest.hexdigest()


def _load(path: Path, key: str, segment: int) -> GradientStatistics | None:
    """None if there are none, or damaged ones: they can be made again."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
        if about.get("key") != key:
            return None
        rms, num_batches = read_tensors(path), int(about["num_batches"])
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    return GradientStatistics(rms=rms, num_batches=num_batches, segment=segment)
