"""Damage the files of a run or of its corpus, and read them: refused in a sentence, or unharmed.

    python tests/invariants/mutations.py --cases 6000 --state mutations.json

The state is kept every hundred cases: the same command continues, a larger --cases goes further.
"""

import argparse
import gc
import json
import os
import random
import resource
import shutil
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from highrank.config import RunConfig
from highrank.data.corpus import load_corpus
from highrank.evaluation.static import evaluate
from highrank.models.tensors import content_sha256
from highrank.run.configuration import read_config
from highrank.run.folder import read_corpus
from highrank.run.loading import load, load_run
from highrank.training.session import open_session

# What no reader may ask for, however large a damaged file claims to be.
EXTRA_BYTES = 2 << 30
VALUES = (
    None, True, False, 0, -1, 1, 3, 10**9, 10**30, 0.5, -0.5, 1e308, float("nan"), float("inf"),
    "", "text", "\0", "../..", [], [1], [[]], {}, {"a": 1},
)  # fmt: skip


def flip_bit(rng, data):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def set_byte(rng, data):
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(1) + data[at + 1 :]


def cut(rng, data):
    return data[: rng.randrange(len(data))]


def insert(rng, data):
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 64)) + data[at:]


def remove(rng, data):
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 64) :]


def zero(rng, data):
    at, size = rng.randrange(len(data)), rng.randint(1, 64)
    return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]


def swap(rng, data):
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[b:] + data[a:b] + data[:a]


def replace_whole(rng, data):
    return rng.choice([b"", b"{}", b"[]", b"null", b"[" * 5000, b"\xff" * 99, rng.randbytes(99)])


BYTES = (flip_bit, flip_bit, set_byte, cut, insert, remove, zero, swap, replace_whole)


def mutate_bytes(rng, path):
    data = path.read_bytes()
    path.write_bytes(rng.choice(BYTES)(rng, data) if data else b"{")


def mutate_place(rng, path):
    """Not there, a folder, or a link."""
    path.unlink()
    kind = rng.randrange(4)
    if kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to("nowhere")
    elif kind == 3:
        path.symlink_to("/dev/null")


def mutate_json(rng, path):
    """Another value, another type, a key more or less, or a deep nest somewhere."""
    content = json.loads(
        path.read_text().splitlines()[0] if path.suffix == ".jsonl" else path.read_text()
    )
    parents = [content]
    for parent in parents:
        values = parent.values() if isinstance(parent, dict) else parent
        parents += [
            value for value in list(values)[:200] if isinstance(value, dict | list) and value
        ]
    parent = rng.choice(parents)
    keys = list(parent) if isinstance(parent, dict) else range(len(parent))
    key = rng.choice(list(keys))
    kind = rng.randrange(5)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[rng.choice(["surprise", "", "kind"])] = rng.choice(VALUES)
    elif kind == 2:
        parent[key] = "DEEP"
    else:
        parent[key] = rng.choice(VALUES)
    depth = 10 ** rng.randint(1, 5)
    path.write_text(json.dumps(content).replace('"DEEP"', "[" * depth + "]" * depth))


def mutate_tensor(rng, tensor):
    """Another tensor, as a careless program might leave it."""
    tensor = tensor.clone()
    kind = rng.randrange(6)
    if kind == 0 and tensor.is_floating_point() and tensor.numel():
        tensor.view(-1)[rng.randrange(tensor.numel())] = float(rng.choice(["nan", "inf", "-inf"]))
    elif kind == 1 and tensor.numel():
        tensor.view(-1)[rng.randrange(tensor.numel())] += 1
    elif kind == 2:
        tensor = tensor[..., :-1].contiguous() if tensor.dim() else tensor.expand(2).clone()
    elif kind == 3:
        tensor = tensor.to(torch.float64 if tensor.dtype != torch.float64 else torch.float16)
    elif kind == 4:
        tensor = tensor.expand(2, *tensor.shape).contiguous()
    else:
        tensor = torch.zeros_like(tensor) + 7
    return tensor


def mutate_safetensors(rng, path):
    with safe_open(path, "pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name, kind = rng.choice(sorted(tensors)), rng.randrange(4)
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[rng.choice(["more", "head.weight"])] = torch.zeros(3)
    else:
        tensors[name] = mutate_tensor(rng, tensors[name])
    save_file(tensors, path, about)


def mutate_checkpoint(rng, path):
    state = torch.load(path, weights_only=True)
    parents = [state]
    for parent in parents:
        values = parent.values() if isinstance(parent, dict) else parent
        parents += [value for value in values if isinstance(value, dict | list) and value]
    parent = rng.choice(parents)
    key = rng.choice(list(parent) if isinstance(parent, dict) else list(range(len(parent))))
    if isinstance(parent[key], torch.Tensor) and rng.random() < 0.8:
        parent[key] = mutate_tensor(rng, parent[key])
    elif rng.random() < 0.3:
        del parent[key]
    else:
        parent[key] = rng.choice(VALUES)
    torch.save(state, path)


def mutate_tokens(rng, path):
    """Ids beyond the vocabulary, or others."""
    tokens = np.fromfile(path, "<u2")
    tokens[rng.randrange(len(tokens))] = rng.choice([14, 1000, 65_535, 0, 1])
    tokens.tofile(path)


SPECIAL = {
    ".json": mutate_json,
    ".jsonl": mutate_json,
    ".safetensors": mutate_safetensors,
    ".pt": mutate_checkpoint,
    ".bin": mutate_tokens,
}


class Mutator:
    """A finished run and one in the middle, to be copied and damaged."""

    def __init__(self, folder):
        self.folder = folder
        os.environ["HIGHRANK_CACHE"] = str(folder / "nothing")
        corpus = tiny.make_corpus(folder)
        shutil.copytree(corpus.path, folder / "corpus")
        corpus = load_corpus(folder / "corpus")
        tiny.train("adamw", corpus, folder / "finished")
        self._leave_in_the_middle(corpus, folder / "middle")
        gc.collect()
        self.files = [
            (run, place / name)
            for run in ("finished", "middle")
            for place in (Path(run), Path("corpus"))
            for name in sorted(path.name for path in (folder / place).iterdir())
        ]
        self.sound = {}
        for run in ("finished", "middle"):
            self._copy(run)
            self.sound[run] = {reader.__name__: reader(folder / "copy" / run) for reader in READERS}

    def _leave_in_the_middle(self, corpus, folder):
        run = open_session(tiny.CONFIGS["finetuning"], corpus, folder)
        run.on_progress = lambda now: now.step == 20 and run._note_signal(2)
        assert run.go().reason == "interrupted"

    def _copy(self, run):
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        for name in (run, "corpus"):
            shutil.copytree(self.folder / name, self.folder / "copy" / name)
        record = self.folder / "copy" / run / "corpus.json"
        text = record.read_text().replace(
            str(self.folder / "corpus"), str(self.folder / "copy/corpus")
        )
        record.write_text(text)

    def case(self, seed):
        """Damage one file: what each reader did, and what went wrong."""
        rng = random.Random(seed)
        run, file = rng.choice(self.files)
        self._copy(run)
        path = self.folder / "copy" / file
        mutate = rng.choice([mutate_bytes, mutate_bytes, SPECIAL.get(file.suffix, mutate_bytes)])
        if rng.random() < 0.05:
            mutate = mutate_place
        before = path.read_bytes()
        mutate(rng, path)
        name = f"{seed}: {mutate.__name__} of {file}"
        if path.is_file() and path.read_bytes() == before:
            return {"unchanged": 1}, []
        found = [self._read(reader, run, name) for reader in READERS]
        return Counter(kind for kind, _ in found), [problem for _, problem in found if problem]

    def _read(self, reader, run, name):
        try:
            result = reader(self.folder / "copy" / run)
        except (ValueError, OSError) as error:
            message = str(error)
            if "\n" in message or str(self.folder) not in message:
                return (
                    "refused",
                    f"{name}, {reader.__name__}: no sentence with a file: {message!r:.300}",
                )
            return "refused", None
        except BaseException:
            return "traceback", f"{name}, {reader.__name__}: {traceback.format_exc()[-600:]}"
        if result != self.sound[run][reader.__name__]:
            return "changed", f"{name}, {reader.__name__}: accepted with other tensors"
        return "accepted", None


def read_model(folder):
    """As `highrank generate`: the best model."""
    model, vocabulary = load(folder)
    return content_sha256(model.state_dict()), vocabulary.sha256


def read_run(folder):
    """As `highrank evaluate`: the best model on a split."""
    loaded = load_run(folder)
    tokens = loaded.corpus.split("valid")
    evaluate(loaded.model, tokens, 2)
    return content_sha256(loaded.model.state_dict()), content_sha256(tokens.tolist())


def resume(folder):
    """As `highrank train --resume`, for one step."""
    config = read_config(folder)
    assert isinstance(config, RunConfig)
    run = open_session(config, read_corpus(folder, config).prepared, folder)
    before = content_sha256(run.trainer.state_dict())
    if not run.batches.is_epoch_over:
        run._step(run.progress)
    lines = [(line["event"], line.get("train_loss")) for line in run.log.read()]
    return before, content_sha256(run.trainer.model.state_dict()), lines


READERS = (read_model, read_run, resume)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=6000)
    parser.add_argument("--state", type=Path, default=Path("mutations.json"))
    options = parser.parse_args()
    state = {"cases": 0, "results": {}, "problems": []}
    if options.state.exists():
        state = json.loads(options.state.read_text())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mutator = Mutator(Path(folder))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_BYTES, used + EXTRA_BYTES))
        while state["cases"] < options.cases:
            counts, problems = mutator.case(state["cases"])
            state["cases"] += 1
            state["results"] = dict(Counter(state["results"]) + Counter(counts))
            state["problems"] += problems
            if state["cases"] % 100 == 0 or state["cases"] == options.cases:
                tiny.write_json(options.state, state)
                gc.collect()
    print(json.dumps(state, indent=1))
    raise SystemExit(bool(state["problems"]))


if __name__ == "__main__":
    main()
