"""What all trainings of Hugging Face models with different heads have in common."""

# The model with its own softmax, trained in the same way: what every other head is compared with.
BASELINE = "softmax"
# One softmax over a linear map of the hidden state: added weights, but no mixture.
CONTROL = "linear"
# The learning rate of added weights is this over the hidden size, unless it is given: with the rate
# of the others, components stay equal for thousands of steps (docs/log.md).
HEAD_RATE = 0.64


def added_lr(lr: float, hidden_size: int) -> float:
    """The learning rate of the weights that an upgrade adds, at least that of the others."""
    return max(lr, HEAD_RATE / hidden_size)
