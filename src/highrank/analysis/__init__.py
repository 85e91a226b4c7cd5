"""Measures of a model, as in the paper."""
