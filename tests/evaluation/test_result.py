"""Results: evaluated, complete, readable, never overwritten."""

import csv
import json
import math
from dataclasses import replace

import pytest

from highrank.environment import environment
from highrank.evaluation.cache import CacheSettings
from highrank.evaluation.method import Method, evaluate_by, file_dataset, split_dataset
from highrank.evaluation.result import Result, evaluate_dataset, result_folder, write_result
from highrank.evaluation.static import as_the_original_divides, evaluate


@pytest.fixture
def result():
    return Result(
        value=58.08,
        unit="perplexity per word",
        nats=4.0618,
        bits=5.86,
        bits_per_byte=1.5,
        bits_per_char=1.6,
        num_tokens=73_750,
        split="valid",
        method="static",
        settings={"batch_size": 10},
        run="runs/ptb-mos-1",
        model_sha256="12",
        corpus="penn-treebank",
        data_sha256="34",
        seconds=1.5,
        environment=environment(),
    )


def test_a_file_has_value_method_data_commit_versions_and_time(result, tmp_path):
    path = write_result(tmp_path / "results", result)
    found = json.loads(path.read_text())
    assert (found["format"], found["version"]) == ("highrank result", 2)
    assert found["value"] == 58.08 and found["unit"] == "perplexity per word"
    assert found["settings"] == {"batch_size": 10} and found["num_tokens"] == 73_750
    assert found["data_sha256"] == "34" and found["model_sha256"] == "12"
    assert {"highrank", "commit", "torch", "python", "date"} <= set(found["environment"])
    assert path.name.endswith("-static-valid.json")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_no_result_is_overwritten(result, tmp_path):
    first, second = (write_result(tmp_path, replace(result, value=v)) for v in (1.0, 2.0))
    assert first != second
    assert [json.loads(path.read_text())["value"] for path in (first, second)] == [1.0, 2.0]


def test_valid_has_the_run_s_batch_size_and_test_one(loaded):
    for split, batch_size in (("valid", 2), ("test", 1)):
        result = evaluate_dataset(loaded, split_dataset(loaded, split), Method())
        want = evaluate(loaded.model, loaded.corpus.split(split), batch_size)
        assert (result.nats, result.num_tokens, result.value) == (*want, want.perplexity)
        assert result.settings == {"batch_size": batch_size, "compat": None}
        assert result.split == split and result.unknown == {}


def test_the_division_of_the_original_can_be_asked_for(loaded):
    valid = split_dataset(loaded, "valid")
    result = evaluate_dataset(loaded, valid, Method(), batch_size=3, compat="mos")
    want = as_the_original_divides(evaluate(loaded.model, valid.tokens, 3), 3)
    assert result.nats == want.nats and result.settings["compat"] == "mos"


def test_a_file_is_evaluated_token_by_token_or_by_any_method(loaded, tmp_path):
    (tmp_path / "mine.txt").write_text("the newt saw a cat\nthe newt slept\n")
    mine = file_dataset(loaded, tmp_path / "mine.txt")
    out = tmp_path / "out.csv"
    static = evaluate_dataset(loaded, mine, Method(), per_token=out)
    assert static.unknown == {"tokens": 2, "distinct": 1} and static.split == "text mine.txt"
    assert static.settings["independent_lines"] is False
    assert static.nats == pytest.approx(evaluate(loaded.model, mine.tokens, 1).nats, rel=1e-5)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == static.num_tokens == 10
    method = Method(cache=CacheSettings(weight=0.5, window=5))
    cached = evaluate_dataset(loaded, mine, method)
    assert cached.nats == evaluate_by(method, loaded.model, mine.tokens).nats
    assert cached.method == "cache" and "independent_lines" not in cached.settings


def test_with_a_cache_tokens_are_written_and_the_number_stays(loaded, tmp_path):
    (tmp_path / "mine.txt").write_text("the newt saw a cat\nthe newt slept\n")
    mine = file_dataset(loaded, tmp_path / "mine.txt")
    method, out = Method(cache=CacheSettings(weight=0.5, window=5)), tmp_path / "out.csv"
    found = evaluate_dataset(loaded, mine, method, per_token=out)
    assert found.nats == pytest.approx(evaluate_dataset(loaded, mine, method).nats, rel=1e-6)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    bits = sum(float(row["surprisal_bits"]) for row in rows) / len(rows)
    assert bits == pytest.approx(found.bits) and found.method == "cache"


def test_bits_per_byte_are_those_of_the_whole_text(loaded, tmp_path):
    text = "the dog saw a café\nthe cat slept\n"
    (tmp_path / "mine.txt").write_text(text, encoding="utf-8")
    found = evaluate_dataset(loaded, file_dataset(loaded, tmp_path / "mine.txt"), Method())
    assert found.bits_per_byte == pytest.approx(found.bits * 10 / len(text.encode()))
    assert found.bits_per_char == pytest.approx(found.bits * 10 / len(text))
    assert found.bits_per_byte < found.bits_per_char
    test = split_dataset(loaded, "test")
    found = evaluate_dataset(loaded, test, Method())
    split = loaded.corpus.header.splits["test"]
    assert found.bits_per_byte == pytest.approx(found.bits * split.num_tokens / split.num_bytes)


def test_names_of_files_have_no_spaces(result, tmp_path):
    path = write_result(tmp_path, replace(result, split="text my\x1b own\ntale é.txt"))
    assert path.name.endswith("-static-text-my-own-tale-é.txt.json")


def test_a_loss_that_is_not_finite_is_an_error(loaded):
    loaded.model.head.bias.data[:] = math.nan
    with pytest.raises(ValueError, match="The loss on test is nan"):
        evaluate_dataset(loaded, split_dataset(loaded, "test"), Method())


def test_the_folder_is_made_with_the_first_result(result, tmp_path):
    folder = result_folder(tmp_path)
    assert not folder.exists()
    assert write_result(folder, result).parent == folder == tmp_path / "results"
    with pytest.raises(ValueError, match="folder must exist"):
        result_folder(tmp_path / "nowhere")
