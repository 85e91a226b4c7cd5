"""A pointer to earlier tokens on a small Transformer: training, its state, generation."""

import torch
from torch import Tensor, nn

from highrank.heads import Composed, Pointer, Softmax

VOCAB_SIZE, SIZE, LENGTH = 60, 32, 24


class Model(nn.Module):
    """A causal Transformer over windows; the pointer also remembers the windows before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, SIZE)
        self.position = nn.Embedding(LENGTH, SIZE)
        layer = nn.TransformerEncoderLayer(SIZE, 4, 4 * SIZE, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        softmax = Softmax(SIZE, VOCAB_SIZE, SIZE, batch_first=True)
        self.head = Composed(softmax, [Pointer(SIZE, VOCAB_SIZE, num_states=3 * LENGTH)])

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states (B, T, D) of tokens (B, T)."""
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.position(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.body(x, mask=mask, is_causal=True)  # type: ignore[no-any-return]


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(101):
        # A sequence repeats 20 tokens of its own: only its past predicts them.
        text = torch.randint(VOCAB_SIZE, (16, 20)).repeat(1, 4)[:, : 3 * LENGTH + 1]  # (B, T)
        state, losses = model.head.initial_state(16), []
        for start in range(0, 3 * LENGTH, LENGTH):
            tokens, target = (text[:, i : i + LENGTH] for i in (start, start + 1))
            hidden = model(tokens)
            losses.append(model.head(hidden, target, tokens=tokens, state=state).loss)
            state = model.head.advance(hidden.detach(), tokens, state)
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        if number % 25 == 0:
            print(f"step {number} loss {losses[-1].item():.3f}")
    with torch.no_grad():
        tokens = text[:1, : LENGTH - 3]
        for _ in range(3):
            past = {"tokens": tokens, "state": model.head.initial_state(1)}
            following = model.head.predict(model(tokens), **past)[:, -1:]  # (1, 1)
            tokens = torch.cat([tokens, following], 1)
    print(f"continues with {tokens[0, -3:].tolist()}, the text with {text[0, 1:4].tolist()}")


if __name__ == "__main__":
    main()
