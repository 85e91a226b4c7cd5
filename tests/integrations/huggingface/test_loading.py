"""Folders of upgraded models: imports in any order, bodies without a head, and their README."""

import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

import highrank
from highrank.integrations.huggingface.output_layer import run

LOADING = "print(type(AutoModelForCausalLM.from_pretrained(sys.argv[1])).__name__)"
TRANSFORMERS = "from transformers import AutoModelForCausalLM"


@pytest.mark.parametrize(
    "statements",
    [
        ["import highrank", TRANSFORMERS],
        [TRANSFORMERS, "import highrank"],
    ],
)
def test_imports_stand_in_any_order(make, tmp_path, statements):
    make.upgraded("gpt2").save_pretrained(tmp_path)
    code = "\n".join(["import sys", *statements, LOADING])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip() == "HighRankGPT2LMHeadModel", done.stderr


def test_auto_model_loads_the_body(make, name, tokens, tmp_path):
    model = make.trained(name)
    model.save_pretrained(tmp_path)
    body = AutoModel.from_pretrained(tmp_path)
    hidden, _ = run(model, tokens, name)
    torch.testing.assert_close(body(input_ids=tokens).last_hidden_state, hidden)
    assert type(body).__name__ == f"HighRank{type(model.base_model).__name__}"


def test_a_folder_says_what_it_needs(make, tmp_path):
    model = make.upgraded("gpt2", num_components=3)
    model.save_pretrained(tmp_path / "one")
    text = (tmp_path / "one" / "README.md").read_text()
    assert "import highrank" in text and "head `low-rank-mos`" in text and "K = 3" in text
    (tmp_path / "one" / "README.md").write_text("mine")
    model.save_pretrained(tmp_path / "one")
    assert (tmp_path / "one" / "README.md").read_text() == "mine"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert isinstance(loaded, type(model)) and highrank.load_huggingface(tmp_path / "one")
