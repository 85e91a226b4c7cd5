"""Pairs of texts, a source and its target: read, cleaned of leaks, encoded, cut into batches."""
