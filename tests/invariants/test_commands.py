"""Every head and every backbone through every command: trained, evaluated, sampled, audited."""

import csv
import json

import numpy as np
import pytest

from highrank.cli.main import main
from highrank.data.prepare import prepare_text
from highrank.heads import COMPOSED, HEADS, head_arguments
from highrank.models import BACKBONES

WORDS = ["the", "a", "cat", "dog", "saw", "chased", "old", "small", "it", "and", "slept"]
SIZES = "--model.embedding-size 8 --model.no-tied --batch.batch-size 4"
RUN = "--train.epochs 1 --threads 1"
OPTIONS = {
    "mos+pointer": "--head.num-states 20",
    "adaptive-softmax+pointer": "--head.num-states 20 --head.frequent 5 --head.objective own",
    "mos+constant": "--head.num-topics 3",
    "sparse-mos": "--head.num-active 1",
    "multi-sense": "--head.num-frequent 5",
}


@pytest.fixture
def highrank(tmp_path, monkeypatch, capsys):
    """Call a command in a folder with a prepared corpus; returns what it prints."""
    draw = np.random.default_rng(1)
    lines = (" ".join(draw.choice(WORDS, 9)) for _ in range(200))
    (tmp_path / "tale.txt").write_text("\n".join(lines))
    prepare_text(tmp_path / "tale.txt", cache=tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HIGHRANK_CACHE", str(tmp_path / "cache"))

    def call(command):
        monkeypatch.setattr("sys.argv", ["highrank", *command.split()])
        main()
        return capsys.readouterr().out

    return call


def through_every_command(highrank, options):
    """Train, evaluate, generate and audit; returns the audit's model."""
    trained = json.loads(highrank(f"train small --corpus tale {options} {RUN} --out run --json"))
    found = json.loads(highrank("evaluate run --split test --json"))
    (result,) = found["results"]
    assert result["nats"] == pytest.approx(trained["test"]["nats"], 1e-6)
    assert len(highrank("generate run --num-tokens 10").split()) > 3
    (audit,) = json.loads(highrank("audit run --json --quick"))["models"]
    assert audit["text"]["perplexity"] > 1
    return audit


@pytest.mark.parametrize("kind", [*HEADS, *COMPOSED, "adaptive-softmax+pointer+ngram"])
def test_every_command_takes_every_head(kind, highrank):
    options = f"--head.kind {kind} {OPTIONS.get(kind, '')} {SIZES} --model.hidden-sizes 12 10"
    if "num_components" in head_arguments(kind):
        options += " --head.num-components 2"
    assert through_every_command(highrank, options)["head"]["kind"] == kind


def test_components_have_their_part_in_every_method(highrank, tmp_path):
    kind = "--head.kind mos+pointer+ngram --head.num-components 2 --head.num-states 20"
    highrank(f"train small --corpus tale {kind} {SIZES} --model.hidden-sizes 12 10 {RUN} --out run")
    learning = "--dynamic.lr 0.001 --dynamic.epsilon 0.01 --cache.window 30 --cache.weight 0.1"
    rows = json.loads(highrank(f"evaluate run --all {learning} --split test --json"))["results"]
    assert [row["method"] for row in rows] == ["static", "dynamic", "cache"]
    assert len({row["nats"] for row in rows}) == 3
    assert all(one["passed"] for row in rows for one in row["check"])
    names = [{one["name"] for one in row["check"]} for row in rows]
    assert ["scored before learned" in found for found in names] == [False, True, False]
    (tmp_path / "mine.txt").write_text("the cat saw a dog\nit slept\n")
    highrank("evaluate run --text mine.txt --per-token out.csv")
    with (tmp_path / "out.csv").open() as file:
        tokens = list(csv.DictReader(file))
    parts = [(float(row["pointer"]), float(row["ngram"])) for row in tokens]
    assert all(pointer >= 0 and ngram > 0 and pointer + ngram < 1 for pointer, ngram in parts)
    printed = highrank("generate run --num-tokens 40 --show-components --seed 1 --json")
    (sample,) = json.loads(printed)["samples"]
    assert set(sample["components"]) <= {1, 2, 3} and 3 in sample["components"]


@pytest.mark.parametrize("kind", BACKBONES)
def test_every_command_takes_every_backbone(kind, highrank):
    through_every_command(highrank, f"--model.kind {kind} --head.kind mos {SIZES}")
