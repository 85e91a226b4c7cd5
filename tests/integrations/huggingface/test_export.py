"""A folder that is there completely or not at all, and a card with numbers that can be traced."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
import yaml

from highrank import ngram

pytest.importorskip("transformers")
from highrank.integrations.huggingface import export
from highrank.integrations.huggingface.export import export_run, metrics_of, model_card
from highrank.integrations.huggingface.run_model import RunForCausalLM


def test_nothing_is_overwritten_unasked(exported, loaded, tmp_path):
    before = (exported / "README.md").stat().st_mtime_ns
    with pytest.raises(ValueError, match="the export's folder must be new"):
        export_run(loaded, exported)
    assert (exported / "README.md").stat().st_mtime_ns == before
    (tmp_path / "diary.txt").write_text("mine")
    with pytest.raises(ValueError, match="must be an earlier export, got"):
        export_run(loaded, tmp_path, replace=True)
    assert (tmp_path / "diary.txt").read_text() == "mine"


def test_a_failed_export_leaves_the_earlier_one(loaded, tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").write_text('{"model_type": "highrank-run"}')
    monkeypatch.setattr(export, "model_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_run(loaded, tmp_path / "x", replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["config.json"]


def test_the_card_has_data_metrics_and_how_to_load(loaded):
    _, header, text = model_card(loaded, "fable").split("---\n", 2)
    (index,) = yaml.safe_load(header)["model-index"]
    (result,) = index["results"]
    assert index["name"] == "fable" and 'from_pretrained("fable")' in text
    assert result["dataset"]["split"] == "valid"
    assert result["metrics"][0]["name"] == "perplexity per word, static, batch size 2"
    assert loaded.sha256 in text and loaded.corpus.header.splits["train"].sha256[:16] in text
    (prompt,) = re.findall(r"inputs = tokenizer\((.*?), return_tensors", text)
    words = json.loads(prompt).split()
    assert len(set(words)) == 3 and set(words) <= set(loaded.vocabulary.tokens) - {"<unk>", "."}


def test_no_file_of_an_export_has_the_training_split(run_of, tmp_path):
    """Nor one of a model that was loaded from a folder that had it."""
    loaded = run_of("mos+ngram")
    folder = export_run(loaded, tmp_path / "export").folder
    text = np.asarray(loaded.corpus.split("train"))
    parts = [text[:32].astype(kind).tobytes() for kind in ("<i2", "<i4", "<i8", "<f4", "<f8")]
    parts.append(" ".join(loaded.vocabulary.decode(text[:12].tolist())).encode())

    def has_text(place):
        found = [path.read_bytes() for path in place.rglob("*") if path.is_file()]
        return any(part in content for part in parts for content in found)

    assert has_text(loaded.folder) and not has_text(folder)
    assert sorted(path.name for path in (folder / "ngram").iterdir()) == sorted(ngram.TABLE_FILES)
    assert "sequences of up to 5 tokens" in (folder / "README.md").read_text()
    shutil.copytree(loaded.folder / "ngram", folder / "ngram", dirs_exist_ok=True)
    assert has_text(folder)
    model = RunForCausalLM.from_pretrained(pretrained_model_name_or_path=folder)
    model.save_pretrained(tmp_path / "again")
    assert not has_text(tmp_path / "again")
    ids, position = torch.from_numpy(text[:9, None].astype(np.int64)), torch.arange(9)[:, None]
    inner = model.language_model
    read = inner.read(ids, inner.initial_state(1), position)
    with pytest.raises(ValueError, match="position must be None for an n-gram without its train"):
        inner.head.log_prob(read.hidden, **read.past)


def test_no_private_name_leaves_the_house(loaded, exported):
    private = (loaded.corpus.header.name, str(loaded.folder.parent), str(exported.parent))
    for path in exported.glob("*.[jm]*"):
        assert not [name for name in private if name in path.read_text()], path


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


SETTINGS = {"theta": 0.5, "compat": None}


def test_a_card_has_the_newest_number_of_a_split_and_a_method(loaded, tmp_path):
    loaded = loaded._replace(folder=shutil.copytree(loaded.folder, tmp_path / "run"))
    results = loaded.folder / "results"
    results.mkdir()
    content = {"split": "test", "method": "cache", "settings": {"cache": SETTINGS}}
    content |= {"value": 12.5, "unit": "perplexity per word"}
    mine = {"model_sha256": loaded.sha256}
    written = mine | {"value": 99}, mine, {"model_sha256": "0" * 64}, mine | {"split": "text diary"}
    for number, change in enumerate(written):
        (results / f"{number}.json").write_text(json.dumps(content | change))
    valid, test = metrics_of(loaded)
    assert test == ("test", "cache", "theta 0.5", 12.5, "perplexity per word")
    assert valid[:3] == ("valid", "static", "batch size 2")
