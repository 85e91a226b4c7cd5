"""Other libraries' models: the only home of transformers."""
