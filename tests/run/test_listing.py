"""The list of runs, comparisons and finetunings, from their files alone."""

import json
import math
import os
from pathlib import Path

import pytest

from highrank.run.listing import Measured, State, list_runs

CONFIG = {"format": "highrank run", "corpus": "tale", "head": {"kind": "mos", "num_components": 4}}
EPOCH = {"event": "epoch", "valid_loss": 3.0, "tokens": 500, "seconds": 9.0}
END = {"event": "end", "valid_loss": 2.0, "test_loss": 1.0, "budget": 60.0}
PLAN = {"format": "highrank comparison", "corpus": "x/tale", "num_tokens": 9, "cpu_seconds": 1.5}
ROW = {"name": "mos-k4", "valid_loss": 2.0, "test_loss": 1.0}
REPORT = {"is_complete": True, "regimes": [{"name": "time", "rows": [ROW]}]}
SETTINGS = {"format": "highrank finetuning", "model": "m/gpt", "text": "x/a.txt"}
SETTINGS |= {"batch_size": 2, "block_length": 3}
FINETUNED = {"equal_tokens": {"rows": [{"variant": "residual", "nats": {"value": 2.0}, "step": 5}]}}
PAIRS = {"format": "highrank pairs", "config": "transformer-tiny", "task": "translation"}
PAIRS |= {"paths": ["x/my.de", "x/my.en"]}
POINTS = [{"step": 5, "valid_nats": 2.0}, {"step": 9, "valid_nats": 1.5}]
CELLS = {"nats": {"mean": 3.0}, "bits_per_byte": {"mean": 1.25}}
TRAINED = {"models": [{"variant": "softmax", "points": POINTS}]}
TRAINED |= {
    name: {"at": at, "rows": [{"variant": "softmax", "step": step, "cells": CELLS}]}
    for name, at, step in (("equal_tokens", 50, 5), ("equal_time", 7.5, 9))
}


def make(folder, **files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        lines = content if isinstance(content, list) else [content]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_a_run_has_its_best_model_s_perplexities_and_those_of_evaluations(tmp_path):
    splits = {"header": {"splits": {"test": {"num_tokens": 10, "num_bytes": 40}}}}
    run = make(tmp_path / "a", config_json=CONFIG, metrics_jsonl=[EPOCH, END], corpus_json=splits)
    (run / "model.safetensors").touch()
    (run / "results").mkdir()
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for method, split, nats, digest in (
        ("dynamic", "test", 0.5, nothing),
        ("cache", "test", 0.1, "of an older model"),
        ("static", "text a", 9.0, nothing),
    ):
        content = {"method": method, "split": split, "nats": nats, "model_sha256": digest}
        (run / "results" / f"{method}.json").write_text(json.dumps(content))
    (found,) = list_runs(tmp_path)
    head, bits = "mos, K = 4", 1 / math.log(2) / 4
    static = Measured(
        head=head, method="static", valid=math.exp(2), test=math.exp(1), bits_per_byte=bits
    )
    dynamic = Measured(
        head=head, method="dynamic", valid=None, test=math.exp(0.5), bits_per_byte=bits / 2
    )
    assert found.measured == (static, dynamic)
    assert (found.corpus, found.tokens, found.seconds, found.budget) == ("tale", 500, 9.0, 60.0)
    assert (found.kind, found.state) == ("run", State.FINISHED)


@pytest.mark.parametrize(
    ("files", "kind", "state", "valid"),
    [
        ({"config_json": CONFIG}, "run", "unfinished", None),
        ({"config_json": CONFIG, "metrics_jsonl": [EPOCH]}, "run", "unfinished", 3.0),
        ({"plan_json": PLAN}, "comparison", "unfinished", None),
        ({"plan_json": PLAN, "report_json": REPORT}, "comparison", "finished", 2.0),
        ({"settings_json": SETTINGS}, "finetuning", "unfinished", None),
        ({"settings_json": SETTINGS, "finetune_json": FINETUNED}, "finetuning", "finished", 2.0),
        ({"settings_json": PAIRS}, "finetuning", "unfinished", None),
        ({"settings_json": PAIRS, "finetune_json": {}}, "finetuning", "damaged", None),
        ({"config_json": [CONFIG, CONFIG]}, "run", "damaged", None),
        ({"config_json": CONFIG | {"head": 5}}, "run", "damaged", None),
        (
            {"config_json": CONFIG, "metrics_jsonl": [EPOCH, {"valid_loss": 3}]},
            "run",
            "damaged",
            None,
        ),
        ({"plan_json": PLAN, "report_json": [[]]}, "comparison", "damaged", None),
    ],
)
def test_each_kind_and_state(files, kind, state, valid, tmp_path):
    make(tmp_path / "a", **files)
    (found,) = list_runs(tmp_path)
    assert (found.kind, found.state) == (kind, state) and bool(found.problem) == (
        state == "damaged"
    )
    valids = [one.valid for one in found.measured if one.valid is not None]
    assert valids == ([] if valid is None else [math.exp(valid)])


def test_a_training_on_pairs_has_perplexities_at_both_marks(tmp_path):
    make(tmp_path / "a", settings_json=PAIRS, finetune_json=TRAINED)
    (found,) = list_runs(tmp_path)
    assert found.corpus == "my.de my.en (translation, transformer-tiny)"
    assert (found.kind, found.state) == ("finetuning", State.FINISHED)
    assert (found.tokens, found.seconds) == (50, 7.5)
    assert found.measured == tuple(
        Measured(
            head="softmax",
            method=method,
            valid=math.exp(nats),
            test=math.exp(3),
            bits_per_byte=1.25,
        )
        for method, nats in (("equal tokens", 2.0), ("equal time", 1.5))
    )


def test_other_folders_are_left_out_and_the_newest_comes_first(tmp_path):
    make(tmp_path / "model", config_json={"model_type": "gpt2"})
    (tmp_path / "empty").mkdir()
    for index, name in enumerate("bac"):
        os.utime(make(tmp_path / name, config_json=CONFIG) / "config.json", (index * 100,) * 2)
    assert [one.folder for one in list_runs(tmp_path)] == [str(tmp_path / name) for name in "cab"]
    with pytest.raises(ValueError, match="the folder must exist, got nowhere"):
        list_runs(Path("nowhere"))


def test_a_line_that_is_being_written_does_no_harm(tmp_path):
    run = make(tmp_path / "a", config_json=CONFIG, metrics_jsonl=[EPOCH])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "ep')
    (found,) = list_runs(tmp_path)
    assert found.state is State.UNFINISHED and found.measured[0].valid == math.exp(3)
