"""An upgraded encoder–decoder as a `highrank.training.trainer.Trainer` wants it.

S source tokens, T target tokens, B pairs.
"""

from typing import Any

from torch import Tensor

from highrank.integrations.huggingface.trainable import Output, TrainableModel


class TrainablePairs(TrainableModel):
    """An encoder–decoder over pairs that know nothing of each other.

    Args:
        model: what `highrank.upgrade` returns of an encoder–decoder.
        label_smoothing: in training; an evaluation is without.
        added_lr_scale: factor of the learning rate of the parameters that the upgrade has added.
    """

    def __init__(
        self, model: Any, label_smoothing: float = 0.0, added_lr_scale: float = 1.0
    ) -> None:
        super().__init__(model, added_lr_scale)
        self.label_smoothing = label_smoothing

    def forward(self, inputs: Any, target: Tensor, state: tuple[()] = ()) -> Output:
        """Mean loss of the targets (T, B), given sources (S, B) and their mask."""
        options = {}
        if self.training and self.label_smoothing > 0:
            options["label_smoothing"] = self.label_smoothing
        found = self.model(
            **{name: tensor.T for name, tensor in inputs.items()},
            labels=target.T,
            use_cache=False,
            return_logits=False,
            **options,
        )
        return Output(found.loss)
