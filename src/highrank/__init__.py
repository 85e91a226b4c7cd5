"""highrank: output layers of language models beyond one softmax."""

from highrank import presets
from highrank.build import load
from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy

__version__ = "0.1.0"

__all__ = [
    "MixtureOfContexts",
    "MixtureOfSoftmaxes",
    "Softmax",
    "load",
    "mixture_cross_entropy",
    "presets",
]
