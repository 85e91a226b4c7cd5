"""Terminal tables, pictures and pages of results."""
