"""The scripts in `benchmarks/` at their smallest sizes; memory is not measured."""

import json
import math
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tyro
from torch.utils.flop_counter import FlopCounterMode

from highrank.build import build_model
from highrank.data import prepare_known
from highrank.presets.small import ptb_small_mos
from highrank.studies.bench import harness, loss
from highrank.studies.bench.baselines import TINY
from highrank.studies.bench.harness import Peak

FOLDER = Path(__file__).parent.parent / "benchmarks"
# It measures nothing.
MADE = "made_corpus"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != MADE)


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Import a script as a module that other processes find, too."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(harness, "peak_memory", lambda *_: Peak(2**20))
    monkeypatch.setattr(harness.gc, "collect", lambda: 0)
    yield import_module
    for name in SCRIPTS:
        sys.modules.pop(name, None)


@pytest.fixture
def call(script, capsys):
    """Run a script as its command line does, and return its numbers."""

    def run(name, *options):
        tyro.cli(getattr(script(name), name), args=[*options, "--json"])
        return json.loads(capsys.readouterr().out)

    return run


def measured(result):
    return {m["name"]: m for group in result["groups"] for m in group["measurements"]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_explains_itself(name, script, capsys):
    path = FOLDER / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 160
    with pytest.raises(SystemExit):
        tyro.cli(getattr(script(name), name), args=["--help"])
    printed = capsys.readouterr().out
    assert "--json" in printed and "--threads" in printed
    assert f"python benchmarks/{name}.py" in script(name).__doc__


def test_the_made_corpus_has_the_shards_of_the_billion_words(script, tmp_path):
    script(MADE).made_corpus(tmp_path / "made", tokens=99 * 200, vocab=300)
    given = {"source": tmp_path / "made", "own_name": "made", "cache": tmp_path}
    corpus = prepare_known("one-billion", **given).corpus
    assert corpus.header.splits["train"].num_tokens >= 99 * 200 and corpus.sentence_end == 1
    # The benchmark has 27.4 tokens a sentence.
    lengths = np.diff(np.flatnonzero(corpus.split("train") == corpus.sentence_end))
    assert 15 < lengths.mean() < 35
    counts = np.sort(corpus.token_counts)[::-1]
    assert counts[0] > 5 * counts[20] > 20


def test_plain_passes_have_the_loss_of_static_evaluation_and_the_others_do_not(call, script):
    result = call("evaluation", "--rounds", "1", "--tokens", "25", "--vocab-size", "50")
    dynamic, cache = result["groups"]
    assert dynamic["numbers"] == {"limit": {"dynamic": 1.3}}
    assert cache["numbers"] == {"limit": {"cache of 2,000": 1.5}}
    values = {name: m["value"] for name, m in measured(result).items()}
    plain, evaluation = values["plain"], script("evaluation")
    assert plain == pytest.approx(evaluation.static(50, 25)(), rel=1e-5)
    assert values["static"] == pytest.approx(evaluation.plain_passes(50, 200)(), rel=1e-5)
    for name in ("dynamic", "dynamic, sgd"):
        assert values[name] != pytest.approx(plain, rel=1e-5)
    assert values["cache of 2,000"] != pytest.approx(values["static"], rel=1e-5)


def test_singular_values_are_those_of_the_svd(call, script, monkeypatch):
    audit = script("audit")
    monkeypatch.setattr(audit, "LINEAR_CHECK", audit.TINY)
    result = call("audit", "--contexts", "90", "--vocab-size", "40")
    values = {name: m["value"] for name, m in measured(result).items()}
    assert list(values) == ["svd", "stable", "fast", "linear"]
    assert values["svd"] == pytest.approx(values["stable"]) == pytest.approx(values["fast"])
    absolute, relative, floor = result["groups"][0]["numbers"].values()
    assert absolute["svd"] == 0 and max(absolute["stable"], absolute["linear"]) <= 1e-12
    assert 1e-12 < floor["fast"] < 1e-6 and absolute["fast"] <= floor["fast"]


def test_an_error_is_the_largest_and_missing_values_are_zeros(script):
    audit = script("audit")
    work = audit.prepare("svd", audit.TINY)
    exact, (head, hidden) = work(), work.args
    log_prob = head.double().log_prob(hidden.double()).detach().numpy()
    want = np.linalg.svd(log_prob, compute_uv=False)
    np.testing.assert_allclose(exact.values, want, atol=1e-12 * want[0])
    values = exact.values[:-1].clone()
    values[3] *= 1.25
    absolute, relative, _ = audit.spectrum_errors(replace(exact, values=values), exact).values()
    assert relative == pytest.approx(1.0)
    assert absolute == pytest.approx(max(0.25 * want[3], want[-1]) / want[0])


def test_two_processes_have_the_loss_of_one(call, monkeypatch):
    monkeypatch.setattr(loss, "SHAPES", {"ptb": replace(TINY, name="ptb")})
    result = call("sharded", "--rounds", "1")
    one, all_threads, two = (m["value"] for m in measured(result).values())
    assert one == all_threads == pytest.approx(two, rel=1e-5)
    assert all(m["best"] > 0 for m in measured(result).values())


def test_networks_are_trained_compared_with_their_optimum_and_resumed(
    call, script, tmp_path, monkeypatch
):
    language = script("language")
    monkeypatch.setattr(language, "fit_head", partial(language.fit_head, num_steps=50))
    options = ("--tokens", "8000", "--components", "2", "--runs", str(tmp_path))
    result = call("language", *options, "--epochs", "1")
    softmax, mos = result["heads"].values()
    assert (softmax["num_components"], mos["num_components"]) == (1, 2)
    assert softmax["specialisation"] == 0 <= mos["specialisation"] < 0.01
    assert mos["optimum"] < softmax["optimum"] < softmax["excess"]
    assert softmax["perplexity"] == pytest.approx(result["floor"] * math.exp(softmax["excess"]))
    # Trained anew, it would not take the same time.
    assert call("language", *options, "--epochs", "1") == result
    assert language.table(result).row_count == 2
    # Runs of another length lie beside them.
    timed = call("language", *options, "--budget", "1s")["heads"]
    assert all(head["num_tokens"] > 0 for head in timed.values())
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}-100-{length}-seed0" for name in ("softmax", "mos") for length in ("1e", "1s")
    }


def test_divergences_are_the_same_streamed_and_dense(call):
    result = call("divergence", "--rounds", "1", "--tokens", "6", "--vocab-size", "50")
    assert len(result["groups"]) == 4
    for group in result["groups"]:
        values = {m["name"]: m["value"] for m in group["measurements"]}
        assert values["streamed"] == pytest.approx(values["dense"], rel=1e-4)


def test_students_are_taught_once_and_lose_something(call, script, monkeypatch):
    distillation, tokens = script("distillation"), np.random.default_rng(0).integers(30, size=900)
    model = build_model(ptb_small_mos(), vocab_size=30)
    run = SimpleNamespace(model=model.eval(), corpus=SimpleNamespace(split=lambda name: tokens))
    monkeypatch.setattr(distillation, "load_run", lambda path: run)
    result = call("distillation", "a-run", "--steps", "2", "--seeds", "2")
    mixture, *students = result.values()
    assert mixture["divergence"] == 0 and len(students) == 4
    assert all(0 < student["divergence"] < 1 for student in students)
    monkeypatch.delattr(distillation, "taught")
    assert call("distillation", "a-run", "--steps", "2", "--seeds", "2") == result
    assert distillation.table(result).row_count == 5


def test_rules_of_the_audit_are_judged_by_what_mixtures_won(call, script, tmp_path):
    keys = dict.fromkeys(script("audit_rules").KEYS, 0.1)
    for name, mos, fitted, size in (
        ("a", 3.9, 0.05, 8),
        ("b", 3.99, 0.0, 8),
        ("c", 3.9, 0.0, 8),
        ("d", 4.0, 0.05, 8),
        ("e", 4.0, 0.05, 99),
    ):
        nats = {"softmax": 4.0, "moc": 4.0, "mos": mos}
        fit = {"gain": fitted, "error": 0.001, "nats": fitted, "mos_nats": 0.0, "num_steps": 500}
        measures = keys | {f"fit {key}": value for key, value in fit.items()}
        model = {"name": name, "nats": [nats, nats], "measures": measures}
        model |= {"size": size, "vocab_size": 100}
        (tmp_path / f"{name}.json").write_text(json.dumps(model))
    rules = call("audit_rules", "--folder", str(tmp_path), "--budget", "0s")["rules"]
    assert rules["audit, all models"] == {"right": 3, "wrong no": 1, "wrong yes": 1}


def test_predictions_are_those_of_a_loop(call):
    result = call("prediction", "--rounds", "1", "--tokens", "70", "--vocab-size", "50")
    for group in result["groups"]:
        loop, head = (m["value"] for m in group["measurements"])
        assert head == pytest.approx(loop, rel=1e-5)


def test_backbones_have_as_many_parameters_as_plain_modules(call):
    pytest.importorskip("transformers")
    sizes = ("--size", "24", "--layers", "2", "--window", "5", "--batch-size", "2")
    result = call("backbones", *sizes, "--lengths", "3", "6", "--rounds", "1")
    steps, texts = result["groups"][:4], result["groups"][4:]
    for group in steps:
        plain, *ours = (m["value"] for m in group["measurements"])
        assert all(one == pytest.approx(plain, rel=0.01) for one in ours), group["name"]
    assert [len(group["measurements"]) for group in texts] == [2, 2, 2]


@pytest.mark.slow
def test_processes_send_the_bytes_that_are_computed(call):
    options = ("--processes", "2", "--vocab-size", "500", "--steps", "2", "--threads", "1")
    rows = call("scale", *options)["rows"]
    assert [row["shard"] for row in rows] == ["none", "vocabulary", "full"]
    for row in rows:
        assert row["counted_bytes"] == pytest.approx(row["computed_bytes"], rel=0.03)
        assert row["loss"] == pytest.approx(rows[0]["loss"], rel=1e-5)
        assert row["tokens_per_second"] > 0 and row["megabytes"] > 0


def test_the_operations_of_a_step_are_those_that_torch_counts(script):
    scale = script("scale")
    config, V, T = scale.without_dropout("ptb-small-mos"), 500, 12
    config = replace(config, batch=replace(config.batch, batch_size=6, options={"bptt": T}))
    # In float64 an LSTM is made of multiplies that can be counted.
    model = build_model(config, V).double()
    tokens, target = torch.randint(V, (2, T, 6))
    with FlopCounterMode(display=False) as counter:
        out = model(tokens, target, model.initial_state(6))
        (out.loss + out.penalty).backward()
    step = scale.step_of(config, V, sum(p.numel() for p in model.parameters()), 1)
    # The first token of a window has no hidden state to learn from.
    assert step.flops == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_with_more_processes_contexts_cost_more_and_gradients_do_not(call):
    rows = call("projection", "--vocab-size", "100000")["rows"]
    first, last = rows[0], rows[3]
    assert (first["P"], last["P"]) == (8, 512) and first["compute"] == last["compute"]
    assert last["none"] < 1.1 * first["none"]
    assert last["dH"] > 60 * first["dH"] and last["N·K"] > 60 * first["N·K"]
    # The matrix multiplies of the logits are what K costs.
    assert rows[4]["compute"] > 5 * first["compute"]
    # Weights, gradients and two moments.
    assert last["none, GB"] == first["none, GB"] > 4 * 4 * 100_000 * 901 / 1e9
    assert last["vocabulary, GB"] < 0.2 * last["none, GB"] < last["full, GB"] < first["full, GB"]


def test_widths_are_trained_once_and_the_rule_is_fitted_on_texts_not_held_out(
    call, script, tmp_path, monkeypatch
):
    sizing = script("sizing")
    words = np.random.default_rng(0).choice(list("abcdefgh"), (200, 9))
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("\n".join(map(" ".join, words)))
    options = ("--minutes", "0.001", "--widths", "32", "64", "--held-out", "two.txt")
    found = call("sizing", "one.txt", *options)
    assert [(row["text"], row["width"]) for row in found["rows"]] == [
        (text, width) for text in ("one", "two") for width in (32, 64)
    ]
    assert all(1 < row["perplexity"] < 30 and row["num_tokens"] for row in found["rows"])
    assert found == json.loads(Path("sizing.json").read_text())
    monkeypatch.delattr(sizing, "Session")
    assert call("sizing", "one.txt", *options) == found
    assert sizing._table(found).row_count == 4


def test_one_run_has_the_numbers_of_several_times_and_is_trained_once(
    call, script, tmp_path, monkeypatch
):
    words = np.random.default_rng(0).choice(list("abcdefgh"), (200, 9))
    (tmp_path / "one.txt").write_text("\n".join(map(" ".join, words)))
    options = ("--seconds", "0.1", "0.2", "--widths", "32", "--dropouts", "0", "0.4")
    found = call("dropout", "one.txt", *options)["rows"]
    assert [(row["seconds"], row["dropout"]) for row in found] == [
        (seconds, p) for seconds in (0.1, 0.2) for p in (0.0, 0.4)
    ]
    assert found[0]["num_tokens"] < found[2]["num_tokens"]
    assert all(1 < row["perplexity"] < 30 and 0 <= row["rule"] <= 0.5 for row in found)
    monkeypatch.delattr(script("dropout"), "Session")
    assert call("dropout", "one.txt", *options)["rows"] == found
    assert script("dropout")._table({"rows": found}).row_count == 4


def test_regret_is_what_a_rule_loses_against_the_best_width(script):
    sizing = script("sizing")

    def row(width, perplexity, weights, held_out=False):
        run = {"seconds": 60, "num_tokens": 1000, "num_train": 1000, "weights": weights, "seed": 0}
        run |= {"width": width, "perplexity": perplexity, "held_out": held_out}
        return run | {"text": "b" if held_out else "a"}

    rows = [row(64, 110.0, 400), row(128, 100.0, 900), row(64, 50.0, 400, True)]
    (a, b) = sizing._judged(rows, (2.0, 20.0))["choices"]
    assert (a["width"], a["best"], b["regret"]) == (64, 128, 0)
    assert a["regret"] == pytest.approx(10)
    (a, _) = sizing._judged(rows, (1.0, 20.0))["choices"]
    assert (a["width"], a["regret"]) == (128, 0)
    assert min(sizing.GRID, key=lambda rule: sizing._loss(rows[:2], rule)) == (1.0, 20.0)


def test_two_versions_take_turns_and_what_is_finished_is_not_trained_again(
    call, script, monkeypatch
):
    commands = []

    def run(arguments, env=None, **_):
        commands.append((Path(env["PYTHONPATH"]).parent.name, env["HIGHRANK_CACHE"], arguments[3]))
        if arguments[3] == "evaluate":
            return SimpleNamespace(stdout='{"results": [{"value": 90.0, "environment": {}}]}')
        folder = Path(arguments[arguments.index("--out") + 1])
        folder.mkdir()
        config = {"head": {"kind": "mos"}, "model": {"options": {"hidden_sizes": [32, 16]}}}
        (folder / "config.json").write_text(json.dumps(config))
        return SimpleNamespace(stdout='{"num_tokens": 5, "valid": {"perplexity": 99.0}}')

    monkeypatch.setattr(script("before_after").subprocess, "run", run)
    for _ in range(2):
        found = call("before_after", "my.txt", "old", "1s", "2s")
    assert [(row["budget"], row["version"], row["test"]) for row in found] == [
        (budget, version, 90.0) for budget in ("1s", "2s") for version in ("before", "after")
    ]
    assert len(commands) == 8 and len({cache for _, cache, _ in commands}) == 2
    assert [(tree == "old") for tree, _, _ in commands] == [True, True, False, False] * 2
    assert script("before_after")._table(found).row_count == 4
    assert call("before_after", "my.txt", "old", "1s", "2s", "--versions", "after") == found[1::2]


def test_records_are_trained_once_resumed_and_evaluated_by_every_method(call, script, monkeypatch):
    commands = []

    def run(arguments, **_):
        commands.append(arguments := arguments[3:])
        if arguments[0] == "evaluate":
            results = [{"method": name, "value": 100.0} for name in ("static", "dynamic")]
            return SimpleNamespace(stdout=json.dumps({"results": results}))
        folder = Path(arguments[arguments.index("--out") + 1 if "--out" in arguments else 2])
        folder.mkdir(parents=True, exist_ok=True)
        config = {"model": {"options": {"hidden_sizes": [32, 16]}}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "trainer.pt").touch()
        return SimpleNamespace(stdout='{"num_tokens": 5, "valid": {"perplexity": 99.0}}')

    monkeypatch.setattr(script("records").subprocess, "run", run)
    for _ in range(2):
        found = call("records", "1", "5", "--options=--train.lr 0.01")
        assert [row["minutes"] for row in found] == [1.0, 5.0]
        assert json.loads(Path("records.json").read_text()) == found
    assert ["--resume" in one for one in commands] == [False] * 4 + [True, False] * 2
    assert "--train.lr" in commands[0] and "--train.lr" not in commands[4]
    assert script("records")._table(found).row_count == 2
