"""The machine and the versions of a benchmark: those of every result."""

from highrank.environment import environment

__all__ = ["environment"]
