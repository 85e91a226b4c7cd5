"""Distil a mixture of softmaxes into one softmax, and measure what the softmax loses.

The text is an exact language: what every head loses of it is known, not estimated. The numbers of
docs/log.md are of 1000 steps: `python examples/distil_language.py 1000 SEED`.
"""

import sys

import torch
from torch import Tensor, nn

from highrank import MixtureOfSoftmaxes, Softmax, head_kl
from highrank.data import senses
from highrank.heads import Head

SIZE, HIDDEN_SIZE = 16, 64


class Given(Head):
    """A teacher that is known by its log-probabilities: they stand for hidden states."""

    def log_prob_from(self, features: Tensor) -> Tensor:
        return features


def main() -> None:
    steps, seed = map(int, sys.argv[1:] or (100, 0))
    language = senses(seed=seed)
    V, often = language.vocab_size, torch.from_numpy(language.stationary).float()  # (C,)
    truth = Given(V, V), torch.from_numpy(language.log_prob).float()  # log p (C, V)

    def fit(head: Head, teacher: Head, states: Tensor) -> tuple[Head, Tensor]:
        # A free vector for every context: nothing but the head limits the fit.
        free = nn.Parameter(torch.randn(language.num_contexts, HIDDEN_SIZE))  # (C, D)
        optimizer = torch.optim.Adam([free, *head.parameters()], lr=0.15)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            optimizer.zero_grad()
            (often @ head_kl(head, free, teacher, states, reduction="none")).backward()
            optimizer.step()
            schedule.step()
        return head, free.detach()

    torch.manual_seed(seed)
    softmaxes = MixtureOfSoftmaxes(HIDDEN_SIZE, V, 5, SIZE, activation="identity")
    mixture = fit(softmaxes, *truth)
    fitted = {"mixture": mixture}
    for size in (SIZE, 2 * SIZE):
        for name, teacher in {"the language": truth, "the mixture": mixture}.items():
            student = Softmax(HIDDEN_SIZE, V, size, activation="identity")
            fitted[f"softmax {size} of {name}"] = fit(student, *teacher)
    for name, (head, free) in fitted.items():
        loss = [often @ head_kl(head, free, *t, reduction="none") for t in (truth, mixture)]
        print(f"{name}: {loss[0]:.4f} nats above the language, {loss[1]:.4f} from the mixture")


if __name__ == "__main__":
    main()
