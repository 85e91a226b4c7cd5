"""A mixture of softmaxes with DistributedDataParallel: each process has a part of the batch.

torchrun --nproc-per-node 2 examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from highrank import MixtureOfSoftmaxes

VOCAB_SIZE, HIDDEN_SIZE, EMBEDDING_SIZE = 50, 32, 16


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, EMBEDDING_SIZE)
        self.body = nn.GRU(EMBEDDING_SIZE, HIDDEN_SIZE)
        self.head = MixtureOfSoftmaxes(HIDDEN_SIZE, VOCAB_SIZE, 3, EMBEDDING_SIZE)
        self.head.tie(self.embedding.weight)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        hidden, _ = self.body(self.embedding(tokens))
        # The loss belongs into forward: that is where DDP looks for what to synchronise.
        return self.head(hidden, target).loss


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(31):
        # Counting up from a random token, 8 sequences of 12 tokens in all processes together.
        start = torch.randint(VOCAB_SIZE, (8,))
        text = (start + torch.arange(13)[:, None]) % VOCAB_SIZE  # (T + 1, B)
        mine = text.tensor_split(size, 1)[rank]
        loss = model(mine[:-1], mine[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {mean.item():.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
