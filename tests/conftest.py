"""What all tests share: the same random numbers in every run, one thread each, a CPU that can
multiply bfloat16, default signals, a cache of their own, an observer, and approved texts.
"""

import html
import inspect
import multiprocessing
import os
import pickle
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import settings
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data import senses
from highrank.data.vocabulary import Vocabulary
from highrank.environment import prepare_bfloat16

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
# Tensors here are small, and pytest-xdist has a worker on every core: threads only get in the way,
# in the commands that tests start, too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before any test computes: later it could come too late.
prepare_bfloat16()
# A shell that starts the tests in its background lets them ignore Ctrl-C, and so their children.
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
# No test reads or fills the user's cache.
CACHE = tempfile.TemporaryDirectory(prefix="highrank-tests-")
os.environ["HIGHRANK_CACHE"] = CACHE.name


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def child(tmp_path):
    """Starts processes in a folder of their own; none outlives its test or two minutes."""
    started = []

    def start(*command, **options):
        options = {"cwd": tmp_path, "stderr": subprocess.PIPE, "text": True} | options
        process = subprocess.Popen([sys.executable, *map(str, command)], **options)
        timer = threading.Timer(120, process.kill)
        timer.start()
        started.append((process, timer))
        return process

    yield start
    for process, timer in started:
        timer.cancel()
        process.kill()
        process.communicate()


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


class Syncs(TorchDispatchMode):
    """Lists the operations inside `with Syncs()` that make the host wait for an accelerator."""

    WAITING = {
        "aten::_local_scalar_dense",
        "aten::nonzero",
        "aten::is_nonzero",
        "aten::equal",
        "aten::masked_select",
    }

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        masks = name == "aten::index" and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if name in self.WAITING or masks:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="session")
def syncs():
    return Syncs


def _memory(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.fixture(scope="session")
def watch():
    return Watch


class Processes:
    """Some processes that are joined by gloo and call functions of test files.

    Calling it with such a function and its arguments yields the results of all processes. They are
    started at the first call; after an error in one of them, again at the next.
    """

    def __init__(self, size, folder):
        self.size, self.folder, self.running, self.num_starts = size, folder, [], 0

    def __call__(self, function, *arguments):
        if not self.running:
            self.start()
        request = pickle.dumps((inspect.getfile(function), function.__name__, arguments))
        for _, pipe in self.running:
            pipe.send_bytes(request)
        try:
            return self.receive()
        except BaseException:
            self.stop()
            raise

    def receive(self, seconds=300):
        """The results, by rank. The first error counts: the others may wait for that process."""
        found, pipes = {}, [pipe for _, pipe in self.running]
        while len(found) < self.size:
            ready = wait([pipe for pipe in pipes if pipe not in found], seconds)
            assert ready, "the processes did not answer"
            for pipe in ready:
                is_result, found[pipe] = pickle.loads(pipe.recv_bytes())
                assert is_result, found[pipe]
        return [found[pipe] for pipe in pipes]

    def start(self):
        self.num_starts += 1
        context = multiprocessing.get_context("spawn")
        script = str(Path(__file__).with_name("process.py"))
        for rank in range(self.size):
            pipe, other = context.Pipe()
            given = {"rank": rank, "size": self.size, "pipe": other}
            given["store"] = str(self.folder / f"store-{self.num_starts}")
            process = context.Process(target=runpy.run_path, args=(script, given), daemon=True)
            process.start()
            other.close()
            self.running.append((process, pipe))

    def stop(self):
        for process, _ in self.running:
            process.kill()
            process.join()
        self.running = []


# Starting processes takes seconds: shares of all sizes are those of three.
SIZES = [pytest.param(2, id="two", marks=pytest.mark.slow), pytest.param(3, id="three")]


@pytest.fixture(scope="session", params=SIZES)
def processes(request, tmp_path_factory):
    found = Processes(request.param, tmp_path_factory.mktemp("processes"))
    yield found
    found.stop()


@pytest.fixture(scope="session")
def corpus():
    """A corpus in memory, from an exact language: what a session needs of one."""
    language = senses(vocab_size=20, num_contexts=16, num_senses=6, seed=1)
    sizes = {"train": 1_500, "valid": 200, "test": 200}
    splits = {
        name: language.sample(size, seed, num_chains=1).tokens.ravel().astype(np.uint16)
        for seed, (name, size) in enumerate(sizes.items())
    }
    vocabulary = Vocabulary(("<eos>", *(f"w{i}" for i in range(1, 20))))
    return in_memory(vocabulary, splits)


def in_memory(vocabulary, splits):
    """A corpus of these token ids."""
    counts = np.bincount(splits["train"], minlength=len(vocabulary)).tolist()
    return SimpleNamespace(
        vocabulary=vocabulary, token_counts=counts, split=splits.__getitem__, sentence_end=None
    )


@pytest.fixture(scope="session")
def config():
    return RunConfig(
        corpus="made in the tests",
        seed=3,
        model=ModelConfig(
            embedding_size=6,
            options={
                "hidden_sizes": (8, 7),
                "embedding_dropout": 0.1,
                "input_dropout": 0.1,
                "hidden_dropout": 0.1,
                "output_dropout": 0.1,
                "weight_dropout": 0.1,
                "activation_penalty": 0.1,
                "temporal_penalty": 0.1,
            },
        ),
        head=HeadConfig(kind="mos", num_components=3, dropout=0.1),
        batch=BatchConfig(batch_size=4, options={"bptt": 12, "bptt_max_delta": 8}),
        train=StageConfig(lr=1.0, epochs=3, switch_epoch=1, clip=1.0),
        finetune=StageConfig(optimizer="asgd", lr=1.0, epochs=2, clip=1.0),
        valid_batch_size=2,
    )


def page_text(page):
    """What a reader sees without the charts: a block in a line, a row of a table in a line."""
    page = re.sub(
        r"<svg.*?</svg>|<script>.*?</script>|<style.*?</style>|<head>.*?</head>",
        "",
        page,
        flags=re.S,
    )
    page = re.sub(r"\s+", " ", page)
    page = re.sub(r"</t[hd]> ?<t", " | <t", page)
    page = re.sub(r"</?(span|strong|em|a|code|t[hd])\b[^>]*>", "", page)
    text = html.unescape(re.sub(r"<[^>]+>", "\n", page)).replace("\u00a0", " ")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def table_text(table):
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


@pytest.fixture
def approve(request):
    """Compares a page, a table or a text with an approved text in a file, and returns it.

    With HIGHRANK_APPROVE=1 the text becomes the approved one.
    """

    def compare(name, shown):
        if not isinstance(shown, str):
            text = table_text(shown)
        else:
            text = page_text(shown) if shown.startswith("<!doctype html>") else shown
        path = request.path.parent / "approved" / name
        if os.environ.get("HIGHRANK_APPROVE"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        approved = path.read_text(encoding="utf-8").removesuffix("\n")
        assert text == approved, f"if the new text is right, HIGHRANK_APPROVE=1 writes {path}"
        return text

    return compare
