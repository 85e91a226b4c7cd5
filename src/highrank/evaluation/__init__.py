"""How good a model is on a text: static, dynamic, with a cache, token by token."""
