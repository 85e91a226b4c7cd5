"""Heads with options of their own through further commands; tests/invariants has every head."""

import json
import os
import subprocess
import sys

import pytest

from highrank import presets
from highrank.cli.options import with_own_options

TINY = """
--corpus tale --model.embedding-size 8 --model.hidden-sizes 12 10 --batch.batch-size 4
--valid-batch-size 2 --threads 1 --head.dropout 0.1 --train.epochs 1
"""
OPTIONS = {
    "low-rank-mos": "--head.num-components 3 --head.rank 2",
    "doc": "--head.num-components 4 --head.layers 0 -1 --head.lower-components 1",
    "mixtape": "--head.num-components 4 --head.frequent-fraction 0.4 --head.gate-size 3",
    "mfs": "--head.num-components 2 --head.num-previous 2 --head.layers -2 -1",
    "pointwise": "--head.num-components 2 --head.logit-map plif:100,5",
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_head_trains_resumes_learns_and_has_a_cache(highrank, tmp_path, kind):
    run = tmp_path / "run"
    arguments = f"train small {TINY} --head.kind {kind} {OPTIONS[kind]}".split()
    code, output, errors = highrank(*arguments, "--out", run)
    assert code == 0 and "valid perplexity" in output, errors
    assert json.loads((run / "config.json").read_text())["head"]["kind"] == kind
    for command in (
        ("train", "--resume", run, "--threads", "1"),
        ("evaluate", run, "--split", "test", "--dynamic"),
        ("evaluate", run, "--split", "test", "--cache"),
        ("generate", run, "--num-tokens", "5"),
    ):
        code, output, errors = highrank(*command)
        assert code == 0 and output.strip(), (command, errors)


@pytest.mark.parametrize(
    ("preset", "kind", "expected"),
    [
        ("small", "mos", 4),
        ("small", "adaptive-mos", 8),
        ("small", "mos+pointer", 1),
        ("small-mos", "moc", 4),
        ("ptb-mos", "moc", 15),
    ],
)
def test_a_head_has_as_many_components_as_the_preset_or_a_few(preset, kind, expected):
    config = with_own_options(presets.get(preset), ["--head.kind", kind])
    assert (config.head.kind, config.head.num_components) == (kind, expected)


# As the installed command, which does not look for modules in the current folder.
COMMAND = (sys.executable, "-P", "-c", "from highrank.__main__ import main; main()")
MODULE = "from highrank.heads import MixtureOfSoftmaxes\nclass MyHead(MixtureOfSoftmaxes): ...\n"
TRAIN = f"train {TINY} --head.kind mymodule:MyHead --head.num-components 2 --no-test --out run"


def test_a_head_in_this_folder_is_found_by_the_installed_command(trained, tmp_path):
    (tmp_path / "mymodule.py").write_text(MODULE)
    # A package goes before a file of its name.
    (tmp_path / "safetensors.py").write_text("raise ImportError")
    environment = os.environ | {"HIGHRANK_CACHE": str(trained / "cache")}
    evaluate = "evaluate run --import mymodule --split test --json"
    for arguments in (TRAIN, evaluate):
        done = subprocess.run(
            [*COMMAND, *arguments.split()],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["nats"] > 0
