"""A run's folder: what is in it, its configuration as JSON, its model.

config.json         everything that decides the run's numbers
vocabulary.json     the tokens
token_counts.json   how often the training split has each of them
corpus.json         how the corpus was made, its hashes, where it was
model.safetensors   the best model so far, a tied embedding once
metrics.jsonl       one line per event
trainer.pt          the checkpoint, which alone is needed to resume
"""
