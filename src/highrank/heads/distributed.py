"""Heads over several processes: a vocabulary in parts (tensor parallel), and FSDP2.

DDP needs nothing of this: the loss is computed inside `forward`.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import tree_map_only

from highrank.heads.bases.head import Head
from highrank.heads.bases.mixture import MixtureHead

# Methods of a head besides `forward`.
METHODS = (
    *("log_prob", "predict", "sample", "features", "log_prob_from", "mixture", "softmaxes"),
    *("per_token_log_probs", "penalty", "initial_state", "advance"),
)


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
    check_shardable(head)
    group = mesh.get_group()
    for name, parameter in list(head.named_parameters()):
        if isinstance(parameter, DTensor):
            continue
        if name in ("weight", "bias"):
            found = distribute_tensor(parameter.detach(), mesh, [Shard(0)])
            setattr(head, name, nn.Parameter(found, parameter.requires_grad))
        else:
            dist.broadcast(parameter.detach(), dist.get_global_rank(group, 0), group=group)


def check_shardable(head: Head) -> None:
    """Raise unless `shard_head` can spread the vocabulary of a head like this."""
    kind = type(head)
    is_mixture = isinstance(head, MixtureHead) and head.logit_map is None
    if not is_mixture or kind.log_prob_from is not MixtureHead.log_prob_from:
        raise ValueError(f"head must be a mixture of softmaxes of logits, got {kind.__name__}")


def prepare_fsdp(model: nn.Module) -> None:
    """Let FSDP2 gather parameters for all methods of the heads in a model, not only `forward`.

    Call it after `fully_shard`. A head with an output embedding of its own may be a group for FSDP
    (`fully_shard(model.head)`); a tied one must be in the group of the input embedding, so it is
    only `fully_shard(model)` that covers both.
    """
    calls: dict[FSDPModule, _Calls] = {}
    for path, head in list(model.named_modules()):
        if isinstance(head, Head):
            owner = _owner(model, path)
            if owner not in calls:
                calls[owner] = _Calls(owner, model)
            _register(owner, head, calls[owner])


def _owner(model: nn.Module, path: str) -> FSDPModule:
    """The innermost module around a head whose parameters FSDP gathers together."""
    names = path.split(".") if path else []
    for count in range(len(names), -1, -1):
        module = model.get_submodule(".".join(names[:count]))
        if isinstance(module, FSDPModule):
            return module
    raise ValueError("model must be passed to fully_shard before, got one that was not")


class _Calls:
    """Calls that are under way in a module: inside one, the parameters are there.

    A call within, of the same head or of one that is a part of it, must not free them.
    """

    def __init__(self, owner: Any, root: Any) -> None:
        self.root, self.depth = root, 0
        self.is_first = isinstance(root, FSDPModule) and root is not owner
        owner.register_forward_pre_hook(self.enter)
        owner.register_forward_hook(self.leave, always_call=True)

    @property
    def are_under_way(self) -> bool:
        """Also in a backward pass, for which FSDP has gathered: a checkpoint computes anew."""
        return self.depth > 0 or torch._C._current_graph_task_id() != -1

    def start_root(self) -> None:
        """Let FSDP begin with the whole model, as it must, where a head is called first."""
        if self.is_first:
            self.is_first = False
            self.root._start = lambda: None
            register_fsdp_forward_method(self.root, "_start")
            self.root._start()
            self.root.reshard()

    def enter(self, *_: Any) -> None:
        self.depth += 1

    def leave(self, *_: Any) -> None:
        # It is called, too, where what comes before `enter` has failed.
        self.depth = max(0, self.depth - 1)


def _register(owner: Any, head: Head, calls: _Calls) -> None:
    def outermost(plain: Callable[..., Any], gathering: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def method(*arguments: Any, **options: Any) -> Any:
            if calls.are_under_way:
                if not calls.depth:
                    # A checkpoint around the call computes anew before FSDP knows of its gradient.
                    owner.unshard()
                return plain(*arguments, **options)
            calls.start_root()
            calls.enter()
            try:
                return gathering(*arguments, **options)
            finally:
                calls.leave()
                # Parameters that stay gathered would not see the optimiser's next step.
                owner.reshard()

        return method

    for name in METHODS if owner is head else ("forward", *METHODS):
        plain = getattr(head, name, None)
        # A part of a head may have the name of a method.
        if plain is not None and not isinstance(plain, nn.Module):
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
