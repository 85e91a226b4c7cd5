"""Plain modules that ours are measured against."""
