"""Pure tensor functions; what is fast has a slow reference beside it."""
