"""The output layer of a causal language model of Hugging Face: read, and checked by using it.

What is not a linear map with a scale and a softcap that the configuration names is refused, so that
neither an audit nor an upgrade silently forgets a part of it. B texts, L tokens, D hidden size,
V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.integrations.library import quiet_transformers

# Names that configurations give to a softcap, a factor and a divisor of the logits.
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
OPTIONAL, NO_CAP = ("final_logit_softcapping",), 1e30
FACTORS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
# Tokens with which a model is checked, and a logit far in the bent part of any softcap.
NUM_CHECKED, CHECKED_LOGIT = 8, 100.0
CHUNK_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class OutputLayer:
    """logits = scale · (W hidden + b), then softcap · tanh(logits / softcap) if there is one."""

    weight: Tensor
    """(V, D), in the precision in which it is stored."""
    bias: Tensor | None
    """(V,)."""
    scale: float
    softcap: float | None
    is_tied: bool
    """Whether the weight is that of the input embedding."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., V), in the precision of `hidden` (..., D)."""
        # A copy of all weights in another precision can be larger than the model.
        starts = range(0, len(self.weight), CHUNK_TOKENS)
        return torch.cat([self._logits(hidden, slice(i, i + CHUNK_TOKENS)) for i in starts], -1)

    def _logits(self, hidden: Tensor, tokens: slice) -> Tensor:
        weight = self.weight[tokens].to(hidden.dtype)
        bias = None if self.bias is None else self.bias[tokens].to(hidden.dtype)
        logits = F.linear(hidden, weight, bias) * self.scale
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()


def read_output_layer(model: Any, name: str) -> OutputLayer:
    """As the modules and the configuration say it; `check_output_layer` says whether it is so.

    Args:
        name: of the model, for errors.
    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        found = "none" if layer is None else type(layer).__name__
        raise ValueError(f"the output layer of {name} must be nn.Linear, got {found}")
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings()
    return OutputLayer(
        weight=layer.weight.detach(),
        bias=None if layer.bias is None else layer.bias.detach(),
        scale=(_first_of(config, FACTORS) or 1.0) / (_first_of(config, DIVISORS) or 1.0),
        softcap=_first_of(config, SOFTCAPS),
        is_tied=embedding is not None and embedding.weight is layer.weight,
    )


def without_map(config: Any) -> dict[str, float | None]:
    """The fields of a configuration that scale or cap logits, with values that do neither."""
    # Most cannot be None; so large a cap is none, to the last digit but one.
    caps = {name: None if name in OPTIONAL else NO_CAP for name in SOFTCAPS}
    fields = {name: cap for name, cap in caps.items() if hasattr(config, name)}
    return fields | {name: 1.0 for name in (*FACTORS, *DIVISORS) if hasattr(config, name)}


def run(model: Any, tokens: Tensor, change: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """The model's logits (B, L, V), with `change` applied to its hidden states (B, L, D)."""
    calls = []

    def before(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        calls.append(inputs[0].shape)
        return (change(inputs[0]), *inputs[1:])

    tokens = tokens.to(model.device)
    layer = model.get_output_embeddings()
    hook = layer.register_forward_pre_hook(before)
    try:
        # Without a mask no token counts as padding; transformers warns about that.
        with quiet_transformers(f"run {name}"):
            logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    finally:
        hook.remove()
    want = (*tokens.shape, layer.weight.shape[1])
    if calls != [want]:
        raise ValueError(
            f"the output layer of {name} must be called once with states {want}, got "
            f"{[tuple(shape) for shape in calls]} from {type(model).__name__}"
        )
    return logits


def probe(model: Any) -> Tensor:
    """Tokens (1, NUM_CHECKED) with which a model is checked."""
    return torch.arange(NUM_CHECKED)[None] % len(model.get_output_embeddings().weight)


@torch.no_grad()
def check_output_layer(model: Any, layer: OutputLayer, name: str) -> None:
    """Refuse a model that does more with its hidden states than the layer does."""
    for largest in (None, CHECKED_LOGIT):
        _check(model, layer, name, largest)


def _check(model: Any, layer: OutputLayer, name: str, largest: float | None) -> None:
    """As it is, or with hidden states that are scaled to the `largest` logit."""
    used: list[Tensor] = []

    def scale(hidden: Tensor) -> Tensor:
        if largest is not None:
            plain = replace(layer, scale=1.0, softcap=None).logits(hidden.float())
            hidden = hidden * (largest / plain.abs().max().clamp_min(1e-9).item())
        used.append(hidden)
        return hidden

    theirs = run(model, probe(model), scale, name).float()
    logits = layer.logits(used[0].float())
    worst = float("nan")
    if theirs.shape == logits.shape:
        worst = (theirs.log_softmax(-1) - logits.log_softmax(-1)).abs().max().item()
    # Written so that nan is refused, too.
    if not worst <= tolerance(largest or logits.abs().max().item(), used[0].dtype):
        raise ValueError(
            f"the output layer of {name} must be a linear map with at most a scale "
            f"and a softcap that its configuration names, got {type(model).__name__} with "
            f"log-probabilities that differ from those by {worst:.3g}"
        )


def tolerance(largest: float, dtype: torch.dtype) -> float:
    """Of values up to `largest`, which are rounded in this precision."""
    return max(1.0, largest) * (1e-4 + 4 * torch.finfo(dtype).eps)


def _first_of(config: Any, names: tuple[str, ...]) -> float | None:
    values = (getattr(config, name, None) for name in names)
    return next((float(v) for v in values if isinstance(v, int | float)), None)
