"""The page of a training run; tests/cli/test_train.py looks at a whole one."""

from types import SimpleNamespace

import pytest

from highrank.data.vocabulary import Vocabulary
from highrank.report.run_page import samples_command


@pytest.mark.parametrize(
    ("tokens", "end"), [(("<unk>", "<eos>", "a"), " --no-unk"), (("<eos>", "a"), "")]
)
def test_samples_are_without_unk_where_the_vocabulary_has_it(tokens, end):
    corpus = SimpleNamespace(vocabulary=Vocabulary(tokens))
    want = f"highrank generate 'my run' --temperature 0.8{end}"
    assert samples_command("my run", 0.8, corpus) == want
