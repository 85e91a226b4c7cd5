"""A mixture of softmaxes with FSDP2: each process stores a part of every parameter.

torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from highrank import MixtureOfSoftmaxes
from highrank.heads.distributed import prepare_fsdp

VOCAB_SIZE, SIZE = 50, 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, SIZE)
        self.layer = nn.TransformerEncoderLayer(SIZE, 4, 64, dropout=0.0)
        self.head = MixtureOfSoftmaxes(SIZE, VOCAB_SIZE, num_components=3, embedding_size=SIZE)
        self.head.tie(self.embedding.weight)

    def forward(self, tokens: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.ones(len(tokens), len(tokens)).triu(1).bool()
        hidden = self.layer(self.embedding(tokens), src_mask=mask)
        return self.head(hidden, target).loss, hidden


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, mesh = Model(), init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.layer, mesh=mesh)
    # The head shares its weight with the embedding: both are in the group of the model.
    fully_shard(model, mesh=mesh)
    # FSDP gathers parameters for forward; now for log_prob, predict, sample, … too.
    prepare_fsdp(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    text = (torch.arange(4) + dist.get_rank() * 4 + torch.arange(13)[:, None]) % VOCAB_SIZE
    for step in range(31):
        loss, hidden = model(text[:-1], text[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    found = model.head.predict(hidden.detach())
    print(f"process {dist.get_rank()}: {(found == text[1:]).double().mean():.0%} predicted")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
