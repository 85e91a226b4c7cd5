"""A mixture of softmaxes on a small GPT: what changes in a training loop is one line."""

import torch
from torch import Tensor, nn

from highrank import MixtureOfSoftmaxes

VOCAB_SIZE, SIZE, LENGTH = 50, 32, 16


class GPT(nn.Module):
    """Two causal Transformer layers, batches first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, SIZE)
        self.position = nn.Embedding(LENGTH, SIZE)
        layer = nn.TransformerEncoderLayer(SIZE, 4, 4 * SIZE, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        # Instead of nn.Linear(SIZE, VOCAB_SIZE) and a cross-entropy.
        self.head = MixtureOfSoftmaxes(SIZE, VOCAB_SIZE, 4, SIZE, batch_first=True)
        self.head.tie(self.embedding.weight)

    def hidden(self, tokens: Tensor) -> Tensor:
        """(B, T, D) for tokens (B, T)."""
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.position(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        found: Tensor = self.body(x, mask=mask, is_causal=True)
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of each next token."""
        return self.head(self.hidden(tokens), tokens, shift=1).loss


def main() -> None:
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(301):
        # Each token is its predecessor plus a step that belongs to the sequence.
        start, step = torch.randint(VOCAB_SIZE, (16, 1)), torch.randint(1, 4, (16, 1))
        tokens = (start + step * torch.arange(LENGTH)) % VOCAB_SIZE
        loss = model(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 100 == 0:
            print(f"step {number} loss {loss.item():.3f}")
    with torch.no_grad():
        following = model.head.predict(model.hidden(tokens[:1])[:, -1])
    print(f"after {tokens[0, -3:].tolist()}: {following.item()}")


if __name__ == "__main__":
    main()
