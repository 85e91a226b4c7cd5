"""A head of ours where a model of Hugging Face expects its linear output layer.

What such a model calls logits are then log-probabilities: normalised, so that the cross-entropy of
them is the loss of the mixture, and sampling and beams need nothing else. B texts, L tokens,
D hidden size, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from highrank.heads import Head, MixtureHead, head_arguments, head_class
from highrank.heads.bases.extra import ExtendedMixture
from highrank.ops.logit_map import Softcap

LAST_ONLY = "head must need the last hidden state only"


class HeadOutputLayer(nn.Module):
    """Log-probabilities (..., V) of hidden states (..., D), or the loss.

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
    if head.is_stateful:
        raise ValueError(f"{LAST_ONLY}, got {kind}, with earlier tokens")
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
    """Refuse names that are no arguments of the head, and heads that need several layers."""
    if tuple(options.get("layers", head_class(kind).layers)) != (-1,):
        raise ValueError(f"{LAST_ONLY}, got {kind}, with several layers")
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
