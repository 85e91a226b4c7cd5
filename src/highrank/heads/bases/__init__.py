"""Bases of the heads: probabilities, losses, output embeddings, and starts."""
