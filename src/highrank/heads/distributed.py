"""Heads over several processes: a vocabulary in parts (tensor parallel), and FSDP2.

DDP needs nothing of this: the loss is computed inside `forward`.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import tree_map_only

from highrank.heads.bases.head import Head
from highrank.heads.bases.mixture import MixtureHead

# Methods of a head besides `forward`.
METHODS = ("log_prob", "predict", "sample", "features", "log_prob_from", "mixture", "softmaxes")


def shard_head(head: MixtureHead, mesh: DeviceMesh) -> None:
    """Give each process a part of the vocabulary: `weight` and `bias` become DTensors.

    Everything is as in the mesh's first process before. All methods then expect the same hidden
    states in every process, and return the same: losses, log-probabilities, tokens. So do the
    gradients of all other parameters; each process has the gradients of its rows.

    A tied `weight` that already is a DTensor with the placement Shard(0), as that of an embedding
    after `RowwiseParallel`, stays tied.

    Args:
        mesh: of one dimension.
    """
    kind = type(head)
    is_mixture = isinstance(head, MixtureHead) and head.logit_map is None
    if not is_mixture or kind.log_prob_from is not MixtureHead.log_prob_from:
        raise ValueError(f"head must be a mixture of softmaxes of logits, got {kind.__name__}")
    group = mesh.get_group()
    for name, parameter in list(head.named_parameters()):
        if isinstance(parameter, DTensor):
            continue
        if name in ("weight", "bias"):
            found = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            setattr(head, name, nn.Parameter(found, parameter.requires_grad))
        else:
            dist.broadcast(parameter.detach(), dist.get_global_rank(group, 0), group=group)


def prepare_fsdp(model: nn.Module) -> None:
    """Let FSDP2 gather parameters for all methods of the heads in a model, not only `forward`.

    Call it after `fully_shard`. A head with an output embedding of its own may be a group for FSDP
    (`fully_shard(model.head)`); a tied one must be in the group of the input embedding, so it is
    only `fully_shard(model)` that covers both.
    """
    for path, head in list(model.named_modules()):
        if isinstance(head, Head):
            _register(_owner(model, path), head)


def _owner(model: nn.Module, path: str) -> FSDPModule:
    """The innermost module around a head whose parameters FSDP gathers together."""
    names = path.split(".") if path else []
    for count in range(len(names), -1, -1):
        module = model.get_submodule(".".join(names[:count]))
        if isinstance(module, FSDPModule):
            return module
    raise ValueError("model must be passed to fully_shard before, got one that was not")


def _register(owner: Any, head: Head) -> None:
    depth = 0

    def enter(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(*_: Any) -> None:
        nonlocal depth
        # It is called, too, where what comes before `enter` has failed.
        depth = max(0, depth - 1)

    # Inside one of the calls the parameters are there, and a call within must not free them.
    owner.register_forward_pre_hook(enter)
    owner.register_forward_hook(leave, always_call=True)

    def outermost(plain: Callable[..., Any], gathering: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def method(*arguments: Any, **options: Any) -> Any:
            if depth:
                return plain(*arguments, **options)
            enter()
            try:
                return gathering(*arguments, **options)
            finally:
                leave()
                # Parameters that stay gathered would not see the optimiser's next step.
                owner.reshard()

        return method

    for name in METHODS if owner is head else ("forward", *METHODS):
        if hasattr(head, name):
            plain = getattr(head, name)
            # FSDP knows methods of the module that it gathers for.
            alias = f"_{id(head)}_{name}"
            setattr(owner, alias, _without_views(plain))
            register_fsdp_forward_method(owner, alias)
            setattr(head, name, outermost(plain, getattr(owner, alias)))


def _without_views(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with copies for views: what FSDP does in their backward pass could be lost."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor.clone() if tensor.requires_grad and tensor._is_view() else tensor

    def wrapped(*arguments: Any, **options: Any) -> Any:
        return tree_map_only(Tensor, copied, method(*arguments, **options))

    return wrapped
