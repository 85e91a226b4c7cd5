"""Encoder–decoders of Hugging Face over pairs of texts: made, trained, asked for targets."""
