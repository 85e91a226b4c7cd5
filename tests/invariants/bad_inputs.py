"""Throw bad inputs at every command: refused in a sentence, or done; no traceback, no hang.

    python tests/invariants/bad_inputs.py --cases 1000 --state bad_inputs.json

The state is kept after every case: the same command continues, a larger --cases goes further.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import mutations
import tiny
import torch
from tiny_studies import make_model

from highrank.cli.main import main as highrank
from highrank.heads import HEADS

# A case takes less than a second; CPU seconds, and seconds in which other programs may run, too.
CPU_SECONDS, SECONDS = 20, 200
EXTRA_BYTES = 3 << 30
ESCAPE = "\x1b[2J\x1b]0;title\x07"
COMMANDS = {
    "train": "train tale.txt --model.hidden-sizes 8 7 --model.embedding-size 6 --train.steps 2 "
    "--train.epochs 1 --head.kind HEAD --out new",
    "compare": "compare tale.txt --hidden-sizes 12 10 --embedding 8 --seeds 1 --heads mos "
    "--equal tokens --budget 9h --plan",
    "finetune": "finetune hub tale.txt --steps 1 --batch-size 2 --block-length 16 "
    "--eval-tokens 40 --out new",
    "evaluate": "evaluate run",
    "generate": "generate run --num-tokens 5",
    "audit": "audit hub --quick --text tale.txt --contexts 30",
    "audit run": "audit run --quick --contexts 30",
    "export": "export run new",
    "prepare": "data prepare tale.txt --cache new",
    "list": "data list",
    "demo": "demo --quick",
    "bench": "bench loss --quick",
    "presets": "presets",
}
# They compute for a minute: interrupted where they begin.
LONG = ("demo", "bench")
NUMBERS = (
    "0", "-1", "1", "3", "0.5", "100000", "2147483648", "9223372036854775808", "1" + 30 * "0",
    "1e308", "-1e308", "1e-320", "nan", "inf", "-inf",
)  # fmt: skip
PLACES = (
    "", "-", "--", "nowhere", "nowhere/else", "folder", "loop", "fifo", "empty", "binary", "deep",
    f"{ESCAPE}.txt", f"{ESCAPE}nowhere", "caf\udce9", "x" * 5000, "/dev/null", "/dev/zero",
    "/proc/self/mem", "run", "hub", "tale.txt", "..",
)  # fmt: skip


class Thrower:
    """A folder with a text, a run, a model of Hugging Face and traps, and commands in it."""

    def __init__(self, folder):
        self.folder, self.options = folder, {}
        corpus = tiny.make_corpus(folder)
        tiny.train("adamw", corpus, folder / "run")
        make_model(folder / "hub")
        (folder / "folder").mkdir()
        (folder / "loop").symlink_to("loop")
        os.mkfifo(folder / "fifo")
        (folder / "empty").touch()
        (folder / "binary").write_bytes(random.Random(0).randbytes(5000))
        (folder / "deep").write_text("[" * 100_000)
        shutil.copy(folder / "tale.txt", folder / f"{ESCAPE}.txt")
        self.call(["evaluate", "run"])
        shutil.copytree(folder / "hub", folder / "sound-hub")
        shutil.copytree(folder / "run/results", folder / "sound-results")

    def options_of(self, command):
        """All options of a command, as its help has them."""
        key = " ".join(command)
        if key not in self.options:
            printed = io.StringIO()
            with (
                contextlib.redirect_stdout(printed),
                contextlib.suppress(SystemExit),
                contextlib.chdir(self.folder),
                arguments([*command, "--help"]),
            ):
                highrank()
            self.options[key] = sorted(set(re.findall(r"--[a-z][\w.-]*\w", printed.getvalue())))
        return self.options[key]

    def case(self, seed):
        """Throw one input: the command, how it ended, and what went wrong."""
        rng = random.Random(seed)
        name = rng.choice(list(COMMANDS))
        words = COMMANDS[name].replace("HEAD", rng.choice(list(HEADS))).split()
        throw = rng.choice((throw_option, throw_option, throw_options, throw_place, throw_damage))
        self.restore()
        given = throw(self, rng, words)
        ended, printed = self.call(given, is_long=name in LONG)
        problem = None
        if ended not in (0, 2, 3, 130) or "Traceback" in printed or "\x1b" in printed:
            problem = f"{seed}: {given!r:.400} ended with {ended}: {printed[-800:]}"
        return name, ended, problem

    def restore(self):
        for name, sound in (("hub", "sound-hub"), ("run/results", "sound-results"), ("new", None)):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            if sound is not None:
                shutil.copytree(self.folder / sound, self.folder / name)

    def call(self, given, is_long=False):
        """The command in a process of its own: its exit code, and what it printed."""
        with tempfile.TemporaryFile() as printed:
            child = tiny.in_child(lambda: self._work(given, printed, is_long))
            ended = wait(child)
            printed.seek(0)
            return ended, printed.read().decode(errors="replace")

    def _work(self, given, printed, is_long):
        for stream in (1, 2):
            os.dup2(printed.fileno(), stream)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_BYTES, used + EXTRA_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
        os.chdir(self.folder)
        os.environ |= {"HIGHRANK_CACHE": str(self.folder / "cache"), "HF_HUB_OFFLINE": "1"}
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w") for n in (1, 2))
        if is_long:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.alarm(3)
        with arguments(given):
            try:
                highrank()
                code = 0
            except SystemExit as end:
                code = end.code
            except BaseException:
                traceback.print_exc()
                code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


@contextlib.contextmanager
def arguments(given):
    before, sys.argv = sys.argv, ["highrank", *given]
    try:
        yield
    finally:
        sys.argv = before


def wait(child):
    """The exit code of a process, or "hang"."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hang"


def throw_option(thrower, rng, words):
    """One option with a value that few would give it."""
    names = thrower.options_of(words)
    values = NUMBERS if rng.random() < 0.7 else PLACES
    name = rng.choice(names) if names else "--json"
    return [*words, name, *rng.choices(values, k=rng.choice((0, 1, 1, 1, 1, 2)))]


def throw_options(thrower, rng, words):
    return throw_option(thrower, rng, throw_option(thrower, rng, words)[: len(words) + 2])


def throw_place(thrower, rng, words):
    """Another path in the place of one that is there."""
    found = [i for i, word in enumerate(words) if word in ("tale.txt", "run", "hub", "new")]
    words = list(words)
    if found:
        words[rng.choice(found)] = rng.choice(PLACES)
    return words


def throw_damage(thrower, rng, words):
    """A damaged file of the model, or of a run's results."""
    files = sorted([*(thrower.folder / "hub").iterdir(), *thrower.folder.glob("run/results/*")])
    path = rng.choice(files)
    kind = rng.randrange(4)
    if kind == 0 and path.name == "config.json":
        content = json.loads(path.read_text())
        key = rng.choice([key for key, value in content.items() if isinstance(value, int)])
        path.write_text(json.dumps(content | {key: rng.choice((10**5, 10**9, 2**63, -1, 0))}))
    elif kind == 0:
        path.unlink()
        os.mkfifo(path)
    elif kind == 1:
        mutations.mutate_place(rng, path)
    else:
        special = mutations.SPECIAL.get(path.suffix, mutations.mutate_bytes)
        rng.choice((special, mutations.mutate_bytes))(rng, path)
    return words


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--state", type=Path, default=Path("bad_inputs.json"))
    options = parser.parse_args()
    state = {"cases": 0, "commands": {}, "ends": {}, "problems": []}
    if options.state.exists():
        state = json.loads(options.state.read_text())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        thrower = Thrower(Path(folder))
        while state["cases"] < options.cases:
            name, ended, problem = thrower.case(options.first + state["cases"])
            state["cases"] += 1
            state["commands"] = dict(Counter(state["commands"]) + Counter([name]))
            state["ends"] = dict(Counter(state["ends"]) + Counter([str(ended)]))
            state["problems"] += [problem] if problem else []
            tiny.write_json(options.state, state)
    print(json.dumps(state, indent=1))
    raise SystemExit(bool(state["problems"]))


if __name__ == "__main__":
    main()
