"""A backbone and a head: tokens in, loss of the next tokens out, state carried along.

T time, B sequences, D hidden size.
"""

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from highrank.heads.bases.adaptive import AdaptiveHead
from highrank.heads.bases.component import components_of
from highrank.heads.bases.head import Head
from highrank.models.adaptive_embedding import AdaptiveEmbedding
from highrank.models.backbone import Backbone, BackboneOutput, ParameterGroup, State, map_state
from highrank.ops.loss import Reduction


class LanguageModelOutput(NamedTuple):
    loss: Tensor
    """Negative log-likelihood of the targets, reduced."""
    output: Tensor
    """log p of each target (T, B), 0 where it is ignored."""
    hidden: Tensor
    """(T, B, D), the backbone's last hidden states."""
    state: State
    """Detached: gradients end at the window's boundary."""
    penalty: Tensor | float
    """The term that backbone and head add to the loss in training; 0 in evaluation."""


class Read(NamedTuple):
    """Inputs of the head's predictions."""

    hidden: Tensor
    """(T, B, size), of the layers that the head asks for."""
    past: dict[str, Any]
    """`tokens`, `state` and, where it is known, `position` for a stateful head, else empty."""
    state: State
    """After the window."""
    backbone: BackboneOutput


class LanguageModel(nn.Module):
    """p(token | tokens before), computed window by window.

    Args:
        backbone: reads tokens (T, B), starting in a state.
        head: predicts the next token from the backbone's hidden states.
        tied: whether the head's output embedding is the backbone's input embedding.
    """

    backbone: Backbone
    head: Head

    def __init__(self, backbone: Backbone, head: Head, tied: bool = True) -> None:
        super().__init__()
        size = sum(backbone.layer_sizes[layer] for layer in head.layers)
        if head.hidden_size != size:
            raise ValueError(
                f"the head's hidden_size must be the backbone's {size}, got {head.hidden_size}"
            )
        if head.batch_first:
            raise ValueError("the head must have batch_first=False, got True: windows are (T, B)")
        self.backbone, self.head, self.is_tied = backbone, head, tied
        self.tie_again()
        self.register_load_state_dict_post_hook(_tie_again)

    def tie_again(self) -> None:
        """Share a tied embedding after something has replaced parameters by new ones."""
        if self.is_tied:
            _tie(self.head, self.backbone.embedding)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        found: Self = super()._apply(fn, recurse)
        self.tie_again()
        return found

    def initial_state(self, batch_size: int) -> State:
        state = self.backbone.initial_state(batch_size)
        return (state, self.head.initial_state(batch_size)) if self.head.is_stateful else state

    @property
    def context_length(self) -> int | None:
        """Tokens that a prediction can depend on, also by a head that looks back; None: all."""
        found = self.backbone.context_length
        return None if found is None else self.head.context_length(found)

    @property
    def reads_position(self) -> bool:
        """Whether a component of the head must know where it reads the training split."""
        return any(component.reads_position for component in components_of(self.head))

    def forward(
        self,
        tokens: Tensor,
        target: Tensor,
        state: State,
        reduction: Reduction = "mean",
        position: Tensor | None = None,
    ) -> LanguageModelOutput:
        """Read tokens (T, B) and score targets (T, B), the tokens that follow each of them.

        Args:
            position: (T, B), of the tokens in the training split; None for another text.
        """
        read = self.read(tokens, state, position)
        # Added below: the reported loss is without it.
        options = {**read.past, "with_penalty": False}
        output, loss = self.head(read.hidden, target, reduction=reduction, **options)
        penalty: Tensor | float = 0.0
        if self.training:
            penalty = self.head.penalty(read.hidden, **read.past)
            penalty = penalty + self.backbone.penalty(read.backbone)
        state = map_state(torch.Tensor.detach, read.state)
        return LanguageModelOutput(loss, output, read.backbone.hidden, state, penalty)

    def parameter_groups(self) -> list[ParameterGroup]:
        """The optimiser's parameter groups."""
        return self.backbone.parameter_groups(self)

    def read(self, tokens: Tensor, state: State, position: Tensor | None = None) -> Read:
        """Run the backbone over tokens (T, B): then `head.sample(read.hidden, **read.past)`."""
        head = self.head
        before, head_state = state if head.is_stateful else (state, None)
        out = self.backbone(tokens, before)
        hidden = out.hidden
        if head.layers != (-1,):
            hidden = torch.cat([out.layers[layer] for layer in head.layers], -1)
        if not head.is_stateful:
            return Read(hidden, {}, out.state, out)
        past = {"tokens": tokens, "state": head_state}
        if position is not None:
            past["position"] = position
        return Read(hidden, past, (out.state, head.advance(hidden, tokens, head_state)), out)


def _tie_again(model: LanguageModel, keys: Any) -> None:
    model.tie_again()


def _tie(head: Head, embedding: nn.Embedding | AdaptiveEmbedding) -> None:
    if not isinstance(embedding, AdaptiveEmbedding):
        head.tie(embedding.get_parameter("weight"))
    elif isinstance(head.core, AdaptiveHead):
        head.core.tie(list(embedding.bands))
    else:
        raise ValueError(
            f"the head must be adaptive to share an AdaptiveEmbedding, got {type(head).__name__}"
        )
