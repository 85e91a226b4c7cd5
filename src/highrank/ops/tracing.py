"""Whether the host, or a Triton kernel, may look at the numbers of a tensor."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_static(tensor: Tensor) -> bool:
    """Whether shapes and control flow must not depend on the numbers in tensors.

    So it is on accelerators, where looking means waiting, and in a trace.
    """
    return not tensor.is_cpu or is_traced(tensor)


def is_traced(tensor: Tensor) -> bool:
    """Whether a compiler or `torch.vmap` stands between the code and the numbers.

    There sizes may be symbols, so that chunks cannot be counted.
    """
    return torch.compiler.is_compiling() or is_fake(tensor) or in_vmap()


def needs_operators(tensor: Tensor) -> bool:
    """Whether only torch's operators will do, and no backward pass of our own.

    So it is in a trace, in transforms of `torch.func`, and where tangents come along.
    """
    return is_traced(tensor) or in_torch_func() or in_forward_mode()


def is_fake(tensor: Tensor) -> bool:
    """Whether the tensor stands for another one and has no numbers."""
    return tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor)


def in_torch_func() -> bool:
    """Whether a transform such as `torch.func.grad` or `torch.vmap` surrounds this call."""
    return torch._C._are_functorch_transforms_active()


def in_vmap() -> bool:
    """Whether a call of `torch.vmap` surrounds this one."""
    return _is_surrounded_by("Vmap")


def in_forward_mode() -> bool:
    """Whether tangents may come along: in `torch.func.jvp`, or in a level of dual numbers."""
    return forward_ad._current_level >= 0 or _is_surrounded_by("Jvp")


def _is_surrounded_by(transform: str) -> bool:
    if not in_torch_func():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or []
    kind = getattr(torch._C._functorch.TransformType, transform)
    return any(level.key() == kind for level in stack)


def runs_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels can take the tensor: real numbers on a device of CUDA or ROCm."""
    if not tensor.is_cuda or not _has_triton() or torch.compiler.is_compiling() or is_fake(tensor):
        return False
    # Triton does not compile for older devices, and knows no wrapped tensors of torch.func.
    is_recent = torch.cuda.get_device_capability(tensor.device) >= (7, 0)
    return is_recent and not in_torch_func()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
