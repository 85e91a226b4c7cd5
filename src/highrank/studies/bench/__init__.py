"""Time and memory, as ratios measured in one run: one harness, one file per benchmark."""
