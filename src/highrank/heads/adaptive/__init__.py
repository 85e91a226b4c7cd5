"""Heads that compute rare tokens only where they are the target: frequent tokens first."""
