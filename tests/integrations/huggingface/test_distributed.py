"""Upgraded models in several processes against one: DDP and FSDP2."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import highrank
from highrank.heads.distributed import prepare_fsdp

STEPS = 3


def pairs_model():
    """An encoder–decoder with a bias of its logits."""
    from transformers import MarianConfig, MarianMTModel

    sizes = {"vocab_size": 30, "decoder_vocab_size": 30, "d_model": 16, "dropout": 0.0}
    sizes |= {"encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 24}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24}
    sizes |= {"pad_token_id": 29, "decoder_start_token_id": 29, "max_position_embeddings": 16}
    model = MarianMTModel(MarianConfig(**sizes))
    model.final_logits_bias.normal_()
    return highrank.upgrade(model).train()


def model_of(is_tied, is_seq2seq=False):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM, LlamaConfig
    torch.manual_seed(3)
    if is_seq2seq:
        return pairs_model()
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, tie_word_embeddings=is_tied)
    return highrank.upgrade(AutoModelForCausalLM.from_config(config)).train()


def texts():
    return torch.randint(30, (6, 9), generator=torch.Generator().manual_seed(4))


def losses(model, tokens):
    """Of some steps, and afterwards of evaluation; (STEPS + 1,)."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(STEPS):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach().clone())
    found.append(model.eval()(input_ids=tokens, labels=tokens).loss.detach().clone())
    return torch.stack(found)


def losses_in_parts(kind, is_tied, is_seq2seq):
    """The same, where each process has a part of the texts: the mean over processes."""
    model, mesh = model_of(is_tied, is_seq2seq), init_device_mesh("cpu", (dist.get_world_size(),))
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        for block in model.get_decoder().layers:
            fully_shard(block, mesh=mesh)
        if kind == "fsdp with the head apart":
            fully_shard(model.lm_head, mesh=mesh)
        fully_shard(model, mesh=mesh)
        prepare_fsdp(model)
    found = losses(model, texts()[dist.get_rank() :: dist.get_world_size()].contiguous())
    dist.all_reduce(found)
    return found / dist.get_world_size()


@pytest.mark.parametrize(
    "kind, is_tied, is_seq2seq",
    [
        ("ddp", True, False),
        ("fsdp", True, False),
        ("fsdp", False, False),
        ("fsdp with the head apart", False, False),
        ("fsdp", True, True),
    ],
)
def test_processes_train_as_one(processes, kind, is_tied, is_seq2seq):
    want = losses(model_of(is_tied, is_seq2seq), texts())
    for found in processes(losses_in_parts, kind, is_tied, is_seq2seq):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-5)
    assert want[-1] < want[0]
