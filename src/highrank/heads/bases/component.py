"""Components that stand beside the distribution of a head: what each must state.

`Composed` mixes, with a gate of its own. A component has J terms, each a distribution over the
whole vocabulary, and F features for the gate. T time, B streams, D hidden size, V vocabulary; `...`
is any leading dimensions.

**Order.** `inputs` is the only method that sees whole windows, time first whatever `batch_first`
is. It returns a row for each prediction. All others take such rows, in any number and order:
chunks of tokens, a random half of them, the last one. So a component that looks at the n - 1 tokens
before returns them as a row of n - 1 numbers.

**State.** A component that looks back over the window's beginning has `is_stateful`: its state is a
pytree of tensors whose dimension 1 is the batch, detached. No cut into windows may change a
probability.

**Training split.** What must not have counted the token that it predicts (leave-one-out) decides by
`position`, not by `self.training`: the training split is also read in evaluation mode.

**Files.** Parameters and buffers are saved with the model. Tables that are too large for that, or
shared, are in the run's folder, as arrays or memory maps, never as code. What is published must not
hold the training split itself.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn


class Component(nn.Module):
    """Base of the components: one term, without a state, that learns with its base.

    Its constructor takes `hidden_size` and `vocab_size`, `token_counts` if it wants them, and
    options, whose names must differ from those of heads and other components. Composed has its
    parameters moved to where those of the base are.
    """

    name: ClassVar[str] = ""
    """Its key in `COMPONENTS`, and its name in tables."""
    num_terms: int = 1
    """J."""
    num_features: int = 0
    """F."""
    start_weight: float = 0.1
    """Weight of all its terms at the start, between 0 and 1."""
    is_stateful: bool = False
    reads_position: ClassVar[bool] = False
    """Whether it does something else where the training split is read."""
    data_files: ClassVar[tuple[str, ...]] = ()
    """What `load_data` needs in a folder where the training split was forgotten."""
    learns_alone: ClassVar[bool] = False
    """Whether the base learns, by default, as if this component were absent: for one that is good
    from the start, and would leave the base hardly any gradient."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.hidden_size, self.vocab_size = hidden_size, vocab_size

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""

    def inputs(
        self, hidden: Tensor, tokens: Tensor | None, state: Any, position: Tensor | None = None
    ) -> Any:
        """What the predictions of a window are made from: a pytree of tensors (T, B, anything).

        Args:
            hidden: (T, B, D), after each token; (..., D) for a component that has no state.
            tokens: (T, B), which have been read; None for a component that has no state.
            state: after the window before; None at the beginning of a text.
            position: (T, B), of each token in the training split, -1 for tokens of another text;
                None where all are of another text.
        """
        return ()

    def log_prob_of(self, inputs: Any, target: Tensor) -> Tensor:
        """log q_j of the targets (...), (..., J); anything for those outside 0 … V - 1."""
        raise NotImplementedError

    def log_prob(self, inputs: Any, log_gate: Tensor) -> Tensor:
        """log Σ_j g_j q_j of every token, (..., V), from log g (..., J)."""
        raise NotImplementedError

    def gate_features(self, inputs: Any) -> Tensor | None:
        """(..., F), numbers of the order of 1, which the gate sees beside the hidden state."""
        return None

    def is_possible(self, inputs: Any) -> Tensor | None:
        """(..., J), whether there is anything to predict; None if there always is."""
        return None

    def initial_state(self, batch_size: int) -> Any:
        return ()

    def context_length(self, hidden: int) -> int | None:
        """How many tokens its predictions can depend on; None where there is no bound.

        Args:
            hidden: how many a hidden state depends on.
        """
        return None if self.is_stateful else hidden

    def advance(self, hidden: Tensor, tokens: Tensor, state: Any) -> Any:
        """The state after a window of hidden states (T, B, D) and tokens (T, B)."""
        return ()

    def resize(self, vocab_size: int) -> None:
        """Change the number of tokens, keeping the first ones."""
        self.vocab_size = vocab_size

    def fit(self, tokens: NDArray[np.integer], token_counts: Sequence[int]) -> None:
        """Prepare what depends on the training split (M,), before the first step of a run."""

    def save_data(self, folder: Path) -> None:
        """Write what `fit` has made, if it is no parameter or buffer, into the run's folder."""

    def load_data(self, folder: Path) -> None:
        """Read what `save_data` wrote; raise ValueError where it is missing or damaged."""

    def forget_text(self) -> None:
        """Drop the training split, and what is there for its positions; predictions stay."""


def components_of(model: nn.Module) -> list[Component]:
    """All components in a model or a head."""
    return [module for module in model.modules() if isinstance(module, Component)]
