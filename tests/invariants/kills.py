"""Kill runs and studies at random moments and resume them: they end as if nothing had happened.

    python tests/invariants/kills.py --kills 1000 --state kills.json

The state is kept after every run: the same command continues, a larger --kills goes further.
"""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import tiny

from highrank.training import session

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The next signal comes after at most this fraction of the time that a whole run takes.
LONGEST = 0.7


class Killer:
    """Runs of all kinds, killed and compared with those that were not.

    Args:
        folder: for the corpus and the runs.
        has_studies: whether comparisons and finetunings are among them.
    """

    def __init__(self, folder, has_studies=False):
        self.folder, self.studies = folder, {}
        self.corpus = tiny.make_corpus(folder)
        self.whole, self.seconds = {}, {}
        # Many checkpoints, so that many moments lie inside one.
        session.SECONDS_BETWEEN_CHECKPOINTS = 0.02
        tiny.warm_up(self.corpus, folder / "warm")
        if has_studies:
            from tiny_studies import TinyComparison, TinyFinetuning

            finetuning = TinyFinetuning(folder)
            self.studies = {"compare": TinyComparison(self.corpus), "finetune": finetuning}
        self.kinds = (*tiny.CONFIGS, *self.studies)

    def reference(self, kind):
        if kind not in self.whole:
            run, start = self.folder / f"whole-{len(self.whole)}", time.monotonic()
            assert tiny.exit_code(self.start(kind, run)) == 0
            self.seconds[kind] = time.monotonic() - start
            self.whole[kind] = self.everything(kind, run)
        return self.whole[kind]

    def start(self, kind, run):
        if kind in self.studies:
            return tiny.in_child(lambda: self.studies[kind].train(run))
        return tiny.in_child(lambda: tiny.train(kind, self.corpus, run))

    def everything(self, kind, run):
        study = self.studies.get(kind)
        return tiny.everything(run) if study is None else study.everything(run)

    def case(self, seed):
        """One run, killed until it has come to its end: number of kills, and what went wrong."""
        rng, run = random.Random(seed), self.folder / "run"
        kind, counts, problem = rng.choice(self.kinds), {}, None
        want = self.reference(kind)
        shutil.rmtree(run, ignore_errors=True)
        for _ in range(rng.randint(1, 4)):
            number = rng.choice(SIGNALS)
            child = self.start(kind, run)
            time.sleep(rng.uniform(0, LONGEST) * self.seconds[kind])
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                # The machine is less busy than it was.
                self.seconds[kind] *= 0.8
                break
            os.kill(child, number)
            code = tiny.exit_code(child)
            counts[number.name] = counts.get(number.name, 0) + 1
            # 0: it was saved. Negative or 130: the signal came before there was anything to save.
            if code not in (0, 130, -number):
                problem = f"{kind}, seed {seed}: exit code {code} after {number.name}"
        code = tiny.exit_code(self.start(kind, run))
        if code != 0:
            problem = f"{kind}, seed {seed}: exit code {code} when resumed"
        elif (found := self.everything(kind, run)) != want:
            changed = [name for name in want if found[name] != want[name]]
            problem = f"{kind}, seed {seed}: other {', '.join(changed)}"
            problem += f": {found['files']}" if "files" in changed else ""
        return kind, counts, problem


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--state", type=Path, default=Path("kills.json"))
    options = parser.parse_args()
    state = {"cases": 0, "kills": {}, "kinds": {}, "problems": []}
    if options.state.exists():
        state = json.loads(options.state.read_text())
    with tempfile.TemporaryDirectory() as folder:
        killer = Killer(Path(folder), has_studies=True)
        while sum(state["kills"].values()) < options.kills:
            kind, counts, problem = killer.case(options.first + state["cases"])
            state["cases"] += 1
            state["kinds"][kind] = state["kinds"].get(kind, 0) + sum(counts.values())
            for name, count in counts.items():
                state["kills"][name] = state["kills"].get(name, 0) + count
            state["problems"] += [problem] if problem else []
            tiny.write_json(options.state, state)
    print(json.dumps(state, indent=1))
    raise SystemExit(bool(state["problems"]))


if __name__ == "__main__":
    main()
