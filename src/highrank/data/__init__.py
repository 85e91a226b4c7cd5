"""What models read: languages whose entropy is known exactly."""

from highrank.data.language import Language, Stream
from highrank.data.synthetic import factorised, senses

__all__ = ["Language", "Stream", "factorised", "senses"]
