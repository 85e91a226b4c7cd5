"""What models read: languages whose entropy is known exactly."""

from highrank.data.synthetic import Language, Stream, factorised, senses

__all__ = ["Language", "Stream", "factorised", "senses"]
