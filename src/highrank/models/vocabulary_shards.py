"""A language model whose token embeddings are spread over processes by rows of the vocabulary.

In training every process reads sequences of its own: it has the backbone's work for those, and the
part of the softmax that its rows have for the sequences of all. In evaluation all processes read
the same. T time, B sequences of all processes, b of this one, E embedding size, K components,
V vocabulary.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from highrank.heads.bases.mixture import Mixture, MixtureHead
from highrank.heads.bases.output import LossSettings, MeasuredOutput
from highrank.heads.distributed import shard_head
from highrank.models.language_model import LanguageModel
from highrank.ops.loss import Target
from highrank.ops.sharding import shard_of


def shard_vocabulary(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Give each process some rows of the output embedding, of the bias and of a tied embedding.

    Args:
        model: the same in every process, with a head that `check_shardable` lets pass.
        mesh: of one dimension.
    """
    head, embedding = model.head, model.backbone.embedding
    assert isinstance(head, MixtureHead) and isinstance(embedding, nn.Embedding)
    if model.is_tied:
        model.backbone.embedding = RowsOfEmbedding(embedding, mesh)
        model.tie_again()
    shard_head(head, mesh)
    _score_all_sequences(head, mesh.get_group())


class RowsOfEmbedding(nn.Embedding):
    """An embedding of which each process has some rows."""

    def __init__(self, whole: nn.Embedding, mesh: DeviceMesh) -> None:
        weight = distribute_tensor(whole.weight.detach(), mesh, [Shard(0)])
        super().__init__(whole.num_embeddings, whole.embedding_dim, _weight=weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings (T, b, E) of tokens (T, b); in evaluation they are the same everywhere."""
        shard = shard_of(self.weight)
        assert shard is not None and isinstance(self.weight, DTensor)
        rows = self.weight.to_local()
        every = _side_by_side(tokens, shard.group) if self.training else tokens  # (T, B)
        is_here = (every >= shard.start) & (every < shard.stop)
        if len(rows):
            found = F.embedding(torch.where(is_here, every - shard.start, 0), rows)
            found = found * is_here[..., None]  # (T, B, E)
        else:
            # With a gradient, though it is empty: its exchange is everybody's.
            found = rows.new_zeros(*every.shape, self.embedding_dim) + rows.sum()
        part: Tensor = _Summed.apply(found, shard.group, self.training)
        return part


def _score_all_sequences(head: MixtureHead, group: dist.ProcessGroup) -> None:
    """Let a sharded head, in training, be given this process' sequences, and return their loss.

    Every target must count alike in all processes, as a `Trainer` has it: then the gradient of the
    sum over all of them is that of each part.
    """
    plain = head._loss

    def loss(features: Mixture, target: Target, settings: LossSettings) -> MeasuredOutput:
        if not head.training:
            return plain(features, target, settings)
        assert isinstance(target, Tensor)
        log_weight, context = (_Joined.apply(x, group) for x in features)  # (T, B, K), (…, K, E)
        every = settings._replace(reduction="sum")
        out = plain(Mixture(log_weight, context), _side_by_side(target, group), every)
        output = _own(out.output, group)  # (T, b)
        # The value of this part, the gradient of all.
        total = -output.sum() + (out.loss - out.loss.detach())
        if settings.reduction == "mean":
            # Without targets of its own, a process has a part of the gradients of all others.
            total = total / (target != settings.ignore_index).sum().clamp(min=1)
        return MeasuredOutput(output, total, {})

    head._loss = loss  # type: ignore[method-assign]


def _side_by_side(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The tensors of all processes, (T, B, …) of (T, b, …)."""
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, 1)


def _own(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The columns of this process, (T, b, …) of (T, B, …)."""
    return tensor.chunk(group.size(), 1)[group.rank()]


class _Joined(Function):
    """The tensors of all processes side by side; gradients of all are known to each."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _side_by_side(tensor, group)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return _own(upstream, ctx.group), None


class _Summed(Function):
    """The sum of the processes' tensors; of its columns each takes its own where they differ."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, is_split: bool) -> Tensor:
        ctx.group, ctx.is_split = group, is_split
        tensor = tensor.clone()
        dist.all_reduce(tensor, group=group)
        return _own(tensor, group).contiguous() if is_split else tensor

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        every = _side_by_side(upstream, ctx.group) if ctx.is_split else upstream
        return every, None, None
