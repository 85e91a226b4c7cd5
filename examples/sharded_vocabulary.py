"""A vocabulary over several processes: each has all tokens, and some rows of the output embedding.

torchrun --nproc-per-node 2 examples/sharded_vocabulary.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from highrank import MixtureOfSoftmaxes, mixture_cross_entropy
from highrank.heads.distributed import shard_head

VOCAB_SIZE, HIDDEN_SIZE, EMBEDDING_SIZE = 1001, 32, 16


def with_a_head() -> None:
    torch.manual_seed(0)
    body = nn.Embedding(VOCAB_SIZE, HIDDEN_SIZE)
    head = MixtureOfSoftmaxes(HIDDEN_SIZE, VOCAB_SIZE, 3, EMBEDDING_SIZE)
    # weight and bias become DTensors: everything the head computes is the same in all processes.
    shard_head(head, init_device_mesh("cpu", (dist.get_world_size(),)))
    # DTensors in a group of their own: optimisers do not mix them with other parameters.
    every = [*body.parameters(), *head.parameters()]
    groups = [[p for p in every if isinstance(p, DTensor) == is_] for is_ in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=0.02)
    tokens = torch.randint(VOCAB_SIZE - 1, (64,))
    for step in range(31):
        loss = head(body(tokens), tokens + 1).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    right = head.predict(body(tokens)) == tokens + 1
    print(f"process {dist.get_rank()}: {right.double().mean():.0%} predicted")


def with_the_function() -> None:
    """Any rows in any process, even none: here the first one has a tenth."""
    torch.manual_seed(0)
    context = torch.randn(64, 3, EMBEDDING_SIZE, requires_grad=True)  # (N, K, E)
    log_weight, target = torch.randn(64, 3).log_softmax(-1), torch.randint(VOCAB_SIZE, (64,))
    weight = torch.randn(VOCAB_SIZE, EMBEDDING_SIZE)
    cuts = [0, *torch.linspace(100, VOCAB_SIZE, dist.get_world_size()).long().tolist()]
    start, stop = cuts[dist.get_rank() : dist.get_rank() + 2]
    mine, shard = weight[start:stop], (start, stop)
    loss = mixture_cross_entropy(context, log_weight, mine, target, shard=shard)
    whole = mixture_cross_entropy(context, log_weight, weight, target)
    print(f"process {dist.get_rank()}: {loss.item():.4f} in parts, {whole.item():.4f} in one piece")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with_a_head()
    with_the_function()
    dist.barrier()
    dist.destroy_process_group()
