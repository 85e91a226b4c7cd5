"""Results as terminal tables, pictures and pages: a leaf that only the commands import."""
