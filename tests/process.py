"""One of several processes that do what tests ask for, joined by gloo (see `processes`).

Run with the globals `rank`, `size`, `store` (a file to meet at) and `pipe` (to the tests).
"""

import pickle
import sys
import traceback
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location

import torch
import torch.distributed as dist

MODULES = {}


def function_of(path, name):
    """A function of a test file, which is loaded once."""
    if path not in MODULES:
        spec = spec_from_file_location(f"loaded_{len(MODULES)}", path)
        MODULES[path] = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(MODULES[path])
    return getattr(MODULES[path], name)


def answer(request):
    path, name, arguments = pickle.loads(request)
    torch.manual_seed(0)
    try:
        return True, function_of(path, name)(*arguments)
    except Exception:
        return False, traceback.format_exc()


def serve(rank, size, store, pipe):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{store}", timedelta(minutes=5), world_size=size, rank=rank
    )
    while request := pipe.recv_bytes():
        pipe.send_bytes(pickle.dumps(answer(request)))
    dist.destroy_process_group()


if __name__ == "<run_path>":
    serve(rank, size, store, pipe)  # noqa: F821
