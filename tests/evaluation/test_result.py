"""Datasets are read as the corpus was; results are complete and never overwritten."""

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.result import (
    evaluate_dataset,
    file_dataset,
    find_datasets,
    result_folder,
    split_dataset,
    write_result,
)
from highrank.evaluation.search import Method, evaluate_by
from highrank.evaluation.static import evaluate

CACHE = Method(cache=CacheSettings(weight=0.5, window=5))
TEXT = "the newt saw a café\n\nthe newt slept\n"


@pytest.fixture
def mine(loaded, tmp_path):
    path = tmp_path / "mine é.txt"
    path.write_text(TEXT, encoding="utf-8")
    return file_dataset(loaded, path)


def test_a_split_is_the_corpus_s(loaded):
    found, header = split_dataset(loaded, "test"), loaded.corpus.header.splits["test"]
    np.testing.assert_array_equal(found.tokens, loaded.corpus.split("test"))
    assert found.name == "test" and found.lines is None and not found.unknown
    assert (found.sha256, found.num_bytes) == (header.sha256, header.num_bytes)


def test_a_file_starts_after_an_eos_and_counts_its_unknown_tokens(loaded, mine, tmp_path):
    assert loaded.vocabulary.decode(mine.tokens[:3].tolist()) == ["<eos>", "the", "<unk>"]
    assert [len(line) for line in mine.lines] == [6, 0, 4] and len(mine.tokens) == 11
    assert mine.unknown == {"newt": 2, "café": 1}
    assert mine.name == "text mine é.txt" and len(mine.sha256) == 64
    assert [dataset.name for dataset in find_datasets(loaded)] == ["valid", "test"]
    assert [d.name for d in find_datasets(loaded, tmp_path / "mine é.txt")] == [mine.name]
    (tmp_path / "foreign.txt").write_text("Nihil novi sub sole\n")
    with pytest.raises(ValueError, match="must have a token of the run's vocabulary"):
        file_dataset(loaded, tmp_path / "foreign.txt")


@pytest.fixture
def alone(loaded):
    """The run as if the corpus' lines were alone."""
    header = loaded.corpus.header
    header = replace(header, recipe=replace(header.recipe, independent_lines=True))
    return loaded._replace(corpus=replace(loaded.corpus, header=header))


def test_lines_that_are_alone_in_the_corpus_are_so_in_its_splits_and_in_files(alone, tmp_path):
    split = split_dataset(alone, "test")
    found = [evaluate_dataset(alone, split, Method(), batch_size=size) for size in (1, 7)]
    assert found[0].num_tokens == len(split.tokens)
    lines = np.split(split.tokens, np.flatnonzero(split.tokens == alone.vocabulary.eos) + 1)
    content = "\n".join(" ".join(alone.vocabulary.decode(line[:-1])) for line in lines[:-1])
    (tmp_path / "test.txt").write_text(content + "\n")
    found.append(evaluate_dataset(alone, file_dataset(alone, tmp_path / "test.txt"), Method()))
    assert found[2].settings["independent_lines"]
    assert [result.nats for result in found] == pytest.approx([found[0].nats] * 3, rel=1e-5)


def test_only_static_evaluation_keeps_lines_alone(alone):
    with pytest.raises(ValueError, match="must be static where every line is alone, got cache"):
        evaluate_dataset(alone, split_dataset(alone, "test"), CACHE)
    with pytest.raises(ValueError, match="--compat must not be given"):
        evaluate_dataset(alone, split_dataset(alone, "test"), Method(), compat="mos")


def test_valid_has_the_run_s_batch_size_and_test_one(loaded):
    for split, batch_size in (("valid", 2), ("test", 1)):
        result = evaluate_dataset(loaded, split_dataset(loaded, split), Method())
        want = evaluate(loaded.model, loaded.corpus.split(split), batch_size)
        assert (result.nats, result.num_tokens, result.value) == (*want, want.perplexity)
        assert result.settings == {"batch_size": batch_size, "compat": None}
        assert result.split == split and result.unknown == {"tokens": 0}
        header = loaded.corpus.header.splits[split]
        bits = result.bits * header.num_tokens / header.num_bytes
        assert result.bits_per_byte == pytest.approx(bits)


@pytest.mark.parametrize("method", [Method(), CACHE], ids=["static", "cache"])
def test_a_file_is_evaluated_token_by_token_or_by_any_method(method, loaded, mine, tmp_path):
    out = tmp_path / "out.csv"
    found = evaluate_dataset(loaded, mine, method, per_token=out)
    assert found.method == method.name and found.unknown == {"tokens": 3, "distinct": 2}
    assert found.settings["independent_lines"] is False and found.split == mine.name
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    bits = sum(float(row["surprisal_bits"]) for row in rows) / 10
    assert bits == pytest.approx(found.bits) and len(rows) == found.num_tokens == 10
    want = evaluate_by(method, loaded.model, mine.tokens).nats
    assert found.nats == pytest.approx(want, rel=1e-5)
    assert found.bits_per_byte == pytest.approx(found.bits * 10 / len(TEXT.encode()))
    assert found.bits_per_char == pytest.approx(found.bits * 10 / len(TEXT))
    other = evaluate_dataset(loaded, mine, method)
    assert ("independent_lines" in other.settings) == method.is_static


def test_a_loss_that_is_not_finite_is_an_error(loaded):
    loaded.model.head.bias.data[:] = math.nan
    with pytest.raises(ValueError, match="The loss on test is nan"):
        evaluate_dataset(loaded, split_dataset(loaded, "test"), Method())


def test_files_are_complete_and_none_is_overwritten(loaded, mine, tmp_path):
    result, folder = evaluate_dataset(loaded, mine, Method()), result_folder(tmp_path)
    assert not folder.exists()
    first, second = (write_result(folder, result) for _ in range(2))
    assert first.parent == folder == tmp_path / "results"
    assert first.name.endswith("-static-text-mine-é.txt.json")
    assert {path.name for path in folder.iterdir()} == {first.name, second.name}
    for path in (first, second):
        found = json.loads(path.read_text())
        assert (found["format"], found["version"]) == ("highrank result", 2)
        assert found["value"] == result.value and found["unit"] == "perplexity per word"
        assert found["data_sha256"] == mine.sha256 and found["model_sha256"] == "12"
        assert {"highrank", "commit", "torch", "python", "date"} <= set(found["environment"])
    with pytest.raises(ValueError, match="folder must exist"):
        result_folder(tmp_path / "nowhere")
