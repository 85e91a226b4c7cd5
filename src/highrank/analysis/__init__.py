"""What the paper measures of a model: ranks, divergences, components."""
