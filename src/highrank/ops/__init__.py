"""Pure tensor functions; what is fast has a slow reference beside it."""

from highrank.ops.mixture_cross_entropy import MixtureLoss, mixture_cross_entropy, mixture_loss
from highrank.ops.mixture_log_prob import mixture_log_prob

__all__ = ["MixtureLoss", "mixture_cross_entropy", "mixture_log_prob", "mixture_loss"]
