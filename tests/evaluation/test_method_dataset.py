"""What is evaluated: splits, and files that are read as the corpus was."""

import numpy as np
import pytest

from highrank.evaluation.method import file_dataset, find_datasets, split_dataset


def test_a_split_is_the_corpus_s(loaded):
    found = split_dataset(loaded, "test")
    np.testing.assert_array_equal(found.tokens, loaded.corpus.split("test"))
    assert found.name == "test" and found.lines is None and not found.unknown
    assert found.sha256 == loaded.corpus.header.splits["test"].sha256


def test_a_file_starts_after_an_eos_and_counts_its_unknown_tokens(loaded, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("the newt saw an axolotl\n\nan axolotl slept\n")
    found = file_dataset(loaded, path)
    assert loaded.vocabulary.decode(found.tokens[:3].tolist()) == ["<eos>", "the", "<unk>"]
    assert [len(line) for line in found.lines] == [6, 0, 4] and len(found.tokens) == 11
    assert found.unknown == {"an": 2, "axolotl": 2, "newt": 1}
    assert found.name == "text mine.txt" and len(found.sha256) == 64
    assert [dataset.name for dataset in find_datasets(loaded)] == ["valid", "test"]
    assert [dataset.name for dataset in find_datasets(loaded, path)] == ["text mine.txt"]


def test_a_file_without_a_known_token_is_refused(loaded, tmp_path):
    path = tmp_path / "foreign.txt"
    path.write_text("Nihil novi sub sole\n")
    with pytest.raises(ValueError, match="must have a token of the run's vocabulary"):
        file_dataset(loaded, path)
