"""Every head through the commands: trained, resumed, evaluated, sampled from and audited."""

import json

import pytest

from highrank import presets
from highrank.cli.options import with_own_options

TINY = """
--corpus tale --model.embedding-size 8 --model.hidden-sizes 12 10 --batch.batch-size 4
--valid-batch-size 2 --threads 1 --head.dropout 0.1 --train.epochs 1
"""
OPTIONS = {
    "softmax": "--model.hidden-sizes 12 8",
    "moc": "--head.num-components 3",
    "mos": "--head.num-components 3",
    "low-rank-mos": "--head.num-components 3 --head.rank 2",
    "doc": "--head.num-components 4 --head.layers 0 -1 --head.lower-components 1",
    "mixtape": "--head.num-components 4 --head.frequent-fraction 0.4 --head.gate-size 3",
    "partition": "--head.num-partitions 3",
    "mfs": "--head.num-components 2 --head.num-partitions 2 --head.layers -2 -1",
    "pointwise": "--head.num-components 2 --head.logit-map plif:100,5",
    "adaptive-pointer": "--head.frequent 6 --head.num-states 20",
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_head_is_known_to_every_command(highrank, tmp_path, kind):
    run = tmp_path / "run"
    arguments = f"train small {TINY} --head.kind {kind} {OPTIONS[kind]}".split()
    code, output, errors = highrank(*arguments, "--out", run)
    assert code == 0 and "valid perplexity" in output, errors
    assert json.loads((run / "config.json").read_text())["head"]["kind"] == kind
    commands = {
        "resume": ("train", "--resume", run, "--threads", "1"),
        "static": ("evaluate", run, "--split", "test"),
        "dynamic": ("evaluate", run, "--split", "test", "--dynamic"),
        "cache": ("evaluate", run, "--split", "test", "--cache"),
        "generate": ("generate", run, "--num-tokens", "5"),
        "audit": ("audit", run, "--contexts", "40", "--out", tmp_path / "audit.html"),
    }
    for name, command in commands.items():
        code, output, errors = highrank(*command)
        assert code == 0 and output.strip(), (name, errors)


def test_a_head_that_looks_back_trains_resumes_and_generates(highrank, tmp_path):
    run = tmp_path / "run"
    options = "--head.kind mfs --head.num-components 2 --head.num-previous 2"
    code, _, errors = highrank(*f"train small {TINY} {options}".split(), "--out", run)
    assert code == 0, errors
    for command in (("evaluate", run, "--split", "test"), ("generate", run, "--num-tokens", "5")):
        code, output, errors = highrank(*command)
        assert code == 0 and output.strip(), errors


@pytest.mark.parametrize(
    ("preset", "kind", "expected"),
    [
        ("small", "mos", 4),
        ("small", "adaptive-mos", 8),
        ("small", "pointer", 1),
        ("small-mos", "moc", 4),
        ("ptb-mos", "moc", 15),
    ],
)
def test_a_head_has_as_many_components_as_the_preset_or_a_few(preset, kind, expected):
    config = with_own_options(presets.get(preset), ["--head.kind", kind])
    assert (config.head.kind, config.head.num_components) == (kind, expected)
