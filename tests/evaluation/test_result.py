"""Result files: complete, readable, never overwritten."""

import json
from dataclasses import replace

import pytest

from highrank.environment import environment
from highrank.evaluation.result import Result, write_result


@pytest.fixture
def result():
    return Result(
        value=58.08,
        unit="perplexity per word",
        nats=4.0618,
        bits=5.86,
        num_tokens=73_750,
        split="valid",
        method="static",
        settings={"columns": 10},
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
    assert found["value"] == 58.08 and found["unit"] == "perplexity per word"
    assert found["settings"] == {"columns": 10} and found["num_tokens"] == 73_750
    assert found["data_sha256"] == "34" and found["model_sha256"] == "12"
    assert {"highrank", "commit", "torch", "python", "date"} <= set(found["environment"])
    assert path.name.endswith("-static-valid.json")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_no_result_is_overwritten(result, tmp_path):
    first, second = (write_result(tmp_path, replace(result, value=v)) for v in (1.0, 2.0))
    assert first != second
    assert [json.loads(path.read_text())["value"] for path in (first, second)] == [1.0, 2.0]
