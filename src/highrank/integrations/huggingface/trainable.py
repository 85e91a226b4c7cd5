"""An upgraded model of Hugging Face as a `highrank.training.trainer.Trainer` wants it.

L tokens of a window, B windows, D hidden size.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.data.batches import IGNORED
from highrank.heads import Head
from highrank.integrations.huggingface.output_layer import run
from highrank.models.backbone import ParameterGroup, decay_matrices_only


class Output(NamedTuple):
    loss: Tensor
    penalty: float = 0.0
    state: tuple[()] = ()


class TrainableModel(nn.Module):
    """A causal language model over windows that know nothing of each other.

    Args:
        model: what `highrank.upgrade` returns; frozen parameters stay as they are.
        added_lr_scale: factor of the learning rate of the parameters that the upgrade has added.
    """

    def __init__(self, model: Any, added_lr_scale: float = 1.0) -> None:
        super().__init__()
        self.model, self.added_lr_scale = model, added_lr_scale

    @property
    def head(self) -> Head:
        found: Head = self.model.get_output_embeddings().head
        return found

    def initial_state(self, batch_size: int) -> tuple[()]:
        return ()

    def forward(self, inputs: Tensor, target: Tensor, state: tuple[()] = ()) -> Output:
        """Mean loss of the targets (L, B), the tokens that follow the inputs (L, B)."""
        # transformers takes each token as the label of its own place, and shifts labels itself.
        labels = F.pad(target[:-1], (0, 0, 1, 0), value=IGNORED)  # (L, B)
        found = self.model(
            input_ids=inputs.T, labels=labels.T, use_cache=False, return_logits=False
        )
        return Output(found.loss)

    def parameter_groups(self) -> list[ParameterGroup]:
        """Parameters that are trained, old and added ones, with weight decay on matrices only."""
        output = self.model.get_output_embeddings()
        old = output.embedding
        added = {id(p) for p in output.parameters()} - {id(old.weight), id(old.bias)}
        trained = [p for p in self.parameters() if p.requires_grad]
        groups: list[ParameterGroup] = []
        for is_added, lr_scale in ((False, 1.0), (True, self.added_lr_scale)):
            own = nn.ParameterList(p for p in trained if (id(p) in added) == is_added)
            for group in decay_matrices_only(own):
                if group["params"]:
                    groups.append({**group, "lr_scale": lr_scale})
        return groups

    @torch.no_grad()
    def head_inputs(self, tokens: Tensor) -> Tensor:
        """The head's inputs (B, L, D), float32, after each of the tokens (L, B)."""
        kept: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            kept.append(hidden)
            # No position reaches the head: all logits would need the most memory by far.
            return hidden[:, :0]

        run(self.model, tokens.T, type(self.model).__name__, keep)
        scale: float = self.model.get_output_embeddings().scale
        return kept[0].float() * scale
