"""Pretrained models of Hugging Face with a head of ours in place of their linear output layer."""
