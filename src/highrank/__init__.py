"""highrank: output layers of language models beyond one softmax."""

__version__ = "0.1.0"
