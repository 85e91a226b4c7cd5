"""The definition, in eager PyTorch: every other backend is tested against this file.

    loss = w · (-Σ_m a[m] log p(target[m]) - Σ_v s[v] log p(v) + ζ Σ_k exp(log_weight[k]) lse_k²)
    p(v) = Σ_k exp(log_weight[k]) · softmax(φ(W context[k] + b))[v] + Σ_j exp(extra[j])

An ordinary loss has one target a token, a = w = 1, s = 0 and ζ = 0. N tokens, K components,
J further terms, M targets of a token, E embedding size, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from highrank.ops.logit_map import LogitMap
from highrank.ops.loss.targets import reduce_losses, weight_losses, weighted_sum
from highrank.ops.mixed_linear import linear
from highrank.ops.precision import at_least_float32, log_sum


class Inputs(NamedTuple):
    """Inputs of every backend: flat tensors, the differentiable ones first, then constants."""

    context: Tensor  # (N, K, E)
    log_weight: Tensor  # (N, K)
    weight: Tensor  # (V, E)
    bias: Tensor | None  # (V,)
    extra: Tensor | None  # (N, J)
    target: Tensor  # (N, M)
    amount: Tensor | None  # (N, M)
    smoothing: Tensor | None  # (V,)
    token_weight: Tensor | None  # (N,)
    mass: Tensor | None  # (N,)
    logit_map: LogitMap | None = None
    z_loss: float = 0.0

    @property
    def differentiable(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.context, self.log_weight, self.weight, self.bias, self.extra

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return (*self.differentiable, self.target, *self[6:10])

    @property
    def constants(self) -> tuple[LogitMap | None, float]:
        return self.logit_map, self.z_loss


class Request(NamedTuple):
    """Outputs that a backend has to return."""

    reduction: str
    chunk_bytes: int | None
    also: tuple[str, ...]


# The losses of the tokens (N,), detached unless the reduction is "none"; the reduced loss;
# by-products.
Losses = tuple[Tensor, Tensor, dict[str, Tensor]]


def token_losses(inputs: Inputs) -> Tensor:
    """The loss of each token (N,); +inf, without gradient, for an impossible target."""
    logits = _logits(inputs)  # (N, K, V)
    log_q = logits.log_softmax(-1)  # (N, K, V)
    index = inputs.target[:, None].expand(-1, logits.size(1), -1)  # (N, K, M)
    joint = inputs.log_weight[..., None] + log_q.gather(-1, index)  # (N, K, M)
    if inputs.extra is not None:
        joint = torch.cat((joint, inputs.extra[..., None]), 1)  # (N, K + J, M)
    loss = weighted_sum(-log_sum(joint, 1), inputs.amount)  # (N,)
    if inputs.smoothing is not None:
        log_p = log_sum(inputs.log_weight[..., None] + log_q, 1)  # (N, V)
        loss = loss + weighted_sum(-log_p, inputs.smoothing)
    if inputs.z_loss:
        lse = logits.logsumexp(-1)  # (N, K)
        loss = loss + inputs.z_loss * (inputs.log_weight.exp() * lse.square()).sum(-1)
    # The other terms of an impossible target have no gradient, either.
    loss = loss.masked_fill(loss == torch.inf, torch.inf)
    return weight_losses(loss, inputs.token_weight)


def losses(inputs: Inputs, request: Request) -> Losses:
    """Materialises N × K × V numbers; `chunk_bytes` has no meaning here."""
    token_loss, found = token_losses(inputs), by_products(inputs, request.also)
    if request.reduction == "none":
        return token_loss, token_loss, found
    return token_loss.detach(), reduce_losses(token_loss, inputs.mass, request.reduction), found


@torch.no_grad()
def by_products(inputs: Inputs, also: tuple[str, ...]) -> dict[str, Tensor]:
    """Log-sum-exps of the components (N, K), the likeliest token (N,), the entropy (N,)."""
    if not also:
        return {}
    logits = _logits(inputs)  # (N, K, V)
    log_p = (inputs.log_weight[..., None] + logits.log_softmax(-1)).logsumexp(1)  # (N, V)
    found = {
        "lse": logits.logsumexp(-1),
        "prediction": log_p.argmax(-1),
        "entropy": torch.special.entr(log_p.exp()).sum(-1),
    }
    return {name: found[name] for name in also}


def _logits(inputs: Inputs) -> Tensor:
    return component_logits(inputs.context, inputs.weight, inputs.bias, inputs.logit_map)


def component_logits(
    context: Tensor, weight: Tensor, bias: Tensor | None, logit_map: LogitMap | None
) -> Tensor:
    """φ(W context[k] + b), (N, K, V)."""
    logits = linear(context, weight, bias)
    logits = logits.to(at_least_float32(logits.dtype))
    return logits if logit_map is None else logit_map(logits)
