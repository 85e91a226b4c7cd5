"""How good a model is on text."""
