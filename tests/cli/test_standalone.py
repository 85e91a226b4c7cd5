"""A run that was copied to a machine that has neither its corpus nor its text."""

import shutil

import pytest

from highrank import load


@pytest.fixture
def elsewhere(highrank, trained, broken, tmp_path, monkeypatch):
    """A copy of the run, in another folder than the current one, and an empty cache."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HIGHRANK_CACHE", str(tmp_path / "cache"))
    record = broken / "corpus.json"
    record.write_text(record.read_text().replace(str(trained), str(tmp_path / "nothing")))
    return broken


def test_to_load_to_generate_and_to_evaluate_a_text_need_the_folder_alone(
    elsewhere, highrank, trained, tmp_path
):
    arguments = ("--seed", "1", "--prompt", "the cat", "--num-tokens", "20")
    copy, whole = (highrank("generate", run, *arguments) for run in (elsewhere, trained / "tiny"))
    assert copy == whole and copy[0] == 0
    model, vocabulary = load(elsewhere)
    assert len(vocabulary) == len(model.head.weight)
    (tmp_path / "my.txt").write_text("the cat saw a dog\nit slept\n")
    code, output, errors = highrank("evaluate", elsewhere, "--text", tmp_path / "my.txt")
    assert code == 0 and "my.txt" in output, errors


@pytest.mark.parametrize("command", [("evaluate",), ("train", "--threads", "1", "--resume")])
def test_a_missing_corpus_is_named_and_found_again_under_any_name(
    command, elsewhere, highrank, trained, tmp_path
):
    code, _, errors = highrank(*command, elsewhere)
    assert code == 2 and errors.count("\n") == 1
    assert "highrank data prepare tale.txt --name tale --tokenizer words --min-count 3" in errors
    shutil.copy(trained / "tale.txt", tmp_path)
    assert highrank("data", "prepare", tmp_path / "tale.txt", "--name", "other")[0] == 0
    assert highrank(*command, elsewhere)[0] == 0
