"""Output layers: from a network's state to the probabilities of the next word."""

from highrank.heads.base import Head, HeadOutput, Mixture
from highrank.heads.moc import MixtureOfContexts
from highrank.heads.mos import MixtureOfSoftmaxes
from highrank.heads.softmax import Softmax

__all__ = [
    "Head",
    "HeadOutput",
    "Mixture",
    "MixtureOfContexts",
    "MixtureOfSoftmaxes",
    "Softmax",
]
