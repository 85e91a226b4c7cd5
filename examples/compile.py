"""torch.compile with a mixture: one graph for the whole model, for any batch size."""

import shutil

import torch
from torch import Tensor, nn

from highrank import MixtureOfSoftmaxes


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 32)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = MixtureOfSoftmaxes(32, vocab_size=200, num_components=3, embedding_size=32)
        self.head.tie(self.embedding.weight)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(tokens)), target).loss


def main() -> None:
    torch.manual_seed(0)
    backend = "inductor" if shutil.which("c++") else "aot_eager"
    model = Model()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for batch_size in (8, 12, 20):
        tokens = torch.randint(200, (batch_size, 16))
        loss = compiled(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        eager = model(tokens[:, :-1], tokens[:, 1:])
        torch.testing.assert_close(loss, eager)
        print(f"batch of {batch_size}: {loss.item():.6f} compiled, {eager.item():.6f} eager")


if __name__ == "__main__":
    main()
