"""Kill one process or all of a run in several processes, and resume it: nothing is lost.

    python tests/invariants/worker_kills.py --kills 60 --state worker-kills.json

With the same number of processes the run ends with the same bits as one that was not killed. With
other numbers, 2 → 1 → 2 or 2 → 3, it reads the same tokens in the same order and ends, in float64
and without dropout, with the same numbers up to 1e-6. The state is kept after every run: the same
command continues, a larger --kills goes further.
"""

import argparse
import itertools
import json
import math
import os
import random
import shutil
import signal
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import tiny
import torch
import torch.distributed as dist

# Children would each load them for runs in shards.
import torch.distributed.checkpoint
import torch.distributed.fsdp

from highrank.config import BatchConfig
from highrank.models.tensors import read_tensors
from highrank.training import session
from highrank.training.world import World, is_lost

# Numbers of processes, one after the other; the last one ends the run.
PLANS = ((2, 2, 2), (2, 2, 2), (3, 3), (2, 1, 2), (2, 3), (1, 2, 3))
# The exit code of a process that another one has left.
LOST = 75
# Seconds after which torchrun would kill what is left.
PATIENCE = 30.0
# The next signal comes after at most this fraction of the time that a whole run takes.
LONGEST = 0.7
TOLERANCE = 1e-6
# No process with a part of the vocabulary knows them; alone, each does.
OF_COMPONENTS = {"specialisation", "effective_components"}
DROPOUTS = ("embedding", "input", "hidden", "output", "weight")


def six(config):
    """The run with batches that one, two or three processes can share."""
    return replace(config, batch=replace(config.batch, batch_size=6, micro_batch_size=None))


def without_dropout(config):
    """Nor penalties, which are means over each process' sequences, padding included."""
    options = dict(config.model.options) | {f"{name}_dropout": 0.0 for name in DROPOUTS}
    if config.batch.kind == "sentences":
        options |= {"activation_penalty": 0.0, "temporal_penalty": 0.0}
    model, head = replace(config.model, options=options), replace(config.head, dropout=0.0)
    return replace(config, model=model, head=head)


SENTENCES = BatchConfig(kind="sentences", batch_size=6, micro_batch_size=2, options={"length": 10})
CONFIGS = {
    "asgd": six(tiny.BASE),
    "finetuning": six(tiny.CONFIGS["finetuning"]),
    "adamw": six(tiny.CONFIGS["adamw"]),
    "micro-batches": replace(
        six(tiny.BASE), batch=replace(six(tiny.BASE).batch, micro_batch_size=1)
    ),
    "budget": six(tiny.CONFIGS["budget"]),
    "sentences": replace(tiny.CONFIGS["adamw"], batch=SENTENCES),
    # In shards where there are several processes.
    "full": six(tiny.CONFIGS["adamw"]),
    "vocabulary": six(tiny.CONFIGS["finetuning"]),
    "full sentences": replace(tiny.CONFIGS["adamw"], batch=SENTENCES),
    "vocabulary sentences": replace(tiny.CONFIGS["adamw"], batch=SENTENCES),
}
EXACT = {
    f"{name}, exact": without_dropout(config)
    for name, config in CONFIGS.items()
    if name not in ("asgd", "micro-batches", "budget")
}


class Killer:
    """Runs in several processes, killed and compared with those that were not."""

    def __init__(self, folder, only=""):
        self.folder, self.num_starts, self.only = folder, 0, only
        self.corpus = tiny.make_corpus(folder)
        self.whole, self.seconds = {}, {}
        tiny.CONFIGS |= CONFIGS | EXACT
        # Many checkpoints, so that many moments lie inside one.
        session.SECONDS_BETWEEN_CHECKPOINTS = 0.02
        tiny.warm_up(self.corpus, folder / "warm")

    def start(self, kind, run, size):
        """Processes that train or resume the run."""
        self.num_starts += 1
        store = self.folder / f"store-{self.num_starts}"
        return [
            tiny.in_child(lambda rank=rank: self.work(kind, run, rank, size, store))
            for rank in range(size)
        ]

    def work(self, kind, run, rank, size, store):
        if "exact" in kind:
            torch.set_default_dtype(torch.float64)
        try:
            if size > 1:
                wait = timedelta(minutes=2)
                dist.init_process_group("gloo", f"file://{store}", wait, size, rank)
            shard = kind.split()[0].rstrip(",")
            is_sharded = shard in ("full", "vocabulary") and size > 1
            world = replace(World.current(), shard=shard if is_sharded else "none")
            tiny.train(kind, self.corpus, run, world)
            if size > 1:
                dist.barrier()
        except RuntimeError as error:
            if not is_lost(error):
                raise
            os._exit(LOST)

    def reference(self, kind, size):
        """A run that was not killed, of this number of processes."""
        if (kind, size) not in self.whole:
            run, start = self.folder / f"whole-{len(self.whole)}", time.monotonic()
            codes, _ = ended(self.start(kind, run, size))
            assert codes == [0] * size, codes
            self.seconds[kind, size] = time.monotonic() - start
            self.whole[kind, size] = run
        return self.whole[kind, size]

    def case(self, seed):
        """One run, killed until it has come to its end: its kind, kills, and what went wrong."""
        rng, run = random.Random(seed), self.folder / "run"
        plan, counts, problems = rng.choice(PLANS), {}, []
        kinds = tuple(CONFIGS if len(set(plan)) == 1 else EXACT)
        kind = rng.choice([kind for kind in kinds if self.only in kind])
        name = f"{kind}, {' → '.join(map(str, plan))}, seed {seed}"
        shutil.rmtree(run, ignore_errors=True)
        for size in plan[:-1]:
            self.reference(kind, size)
            children = self.start(kind, run, size)
            time.sleep(rng.uniform(0, LONGEST) * self.seconds[kind, size])
            how = self.kill(children, rng)
            codes, seconds = ended(children)
            counts[how] = counts.get(how, 0) + 1
            expected = {0, 130, LOST, -signal.SIGKILL, -signal.SIGTERM}
            if not set(codes) <= expected or seconds > PATIENCE:
                problems.append(f"{name}: {codes} {seconds:.0f} s after {how}")
        codes, _ = ended(self.start(kind, run, plan[-1]))
        if any(codes):
            problems.append(f"{name}: {codes} when resumed")
        else:
            want = self.reference(kind, plan[-1] if len(set(plan)) == 1 else 1)
            difference = (same_bits if len(set(plan)) == 1 else nearly_same)(run, want)
            problems += [f"{name}: other {difference}"] if difference else []
        return name.rsplit(",", 1)[0], counts, problems

    def kill(self, children, rng):
        """Send a signal to one or to all; returns which, and to whom."""
        number, is_one = rng.choice((signal.SIGKILL, signal.SIGTERM)), rng.random() < 0.5
        hit = [rng.choice(children)] if is_one else children
        for child in hit:
            # A process that has ended is there until it is waited for.
            os.kill(child, number)
        who = "all" if len(hit) == len(children) else "one"
        return f"{number.name} to {who} of {len(children)}"


def ended(children):
    """Exit codes of all processes, and the seconds until the last one ended.

    Without those in which they waited for a core: on a busy machine these are nearly all.
    """
    start, codes, waited = time.monotonic(), {}, {}
    before = {child: seconds_of_waiting(child) for child in children}
    seconds = 0.0
    while len(codes) < len(children):
        for child in set(children) - set(codes):
            waited[child] = seconds_of_waiting(child) - before[child]
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                codes[child] = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - start - sum(waited.values())
        if seconds > 4 * PATIENCE:
            for child in set(children) - set(codes):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[child] for child in children], seconds


def seconds_of_waiting(child):
    """How long a process, which may have ended, was ready to run and had no core."""
    return int(Path(f"/proc/{child}/schedstat").read_text().split()[1]) / 1e9


def same_bits(run, other):
    """What differs between two runs; empty if nothing does."""
    found, want = tiny.everything(run), tiny.everything(other)
    return ", ".join(name for name in want if found[name] != want[name])


def nearly_same(run, other):
    """What differs by more than the tolerance, of losses, counts of tokens and weights."""
    found, want = tiny.everything(run)["metrics"], tiny.everything(other)["metrics"]
    if len(found) != len(want):
        return "number of events"
    for line, same in zip(found, want, strict=True):
        if (line.keys() ^ same.keys()) - OF_COMPONENTS:
            return f"kinds of numbers at step {line.get('step')}"
        for key in line.keys() & same.keys():
            value = same[key]
            is_number = isinstance(value, float) and not isinstance(value, bool)
            if not (
                math.isclose(line[key], value, rel_tol=TOLERANCE)
                if is_number
                else line[key] == value
            ):
                return f"{key} at step {line.get('step')}"
    models = (read_tensors(folder / "model.safetensors") for folder in (run, other))
    one, two = models
    for name, tensor in two.items():
        if not torch.allclose(one[name], tensor, rtol=0, atol=TOLERANCE):
            return name
    return ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--state", type=Path, default=Path("worker-kills.json"))
    options = parser.parse_args()
    state = {"cases": 0, "kills": {}, "kinds": {}, "problems": []}
    if options.state.exists():
        state = json.loads(options.state.read_text())
    with tempfile.TemporaryDirectory() as folder:
        killer = Killer(Path(folder), options.only)
        for seed in itertools.count(options.first + state["cases"]):
            if sum(state["kills"].values()) >= options.kills:
                break
            kind, counts, problems = killer.case(seed)
            state["cases"] += 1
            state["kinds"][kind] = state["kinds"].get(kind, 0) + sum(counts.values())
            for name, count in counts.items():
                state["kills"][name] = state["kills"].get(name, 0) + count
            state["problems"] += problems
            tiny.write_json(options.state, state)
    print(json.dumps(state, indent=1))
    raise SystemExit(bool(state["problems"]))


if __name__ == "__main__":
    main()
