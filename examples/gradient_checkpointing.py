"""Gradient checkpointing around a head: hidden states are recomputed, gradients are the same."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from highrank import MixtureOfSoftmaxes


def main() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    head = MixtureOfSoftmaxes(hidden_size=32, vocab_size=500, num_components=3, embedding_size=16)
    inputs, target = torch.randn(40, 32), torch.randint(500, (40,))

    def loss(inputs: Tensor) -> Tensor:
        return head(body(inputs), target).loss

    def gradient(result: Tensor) -> Tensor:
        head.zero_grad()
        result.backward()
        return torch.cat([p.grad.flatten() for p in head.parameters() if p.grad is not None])

    plain = gradient(loss(inputs))
    recomputed = gradient(checkpoint(loss, inputs, use_reentrant=False))
    torch.testing.assert_close(plain, recomputed)
    print(f"norm of the gradient: {plain.norm():.6f} plain, {recomputed.norm():.6f} recomputed")


if __name__ == "__main__":
    main()
