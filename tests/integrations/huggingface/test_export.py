"""A folder that is there completely or not at all, and a card with numbers that can be traced."""

import json

import pytest
import yaml

pytest.importorskip("transformers")
from highrank.integrations.huggingface import export
from highrank.integrations.huggingface.export import export_run, metrics_of, model_card


def test_nothing_is_overwritten_unasked(exported, loaded, tmp_path):
    before = (exported / "README.md").stat().st_mtime_ns
    with pytest.raises(ValueError, match="the export's folder must be new"):
        export_run(loaded, exported)
    assert (exported / "README.md").stat().st_mtime_ns == before
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(ValueError, match="only an earlier export can be replaced"):
        export_run(loaded, tmp_path, replace=True)
    assert (tmp_path / "diary.txt").read_text() == "mine"


def test_a_failed_export_leaves_the_earlier_one(loaded, tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").write_text('{"model_type": "highrank-awd-lstm"}')
    monkeypatch.setattr(export, "model_card", lambda loaded: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_run(loaded, tmp_path / "x", replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["config.json"]


def test_the_card_has_data_metrics_and_how_to_load(loaded):
    _, header, text = model_card(loaded).split("---\n", 2)
    (result,) = yaml.safe_load(header)["model-index"][0]["results"]
    assert result["dataset"]["split"] == "valid"
    assert result["metrics"][0]["name"] == "perplexity per word, static, batch size 2"
    assert loaded.sha256 in text and loaded.corpus.header.splits["train"].sha256[:16] in text
    assert "AutoModelForCausalLM.from_pretrained" in text


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("results/new.json", {"split": "test"}),
        ("results/new.json", {"settings": [1], "split": "test"}),
        ("results/new.json", {"settings": {}, "method": "static", "value": "x"}),
        ("metrics.jsonl", {"event": "epoch"}),
        ("metrics.jsonl", {"event": "end", "test_loss": 1e300}),
    ],
)
def test_a_damaged_number_is_named_with_its_file(file, content, loaded, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / file).write_text(json.dumps(content | {"model_sha256": loaded.sha256}))
    with pytest.raises(ValueError, match=f"{file} must be .*, got "):
        metrics_of(loaded._replace(folder=tmp_path))


def test_results_of_other_weights_are_not_in_the_card(loaded):
    results = loaded.folder / "results"
    results.mkdir()
    content = {"split": "test", "method": "cache", "settings": {"theta": 0.5, "compat": None}}
    content |= {"value": 12.5, "unit": "perplexity per word"}
    for name, digest in (("old", "0" * 64), ("new", loaded.sha256)):
        (results / f"{name}.json").write_text(json.dumps(content | {"model_sha256": digest}))
    *_, last = metrics_of(loaded)
    assert len(metrics_of(loaded)) == 2
    assert last == ("test", "cache, theta 0.5", 12.5, "perplexity per word")
