"""Fine-tune an upgraded Hugging Face model with FSDP2.

torchrun --nproc-per-node 2 examples/huggingface_fsdp2.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, GPT2Config

import highrank
from highrank.heads.distributed import prepare_fsdp


def main() -> None:
    dist.init_process_group("gloo")
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    # In place of AutoModelForCausalLM.from_pretrained("gpt2").
    config = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = highrank.upgrade(AutoModelForCausalLM.from_config(config), num_components=4)
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    # The head shares its weight with the embedding: both are in the group of the model.
    fully_shard(model, mesh=mesh)
    # FSDP gathers parameters for forward; now for log_prob, predict, sample, … of the head, too.
    prepare_fsdp(model)
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    texts = (torch.randint(3, (16, 24)).cumsum(1) % 64)[rank :: dist.get_world_size()]
    for step in range(41):
        # The loss needs no logits.
        loss = model(texts, labels=texts).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
