"""How results are shown: terminal tables, pictures and pages."""
