"""Runs, upgrades and comparisons for `golden.py`.

Runs are made by the command line, as users make them. `summary_of` alone calls insides of a study.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import golden_cases as cases
import torch
from golden_cases import K, draw_ids
from golden_values import gradients, old_name
from safetensors.torch import load_file

import highrank

RESULTS = Path(__file__).parents[2] / "results" / "compare"
# Of what a command prints: times, places, and the machine.
IGNORED = {
    "seconds",
    "cpu_seconds",
    "waiting_fraction",
    "data_seconds",
    "elapsed",
    "environment",
    "file",
    "path",
    "made_by",
}
# No command takes so long.
MOST_SECONDS = 180


def runs():
    """Logs and weights of runs, and the output of commands on them."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        cases.write_texts(folder)
        cases.write_huggingface(folder / "gpt2")
        yield "runs/tale", printed(folder, "data prepare tale.txt --min-count 1 --json")
        for name, options in cases.RUNS.items():
            preset, rest = options.split(maxsplit=1)
            # Of an option that is given twice, the last counts.
            command = f"train {preset} {cases.NETWORK} {rest} --out {name}"
            yield f"runs/{name}", chain(printed(folder, command), run_values(folder / name))
        for name, command in cases.COMMANDS.items():
            values = printed(folder, f"{command} --threads 1")
            if "tokens.jsonl" in command:
                values = chain(values, token_values(folder / "tokens.jsonl"))
            yield f"runs/{name}", values


def printed(folder, command):
    """Yield the leaves of the JSON that a command prints, in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(highrank.__file__).parents[1]),
        "HIGHRANK_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "highrank", *shlex.split(command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        preexec_fn=default_signals,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    yield from leaves("printed", json.loads(done.stdout))


def default_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run_values(folder):
    lines = read_lines(folder / "metrics.jsonl")
    for event in dict.fromkeys(line["event"] for line in lines):
        some = [line for line in lines if line["event"] == event]
        yield from leaves(f"metrics/{event}", columns(some))
    kind = json.loads((folder / "config.json").read_text())["head"]["kind"]
    for name, tensor in load_file(folder / "model.safetensors").items():
        part, _, rest = name.partition(".")
        yield f"model/{part}.{old_name(kind, rest) if part == 'head' else rest}", tensor


def token_values(path):
    yield from leaves("tokens", columns(read_lines(path)))


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def columns(lines):
    """Return objects with much the same fields as one object of lists."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}


def leaves(key, value):
    """The leaves of a JSON value; a list without objects is one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in IGNORED:
                yield from leaves(f"{key}/{name}", inner)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from leaves(f"{key}/{index}", item)
    else:
        yield key, value


def upgrades():
    """Log-probabilities and gradients of upgraded Hugging Face models."""
    for architecture, kinds in cases.UPGRADES.items():
        for kind, start in kinds:
            key = f"upgrade/{architecture}/{kind}-{start or 'default'}"
            yield key, upgrade_values(architecture, kind, start)


def upgrade_values(architecture, kind, start):
    tokens = draw_ids("tokens", 2, 12, least=2, vocab_size=256)
    model = cases.make_plain(architecture)
    with torch.no_grad():
        before = model(tokens).logits.log_softmax(-1)
        model = highrank.upgrade(model, head=kind, start=start, num_components=K)
        after = model(tokens).logits.log_softmax(-1)
    distance = (after.exp() - before.exp()).abs().sum(-1).max().item() / 2
    yield "is_unchanged", distance < 2e-4
    yield "before", before
    yield "after", after
    loss = model(input_ids=tokens, labels=tokens).loss
    yield "loss", loss
    for name, gradient in gradients(loss, dict(model.named_parameters())):
        yield f"gradient/{name}", gradient


def comparisons():
    """Statistics and sentences of stored comparisons."""
    for name in cases.COMPARISONS:
        (path,) = RESULTS.glob(f"*-{name}.json")
        yield f"compare/{name}", summary_values(json.loads(path.read_text()))


def summary_values(stored):
    for name, value in summary_of(stored).items():
        yield from leaves(name, value)


def summary_of(stored):
    """Summary of a stored comparison, computed anew from its records, as JSON has it."""
    from highrank.files import from_json
    from highrank.studies.compare.measure import summarise_costs, summarise_regime
    from highrank.studies.compare.plan import FORMAT, PLAN_FILE, VERSION, read_plan
    from highrank.studies.compare.record import RunRecord
    from highrank.studies.compare.sentences import answer, recommend

    with tempfile.TemporaryDirectory() as folder:
        content = {"format": FORMAT, "version": VERSION, **stored["plan"]}
        (Path(folder) / PLAN_FILE).write_text(json.dumps(content))
        plan = read_plan(Path(folder))
    runs = [from_json(RunRecord, run) for run in stored["runs"]]
    regimes = [summarise_regime(plan, runs, name) for name in plan.regimes]
    costs = summarise_costs(plan, runs, regimes[0])
    rows = [row for regime in regimes for row in regime.rows]
    found = {
        "answer": answer(plan, regimes, True, stored["corpus"]),
        "verdicts": [row.valid and row.valid.verdict for row in rows],
        "recommendation": asdict(recommend(plan, regimes, costs, stored["num_train"])),
        "regimes": [asdict(regime) for regime in regimes],
        "costs": [asdict(cost) for cost in costs],
    }
    return json.loads(json.dumps(found))
