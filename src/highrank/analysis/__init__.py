"""What the paper measures of a model."""
