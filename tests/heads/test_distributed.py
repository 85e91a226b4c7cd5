"""Heads in several processes against heads in one: a sharded vocabulary, DDP, FSDP2."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from contract import PLAIN, make_head
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from highrank import head_kl
from highrank.heads import (
    LowRankMixture,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    PartitionedSoftmax,
    Pointwise,
    Softmax,
)
from highrank.heads.bases.mixture import log_responsibility
from highrank.heads.distributed import prepare_fsdp, shard_head

D, V, E = 6, 7, 4
HEADS = {
    "softmax": lambda: Softmax(D, V),
    "moc": lambda: MixtureOfContexts(D, V, 3, E, dropout=0.2),
    "mos": lambda: MixtureOfSoftmaxes(D, V, 3, E, dropout=0.2, bias=False),
    "low-rank-mos": lambda: LowRankMixture(D, V, 3, E, rank=2),
    # Four tokens in three processes: one has none.
    "few tokens": lambda: MixtureOfSoftmaxes(D, 4, 2, E),
}


class Model(nn.Module):
    """An embedding and a head that share their weight."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.body = nn.Linear(E, D)
        self.head = MixtureOfSoftmaxes(D, V, 3, E)
        self.head.tie(self.embedding.weight)

    def hidden(self, tokens):
        return self.body(self.embedding(tokens)).tanh()

    def forward(self, tokens, target):
        return self.head(self.hidden(tokens), target).loss


def model_of():
    torch.manual_seed(3)
    return Model().double()


def batch():
    generator = torch.Generator().manual_seed(4)
    return torch.randint(V, (2, 6, 5), generator=generator)  # tokens and targets, B = 6, T = 5


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def gradients(module):
    return {name: whole(p.grad) for name, p in module.named_parameters() if p.grad is not None}


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def everything(kind, is_sharded, seed=0):
    """What a head computes, and its gradients."""
    torch.manual_seed(7)
    head = HEADS[kind]().double()
    if is_sharded:
        # Only the first process has the right ones.
        for p in head.parameters():
            p.data.add_(dist.get_rank())
        shard_head(head, mesh_of_all())
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(5, 4, D, generator=generator, dtype=torch.float64)
    target = torch.randint(head.vocab_size, (5, 4), generator=generator)
    torch.manual_seed(9)
    found = {"loss": head(hidden, target).loss}
    found["loss"].backward()
    found |= {f"d_{name}": gradient for name, gradient in gradients(head).items()}
    head.eval().zero_grad()
    found["log_prob"] = head.log_prob(hidden)
    (found["log_prob"] * torch.arange(head.vocab_size)).sin().sum().backward()
    found |= {f"d_{name} of log_prob": gradient for name, gradient in gradients(head).items()}
    found["predict"] = head.predict(hidden)
    found["responsibility"] = log_responsibility(head, hidden, target)
    generator = torch.Generator().manual_seed(10 + seed)
    found["sample"] = head.sample(hidden, generator=generator)
    found["tempered"] = head.sample(hidden, 0.7, top_k=3, top_p=0.9, generator=generator)
    return {name: x.detach() for name, x in found.items()}


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(
            got[name], value, rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_with_a_sharded_vocabulary_is_the_head(processes, kind):
    want = everything(kind, False)
    for got in processes(everything, kind, True):
        assert_same(got, want)


def sampled():
    torch.manual_seed(7)
    head = HEADS["mos"]().double().eval()
    shard_head(head, mesh_of_all())
    hidden = torch.randn(30, D, dtype=torch.float64)
    generator = torch.Generator().manual_seed(dist.get_rank())
    return head.sample(hidden, generator=generator), head.sample(hidden, 0.5, generator=generator)


def test_all_processes_have_the_tokens_that_the_first_one_draws(processes):
    first, *others = processes(sampled)
    torch.manual_seed(7)
    head = HEADS["mos"]().double().eval()
    hidden, generator = torch.randn(30, D, dtype=torch.float64), torch.Generator().manual_seed(0)
    want = [head.sample(hidden, t, generator=generator) for t in (1.0, 0.5)]
    for tokens in (first, *others):
        torch.testing.assert_close(list(tokens), want)


def tied_and_sharded():
    model, mesh = model_of(), mesh_of_all()
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    parallelize_module(model.embedding, mesh, style)
    model.head.tie(model.embedding.weight)
    shard_head(model.head, mesh)
    loss = model(*batch())
    loss.backward()
    is_tied = model.head.weight is model.embedding.weight
    return loss.item(), gradients(model), is_tied


def test_a_sharded_head_stays_tied_to_a_sharded_embedding(processes):
    model = model_of()
    want = model(*batch())
    want.backward()
    for loss, found, is_tied in processes(tied_and_sharded):
        assert is_tied and loss == pytest.approx(want.item(), abs=1e-12)
        assert_same(found, gradients(model))


def own_part():
    rank, size = dist.get_rank(), dist.get_world_size()
    return [x.chunk(size)[rank] for x in batch()]


def trained(kind):
    """Losses of three steps with a part of the batch in each process, and the parameters."""
    model = model_of()
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=mesh_of_all())
        prepare_fsdp(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(*own_part())
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        losses.append(loss.item() / dist.get_world_size())
    found = {name.removeprefix("module."): whole(p) for name, p in model.named_parameters()}
    return losses, found


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_with_parts_of_the_batch_is_training_with_all_of_it(processes, kind):
    model, losses = model_of(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(*batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for got, parameters in processes(trained, kind):
        assert got == pytest.approx(losses, abs=1e-12)
        assert_same(parameters, {name: p.detach() for name, p in model.named_parameters()})


def methods_under_fsdp(has_own_group):
    """`methods` where calls on the head come outside of the model's forward."""
    model = model_of()
    if has_own_group:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        fully_shard(model.head, mesh=mesh_of_all())
    fully_shard(model, mesh=mesh_of_all())
    prepare_fsdp(model)
    with warnings.catch_warnings(action="error"):
        return methods(model.head)


def methods(head):
    """What a head's methods yield, and their gradients; then again after a step of training."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(3, 4, D, generator=generator, dtype=torch.float64)
    target = torch.randint(V, (3, 4), generator=generator)
    optimizer, found = torch.optim.SGD(head.parameters(), lr=0.1), {}
    for step in range(2):
        optimizer.zero_grad()
        log_p, loss = head.log_prob(hidden), head(hidden, target).loss
        found |= {f"log_prob {step}": log_p, f"predict {step}": head.predict(hidden)}
        (log_p.sin().sum() + loss).backward()
        found |= {f"d_{name} {step}": whole(p.grad) for name, p in head.named_parameters()}
        found[f"sample {step}"] = head.sample(hidden, generator=generator)
        log_weight, context = head.mixture(hidden)
        found |= {f"log_weight {step}": log_weight, f"context {step}": context}
        optimizer.step()
    return {name: x.detach() for name, x in found.items()}


@pytest.mark.parametrize("has_own_group", [False, True], ids=["tied", "own group"])
def test_fsdp_gathers_for_every_method_of_a_head(processes, has_own_group):
    want = methods(model_of().head)
    for got in processes(methods_under_fsdp, has_own_group):
        assert_same(got, want)


NESTED = (
    "mos+pointer",
    "mos+constant",
    "adaptive-softmax+pointer",
    "multi-sense",
    "mfs, block",
    "sparse-mos",
    # Their backward passes compute log-probabilities anew.
    "mixtape",
    PLAIN,
)


class Behind(nn.Module):
    """A head behind a layer."""

    def __init__(self, head):
        super().__init__()
        self.body, self.head = nn.Linear(D, D).double(), head

    def forward(self, hidden, *arguments, **options):
        return self.head(self.body(hidden), *arguments, **options)


def window_methods(name, has_own_group, is_sharded=True):
    """Losses, log-probabilities, tokens and states of two windows, and the gradients."""
    torch.manual_seed(7)
    head = make_head(name)
    model = Behind(head)
    if is_sharded:
        if has_own_group:
            fully_shard(head, mesh=mesh_of_all())
        fully_shard(model, mesh=mesh_of_all())
        prepare_fsdp(model)
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, 5, 3, D, generator=generator, dtype=torch.float64)
    tokens, target = torch.randint(head.vocab_size, (2, 2, 5, 3), generator=generator)
    state, found = head.initial_state(3) if head.is_stateful else None, {}
    for i in range(2):
        past = {"tokens": tokens[i], "state": state} if head.is_stateful else {}
        found |= {f"penalty {i}": torch.as_tensor(head.penalty(hidden[i], **past))}
        log_p, loss = head.log_prob(hidden[i], **past), model(hidden[i], target[i], **past).loss
        scores = head.per_token_log_probs(hidden[i], target[i], **past)
        if not head.is_stateful:
            scores = scores * head.per_token_log_probs(hidden[i], target[i], block=4)
        (log_p.sin().sum() + loss + scores.sum()).backward()
        found |= {f"log_prob {i}": log_p, f"loss {i}": loss, f"scores {i}": scores}
        found[f"predict {i}"] = head.predict(hidden[i], **past)
        if head.is_stateful:
            state = head.advance(hidden[i], tokens[i], state)
            found |= {f"state {i} {n}": x for n, x in enumerate(tree_leaves(state))}
    assert not any(isinstance(x, DTensor) for x in found.values())
    return {n: x.detach() for n, x in found.items()} | gradients(model)


@pytest.mark.parametrize("has_own_group", [False, True], ids=["one group", "own group"])
@pytest.mark.parametrize("name", NESTED)
def test_fsdp_gathers_for_heads_in_heads_and_for_states(processes, name, has_own_group):
    want = window_methods(name, has_own_group, is_sharded=False)
    for got in processes(window_methods, name, has_own_group):
        assert_same(got, want)


def methods_without_help():
    model = model_of()
    fully_shard(model, mesh=mesh_of_all())
    with pytest.raises(RuntimeError, match="mixed torch.Tensor and DTensor"):
        model.head.log_prob(torch.randn(3, D, dtype=torch.float64))
    # This one looks like a sharded vocabulary, but each process has other tokens.
    head = Softmax(D, V).double()
    fully_shard(head, mesh=mesh_of_all())
    with pytest.raises(ValueError, match="context .* must be the same in every process"):
        head.log_prob(torch.randn(3, D, dtype=torch.float64) + dist.get_rank())


def test_without_the_helper_fsdp_does_not(processes):
    processes(methods_without_help)


def divergences_under_fsdp(has_own_group):
    """Losses and gradients of a student, alone and sharded, from a linear teacher."""
    torch.manual_seed(0)
    student, teacher = nn.Sequential(Softmax(D, V)), nn.Sequential(nn.Linear(D, V))
    hidden, found = torch.randn(5, D).double(), []
    student.double(), teacher.double()
    sharded, other = copy.deepcopy(student), copy.deepcopy(teacher)
    for model in (sharded, other):
        if has_own_group:
            fully_shard(model[0], mesh=mesh_of_all())
        fully_shard(model, mesh=mesh_of_all())
    prepare_fsdp(sharded)
    for one, two in ((student, teacher), (sharded, other)):
        loss = head_kl(one[0], hidden, two[0], hidden, chunk_bytes=V * 8)
        loss.backward()
        found.append([loss.detach(), *(whole(p.grad) for p in one.parameters())])
    with pytest.raises(ValueError, match="an nn.Linear that is trained must have its whole"):
        head_kl(other[0], hidden, teacher[0], hidden)
    return found


@pytest.mark.parametrize("has_own_group", [True, False])
def test_a_sharded_head_learns_from_a_sharded_linear_layer(processes, has_own_group):
    for want, found in processes(divergences_under_fsdp, has_own_group):
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize("head", [Pointwise(D, V, 2, E), PartitionedSoftmax(D, V, E)])
def test_other_heads_keep_their_vocabulary(head):
    with pytest.raises(ValueError, match=f"head must be a mixture .*, got {type(head).__name__}"):
        shard_head(head, None)


def test_fsdp_must_come_first():
    with pytest.raises(ValueError, match="model must be passed to fully_shard before"):
        prepare_fsdp(Model())
