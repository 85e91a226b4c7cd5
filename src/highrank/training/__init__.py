"""Training that survives anything: one loop for all stages, one file as the checkpoint."""
