"""`highrank export`: what it prints, and what it refuses."""

import json

import pytest

from highrank import register

pytest.importorskip("transformers")


def test_export_writes_a_folder_that_generates_the_same_text(highrank, trained):
    code, out, _ = highrank("export", "tiny", "tiny-hf", "--json")
    assert code == 0 and "model.safetensors" in json.loads(out)["files"]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    register()
    model = AutoModelForCausalLM.from_pretrained(trained / "tiny-hf")
    tokenizer = AutoTokenizer.from_pretrained(trained / "tiny-hf")
    options = ["--prompt", "the cat", "--num-tokens", "20", "--temperature", "0"]
    _, text, _ = highrank("generate", "tiny", *options)
    found = model.generate(
        **tokenizer("the cat", return_tensors="pt"), max_new_tokens=20, do_sample=False
    )
    assert tokenizer.decode(found[0], skip_special_tokens=True).strip() == text.strip()
    code, _, error = highrank("export", "tiny", "tiny-hf")
    assert code == 2 and "the export's folder must be new, got tiny-hf" in error
    code, out, _ = highrank("export", "tiny", "tiny-hf", "--force")
    assert code == 0 and "README.md" in out


def test_what_is_no_run_is_refused(highrank, tmp_path):
    code, _, error = highrank("export", tmp_path, tmp_path / "new")
    assert code == 2 and "a run must be a folder that `highrank train` made" in error
    assert not (tmp_path / "new").exists()
