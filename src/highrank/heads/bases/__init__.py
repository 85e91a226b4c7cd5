"""What heads share: probabilities, losses, output embeddings, and how they start."""
