"""The output layer of a causal language model of Hugging Face, and a head of ours in its place.

The layer is read, and checked by using it. What is not a linear map with a scale and a softcap that
the configuration names is refused, so that neither an audit nor an upgrade silently forgets a part
of it. B texts, L tokens, D hidden size, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.heads import Head, MixtureHead, head_arguments, head_class
from highrank.heads.extra import ExtendedMixture
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.ops.logit_map import Softcap

# Names that configurations give to a softcap, a factor and a divisor of the logits.
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
OPTIONAL, NO_CAP = ("final_logit_softcapping",), 1e30
FACTORS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
# Tokens with which a model is checked, and a logit far in the bent part of any softcap.
NUM_CHECKED, CHECKED_LOGIT = 8, 100.0
CHUNK_TOKENS = 8192


class LinearHead(Head):
    """A linear output layer as a head: p = softmax(φ(scale · (W hidden + b))).

    φ is a softcap, or nothing. Weights stay in the precision in which they are stored, in copies of
    the head, too: each use converts a chunk of them at a time.

    Args:
        weight: (V, D).
        bias: (V,).
        scale: of the logits, positive.
        softcap: c of φ(z) = c · tanh(z / c).
    """

    weight: Tensor  # type: ignore[assignment]
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        scale: float = 1.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__(weight.shape[1], len(weight))
        if not scale > 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.scale, self.softcap = scale, softcap
        self.logit_map = None if softcap is None else Softcap(softcap)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LinearHead":
        return LinearHead(self.weight, self.bias, scale=self.scale, softcap=self.softcap)

    def cpu(self) -> "LinearHead":
        """A head with the weights on the CPU."""
        bias = None if self.bias is None else self.bias.cpu()
        return LinearHead(self.weight.cpu(), bias, scale=self.scale, softcap=self.softcap)

    @property
    def rank_bound(self) -> int | None:
        if self.logit_map is not None:
            return None
        return self.hidden_size + (1 if self.bias is None else 2)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., V), in the precision of `hidden` (..., D)."""
        # A copy of all weights in another precision can be larger than the model.
        starts = range(0, len(self.weight), CHUNK_TOKENS)
        return torch.cat([self._logits(hidden, slice(i, i + CHUNK_TOKENS)) for i in starts], -1)

    def log_prob_from(self, features: Tensor) -> Tensor:
        return self.logits(features).log_softmax(-1)

    def _logits(self, hidden: Tensor, tokens: slice) -> Tensor:
        weight = self.weight[tokens].to(hidden.dtype)
        bias = None if self.bias is None else self.bias[tokens].to(hidden.dtype)
        logits = F.linear(hidden, weight, bias) * self.scale
        return logits if self.logit_map is None else self.logit_map(logits)


def read_output_layer(model: Any, name: str) -> LinearHead:
    """The layer by the modules and the configuration; `check_output_layer` tests that it is so.

    Args:
        name: of the model, for errors.
    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        found = "none" if layer is None else type(layer).__name__
        raise ValueError(f"the output layer of {name} must be nn.Linear, got {found}")
    config = model.config.get_text_config()
    return LinearHead(
        layer.weight,
        layer.bias,
        scale=(_first_of(config, FACTORS) or 1.0) / (_first_of(config, DIVISORS) or 1.0),
        softcap=_first_of(config, SOFTCAPS),
    )


def has_tied_output(model: Any) -> bool:
    """Whether the output embedding is the input embedding."""
    embedding = model.get_input_embeddings()
    return embedding is not None and embedding.weight is model.get_output_embeddings().weight


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
def check_output_layer(model: Any, layer: LinearHead, name: str) -> None:
    """Refuse a model that does more with its hidden states than the layer does."""
    for largest in (None, CHECKED_LOGIT):
        _check(model, layer, name, largest)


def _check(model: Any, layer: LinearHead, name: str, largest: float | None) -> None:
    """As it is, or with hidden states that are scaled to the `largest` logit."""
    used: list[Tensor] = []

    def scale(hidden: Tensor) -> Tensor:
        if largest is not None:
            plain = LinearHead(layer.weight, layer.bias).logits(hidden.float())
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


class HeadOutputLayer(nn.Module):
    """A head where a model of transformers expects its linear output layer.

    What such a model calls logits are then log-probabilities (..., V): normalised, so that their
    cross-entropy is the loss of the mixture, and sampling and beams need nothing else.

    Args:
        head: gets `scale` · hidden.
        scale: of the model's logits.
    """

    def __init__(self, head: Head, scale: float = 1.0) -> None:
        super().__init__()
        self.head, self.scale = head, scale
        self.passes_hidden = False
        """Whether hidden states are returned as they are: the loss comes later, with targets."""

    @property
    def weight(self) -> nn.Parameter:
        """(V, D), the output embedding."""
        found: nn.Parameter = weight_owner(self.head)[1].weight
        return found

    @property
    def bias(self) -> nn.Parameter | None:
        found: nn.Parameter | None = weight_owner(self.head)[1].bias
        return found

    def forward(self, hidden: Tensor, target: Tensor | None = None, **options: Any) -> Tensor:
        """Log-probabilities; with targets (...) the loss, with options as those of the head."""
        if target is None and self.passes_hidden:
            return hidden
        if self.scale != 1:
            hidden = hidden * self.scale
        if target is None:
            return self.head(hidden)
        loss: Tensor = self.head(hidden, target, **options).loss
        return loss

    def extra_repr(self) -> str:
        return "" if self.scale == 1 else f"scale={self.scale}"


def weight_owner(head: Head) -> tuple[str, Any]:
    """The module with the output embedding and the bias, and its name in the head."""
    return ("softmaxes", head.softmaxes) if isinstance(head, ExtendedMixture) else ("", head)


def share(head: Head, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
    """Give the head the weight (V, D) and the bias (V,) of a linear layer."""
    owner = weight_owner(head)[1]
    found = owner._parameters.get("weight")
    if found is None or found.shape != weight.shape:
        raise ValueError(
            f"head must have one output embedding of {tuple(weight.shape)}, as the model's layer, "
            f"got {type(head).__name__}"
        )
    owner.weight, owner.bias = weight, bias


def head_from(spec: Mapping[str, Any], hidden_size: int, vocab_size: int) -> Head:
    """A head from what a model's configuration says of it.

    Args:
        spec: "kind", a key of `HEADS`; "options" of its constructor; "softcap" of its logits.
    """
    kind, options = spec["kind"], dict(spec["options"])
    check_options(kind, options)
    head = head_class(kind)(hidden_size, vocab_size, **options)
    set_softcap(head, spec["softcap"])
    return head


def set_softcap(head: Head, softcap: float | None) -> None:
    if softcap is None:
        return
    if not isinstance(head, MixtureHead) or head.logit_map is not None:
        raise ValueError(
            f"a model with a softcap of {softcap} must get a mixture of softmaxes of plain logits, "
            f"got {type(head).__name__}"
        )
    head.logit_map = Softcap(softcap)


def check_options(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse names that are no arguments of the head, and heads that need more than one state."""
    found = head_class(kind)
    if found.is_stateful or found.layers != (-1,):
        needs = "earlier tokens" if found.is_stateful else "several layers"
        raise ValueError(f"head must need the last hidden state only, got {kind}, with {needs}")
    known = [name for name in head_arguments(kind) if name not in ("hidden_size", "vocab_size")]
    for name in options:
        if name not in known:
            raise ValueError(f"an option of {kind} must be one of {', '.join(known)}, got {name!r}")


def shifted_loss(
    output: nn.Module,
    hidden: Tensor,
    labels: Tensor | None,
    *,
    shift_labels: Tensor | None = None,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """As `ForCausalLMLoss` of transformers, from hidden states (B, L, D) instead of logits.

    Args:
        labels: (B, L), the tokens themselves: position t predicts label t + 1.
        shift_labels: (B, L), labels that are shifted already.
        num_items_in_batch: what the sum is divided by; None takes the mean over the labels.
    """
    if shift_labels is None:
        assert labels is not None
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.to(hidden.device).reshape(hidden.shape[:-1])
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss: Tensor = output(hidden, target, reduction=reduction, ignore_index=ignore_index)
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch
