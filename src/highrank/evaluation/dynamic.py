"""Dynamic evaluation: the model learns from each segment of the text after it was scored.

Krause, Kahembwe, Murray and Renals (2018), arXiv 1709.07432, and their code. With θ₀ the trained
weights and g the gradient of a segment's mean loss:

    rms:  θ ← θ + min(λ·σ/σ̄, 1)·(θ₀ - θ) - η·g / (σ + ε)
    sgd:  θ ← θ + λ·(θ₀ - θ) - η·g

σ is the root mean square of each element's gradient over batches of the training split, as many
steps long as the segments: their --bptt is both. It is computed once and kept beside the run.
Three conventions for η, ε and λ are published. With B batches and n parameter tensors:

    paper     σ = √(Σ g² / B)   σ̄ = mean over tensors of mean σ   Krause et al. (2018)
    original  σ = √(Σ g²)       σ̄ = sum over tensors of mean σ    their first code, and Yang et al.
    ms        σ = √(Σ g² / B)   σ̄ = sum over tensors of mean σ    --ms in the code of Yang et al.

So η and ε of "original" are √B times the paper's; λ of both others is n times the paper's. The
conversion is exact with the clipped decay, too: what is clipped is the product λ·σ/σ̄.
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from highrank.data.batches import Streams
from highrank.evaluation.static import (
    Evaluation,
    Forward,
    Output,
    Scored,
    forward_of,
    scored,
    steps,
    summed,
)
from highrank.models.tensors import read_tensors, write_tensors
from highrank.models.weights import restored, without_dropout
from highrank.ops.precision import at_least_float32
from highrank.progress import OnProgress

RULES = ("rms", "sgd")
# Whether σ² is a sum over batches, and σ̄ a sum over tensors, where the paper has means.
CONVENTIONS = {"paper": (False, False), "original": (True, True), "ms": (False, True)}
BATCH_SIZE, SEGMENT = 100, 5
# Tokens that are hashed at once: the corpus may be a memory map larger than memory.
CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DynamicSettings:
    """η, ε and λ as in the paper; `converted` makes them from others."""

    lr: float = 5e-5
    """η, the learning rate."""
    epsilon: float = 2e-5
    """ε: added to σ, so that what had hardly any gradient in training takes no huge steps."""
    decay: float = 2e-3
    """λ: the pull toward the trained weights."""
    segment: int = SEGMENT
    """Tokens that are scored, then learned from, at once."""
    rule: Literal["rms", "sgd"] = "rms"
    """Whether steps are scaled by the gradient statistics; "sgd" has no ε."""
    adapt: tuple[str, ...] | None = None
    """Names of the parameters that learn, or of modules; all if None. It changes nothing else: σ̄
    is always that of the whole model."""

    def __post_init__(self) -> None:
        for name, value in {"lr": self.lr, "decay": self.decay}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {value}")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon}")
        if self.rule == "sgd" and self.decay > 1:
            raise ValueError(f"decay must be at most 1 for the rule sgd, got {self.decay}")
        if self.segment < 1:
            raise ValueError(f"segment must be at least 1, got {self.segment}")


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


def converted(
    settings: DynamicSettings, convention: str, *, num_batches: int, num_tensors: int
) -> DynamicSettings:
    """The settings with lr, epsilon and decay as in the paper.

    Args:
        convention: in which they are given, a key of `CONVENTIONS`.
        num_batches: B, of the gradient statistics.
        num_tensors: n, of the gradient statistics; a tied parameter counts once.
    """
    if convention not in CONVENTIONS:
        names = ", ".join(CONVENTIONS)
        raise ValueError(f"a convention must be one of {names}, got {convention!r}")
    if settings.rule != "rms":
        raise ValueError(f"settings must be of the rule rms to be converted, got {settings.rule}")
    sums_batches, sums_tensors = CONVENTIONS[convention]
    rms, mean = math.sqrt(num_batches) ** -sums_batches, num_tensors**-sums_tensors
    return replace(
        settings,
        lr=settings.lr * rms,
        epsilon=settings.epsilon * rms,
        decay=settings.decay * mean,
    )


def score_dynamically(
    model: nn.Module,
    tokens: NDArray[np.integer],
    settings: DynamicSettings,
    statistics: GradientStatistics | None = None,
    forward: Forward | None = None,
) -> Generator[Scored, None, None]:
    """One stream, each segment scored by a model that has learned from those before.

    Everything random is off and the state is carried. While the stream is open, the model has
    other weights; it has its own, and its mode, again when the stream is exhausted, closed, or
    ended by an exception. Who may stop before the end should use `contextlib.closing`.

    Args:
        statistics: of the training split, in segments as long; the rule "sgd" needs none.
        forward: of a model that is no `LanguageModel`.
    """
    parameters = select_parameters(model, settings.adapt)
    if settings.rule == "rms":
        _check_statistics(model, statistics, settings.segment)
    forward = forward_of(model, forward)

    def segments() -> Generator[Scored, None, None]:
        weights, state = list(parameters.values()), None
        with _differentiable(model, weights), restored(model):
            update = _updater(parameters, settings, statistics)
            for tokens_in, target in steps(model, tokens, settings.segment):
                out, gradients = _backward(forward, tokens_in, target, state, weights)
                state = out.state
                yield scored(out, target)
                update(gradients)

    return segments()


def evaluate_dynamically(
    model: nn.Module,
    tokens: NDArray[np.integer],
    settings: DynamicSettings,
    statistics: GradientStatistics | None = None,
    on_progress: OnProgress | None = None,
    forward: Forward | None = None,
) -> Evaluation:
    """The mean loss of `score_dynamically`; the model is left as it was, whatever happens."""
    segments = score_dynamically(model, tokens, settings, statistics, forward)
    return summed(segments, len(tokens) - 1, on_progress)


def _updater(
    parameters: dict[str, nn.Parameter],
    settings: DynamicSettings,
    statistics: GradientStatistics | None,
) -> Callable[[Sequence[Tensor]], None]:
    """A function that takes the gradients of a segment's loss and changes the parameters.

    θ₀ is the weights as they are now. What stays the same from segment to segment is computed once.
    """
    weights: list[Tensor] = list(parameters.values())
    trained = [p.detach().clone() for p in weights]

    @torch.no_grad()
    def sgd(gradients: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(weights, trained, settings.decay)
        torch._foreach_add_(weights, list(gradients), alpha=-settings.lr)

    if settings.rule == "sgd":
        return sgd
    assert statistics is not None
    sigmas = [statistics.rms[name].to(p) for name, p in parameters.items()]
    relative = settings.decay / statistics.mean_rms
    pull = [(relative * sigma).clamp_(max=1.0) for sigma in sigmas]
    scale = [settings.lr / (sigma + settings.epsilon) for sigma in sigmas]

    @torch.no_grad()
    def rms(gradients: Sequence[Tensor]) -> None:
        torch._foreach_lerp_(weights, trained, pull)
        torch._foreach_addcmul_(weights, list(gradients), scale, value=-1.0)

    return rms


def _check_statistics(
    model: nn.Module, statistics: GradientStatistics | None, segment: int
) -> None:
    if statistics is None:
        raise ValueError(
            "statistics must be given for the rule rms, got None: "
            "make them with gradient_statistics"
        )
    want = {name: p.shape for name, p in model.named_parameters()}
    have = {name: rms.shape for name, rms in statistics.rms.items()}
    if want != have:
        wrong = min(name for name in want | have if want.get(name) != have.get(name))
        raise ValueError(f"statistics must be of this model, got a difference in {wrong}")
    if statistics.segment != segment:
        raise ValueError(
            f"statistics must be of segments of {segment} tokens, as the settings, "
            f"got {statistics.segment}"
        )


def select_parameters(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Parameter]:
    """The parameters with these names, or of the modules with these names; all if None.

    A tied parameter is selected by any of its names, and appears under the first.
    """
    parameters = dict(model.named_parameters())
    if names is None:
        return parameters
    selected: set[nn.Parameter] = set()
    for name in names:
        inside = {
            parameter
            for full_name, parameter in model.named_parameters(remove_duplicate=False)
            if f"{full_name}.".startswith(f"{name}.")
        }
        if not inside:
            known = ", ".join(child for child, _ in model.named_children())
            raise ValueError(
                f"adapt must name parameters, or modules such as {known}, got {name!r}"
            )
        selected |= inside
    return {name: parameter for name, parameter in parameters.items() if parameter in selected}


@contextmanager
def _differentiable(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
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


def _backward(
    forward: Forward, tokens: Tensor, target: Tensor, state: Any, parameters: Sequence[nn.Parameter]
) -> tuple[Output, tuple[Tensor, ...]]:
    """The output and the gradients of its loss: zeros for what the loss does not depend on."""
    # The recurrent layers of cuDNN have no backward pass in evaluation mode; torch's own have.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        out = forward(tokens, target, state)
        gradients = torch.autograd.grad(out.loss, parameters, materialize_grads=True)
    return out._replace(state=tree_map_only(Tensor, Tensor.detach, out.state)), gradients


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

    The state is carried from a zero start; the model is left as it was. As in the published code,
    the last of the ⌈(T - 2) / segment⌉ batches may be short; one of a single step is left out.

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
    starts, state = range(0, len(data) - 2, segment), None
    reads_position = getattr(model, "reads_position", False)
    with _differentiable(model, parameters.values()):
        for index, start in enumerate(starts, 1):
            rows = data[start : start + segment + 1]  # (T + 1, B)
            weights = list(parameters.values())
            read: Any = forward
            if reads_position:
                read = partial(read, position=data.positions(slice(start, start + len(rows) - 1)))
            out, gradients = _backward(read, rows[:-1], rows[1:], state, weights)
            state = out.state
            with torch.no_grad():
                wide = [g.to(s.dtype) for g, s in zip(gradients, squares, strict=True)]
                torch._foreach_addcmul_(squares, wide, wide)
            if on_progress is not None:
                on_progress(index / len(starts), "gradients on the training split")
    rms = {name: s.div_(len(starts)).sqrt_() for name, s in zip(parameters, squares, strict=True)}
    return GradientStatistics(rms=rms, num_batches=len(starts), segment=segment)


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
