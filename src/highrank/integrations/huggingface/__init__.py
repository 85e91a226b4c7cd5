"""Hugging Face: its models read and upgraded, our runs exported."""
