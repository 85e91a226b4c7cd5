"""What all tests share: the same random numbers in every run, one thread each, a CPU that can
multiply bfloat16, and an observer.
"""

import os

import pytest
import torch
from hypothesis import settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from highrank.environment import prepare_bfloat16

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
# Tensors here are small, and pytest-xdist has a worker on every core: threads only get in the way,
# in the commands that tests start, too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before any test computes: later it could come too late.
prepare_bfloat16()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Watch(TorchDispatchMode):
    """Counts the matrix multiplies inside `with Watch()`, and lists the sizes of new tensors."""

    def __init__(self):
        super().__init__()
        self.num_multiplies, self.sizes = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        name = func.overloadpacket.__name__.strip("_")
        self.num_multiplies += name in ("mm", "addmm", "bmm", "linear")
        known = {_memory(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor) and _memory(result) not in known:
                self.sizes.append(result.numel())
        return results


def _memory(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.fixture(scope="session")
def watch():
    return Watch
