"""Folders of upgraded models: imports in any order, bodies without a head, and their README."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM
from transformers.utils import hub

import highrank
from highrank.integrations.huggingface.card import PUSHED, TRAINED
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
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert isinstance(loaded, type(model)) and highrank.load_huggingface(tmp_path / "one")


@pytest.mark.parametrize(
    "card, start, is_said",
    [
        ("mine", "mine", False),
        (f"# A tale\n{TRAINED}\nloss 1.5", "# A tale", True),
        (f"# Model card\n{PUSHED}", "---\nlibrary_name", True),
    ],
)
def test_cards_of_people_stay_and_those_of_transformers_say_how_to_load(
    make, tmp_path, card, start, is_said
):
    model, path = make.upgraded("gpt2"), tmp_path / "README.md"
    for _ in range(2):
        path.write_text(path.read_text() if path.exists() else card)
        model.save_pretrained(tmp_path)
    text = path.read_text()
    assert text.startswith(start) and text.count("import highrank") == is_said


def test_a_pushed_model_has_a_card_with_its_own_name(make, monkeypatch):
    """With a hub that has nothing, and takes everything."""
    pushed = {}

    class Hub:
        def create_repo(self, repo_id, **_):
            return SimpleNamespace(repo_id=repo_id)

        def create_commit(self, repo_id, operations, **_):
            pushed.update(
                {o.path_in_repo: Path(o.path_or_fileobj).read_bytes() for o in operations}
            )

    monkeypatch.setattr(hub, "hf_api", Hub)
    card = hub.ModelCard(f"---\ntags: []\n---\n{PUSHED}")
    monkeypatch.setattr(hub.ModelCard, "load", lambda *_, **__: card)
    make.upgraded("gpt2").push_to_hub("me/tale")
    assert 'from_pretrained("me/tale")' in pushed["README.md"].decode()
