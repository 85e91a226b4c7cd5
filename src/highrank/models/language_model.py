"""A backbone and a head: words in, loss of the next words out, state carried along."""

from typing import NamedTuple

from torch import Tensor, nn

from highrank.heads import Head
from highrank.models.awd_lstm import AWDLSTM, State


class LanguageModelOutput(NamedTuple):
    loss: Tensor
    """Negative log-likelihood of the targets, reduced."""
    output: Tensor
    """log p of each target (T, B), 0 where it is ignored."""
    hidden: Tensor
    """(T, B, D), what the head saw."""
    raw: Tensor
    """(T, B, D), the same before the last dropout."""
    state: State
    """Detached: gradients end at the window's boundary."""


class LanguageModel(nn.Module):
    """p(word | words before), computed window by window.

    Args:
        backbone: reads tokens (T, B) on from a state.
        head: predicts the next word from the backbone's hidden state.
        tied: whether the head's output embedding is the backbone's input embedding.
    """

    def __init__(self, backbone: AWDLSTM, head: Head, tied: bool = True) -> None:
        super().__init__()
        if head.hidden_size != backbone.hidden_size:
            raise ValueError(
                f"the head's hidden_size must be the backbone's {backbone.hidden_size}, "
                f"got {head.hidden_size}"
            )
        if tied:
            head.tie(backbone.embedding.get_parameter("weight"))
        self.backbone, self.head = backbone, head

    def initial_state(self, batch_size: int) -> State:
        return self.backbone.initial_state(batch_size)

    def forward(
        self, tokens: Tensor, target: Tensor, state: State, reduction: str = "mean"
    ) -> LanguageModelOutput:
        """Read tokens (T, B) and score targets (T, B), the words that follow each of them."""
        hidden, raw, state = self.backbone(tokens, state)
        output, loss = self.head(hidden, target, reduction=reduction)
        return LanguageModelOutput(loss, output, hidden, raw, detached(state))


def detached(state: State) -> State:
    return [(h.detach(), c.detach()) for h, c in state]
