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


def test_other_commands_take_a_hugging_face_folder_or_refuse_it(highrank, trained, tmp_path):
    assert highrank("export", "tiny", "model", "--force")[0] == 0
    (tmp_path / "mine.txt").write_text("the old cat saw a dog\n" * 30)
    both, text = ("evaluate", "tiny", "model"), ("--text", tmp_path / "mine.txt")
    code, printed, errors = highrank(*both, *text)
    assert code == 0 and "bits/byte" in printed, errors
    assert max(map(len, printed.splitlines())) <= 80
    ours, theirs = json.loads(highrank(*both, *text, "--json")[1])["results"]
    assert (ours["run"], theirs["run"]) == ("tiny", "model") and theirs["settings"]["stride"] == 512
    assert theirs["bits_per_byte"] == pytest.approx(ours["bits_per_byte"], rel=0.05)
    options = ("--temperature", 0, "--num-tokens", 9, "--prompt", "the cat")
    assert highrank("generate", "model", *options)[1] == highrank("generate", "tiny", *options)[1]
    for arguments, message in (
        (("export", "model", "new"), "model is a Hugging Face model already: there is nothing"),
        (("evaluate", "model"), "--text FILE must be given for model: only a single run has spl"),
        (("evaluate", "tiny", "model", *text, "--all"), "--all must go with a single run, got tin"),
        (("evaluate", "tiny", *text, "--stride", 5), "--context and --stride must go with Hugging"),
        (("generate", "model", "--show-components"), "show-components must go with a run, got th"),
    ):
        code, _, error = highrank(*arguments)
        assert code == 2 and error.splitlines()[-1].startswith(f"highrank: {message}"), arguments


def test_what_is_no_run_is_refused(highrank, tmp_path):
    code, _, error = highrank("export", tmp_path, tmp_path / "new")
    assert code == 2 and "a run must be a folder that `highrank train` made" in error
    assert not (tmp_path / "new").exists()
