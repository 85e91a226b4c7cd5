"""`highrank audit` as a user meets it: runs, Hugging Face models from small configurations."""

import errno
import json
import warnings

import pytest
import torch

from highrank import upgrade
from highrank.files import write_atomically
from highrank.integrations.huggingface import library, reader
from highrank.integrations.huggingface.reader import HubError
from highrank.studies.audit import model as audit_model

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
WIDE = {**SMALL, "intermediate_size": 16}
CONFIGS = {
    "gpt2": lambda V: transformers.GPT2Config(vocab_size=V, **SMALL),
    "llama": lambda V: transformers.LlamaConfig(vocab_size=V, **WIDE),
    "phi": lambda V: transformers.PhiConfig(vocab_size=V, **WIDE),
    "gemma2": lambda V: transformers.Gemma2Config(
        vocab_size=V, **WIDE, head_dim=8, num_key_value_heads=1, final_logit_softcapping=4.0
    ),
}
# Context, normaliser, and Phi's bias; a softcap leaves no bound.
BOUNDS = {"gpt2": 17, "llama": 17, "phi": 18, "gemma2": None}


@pytest.fixture(scope="session")
def hugging_face(trained):
    """Models with random weights and a tokenizer trained on the tale, each in a folder."""
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>"], show_progress=False)
    inner.train([str(trained / "tale.txt")], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    torch.manual_seed(0)
    for name, config in CONFIGS.items():
        model = transformers.AutoModelForCausalLM.from_config(config(len(tokenizer)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.5)
        model.save_pretrained(trained / name)
        tokenizer.save_pretrained(trained / name)
    upgrade(model, num_components=3, rank=2).save_pretrained(trained / "upgraded")
    tokenizer.save_pretrained(trained / "upgraded")
    return trained


def test_four_architectures_side_by_side_and_their_bounds(highrank, hugging_face, tmp_path):
    out = tmp_path / "page.html"
    code, printed, errors = highrank(
        "audit", *CONFIGS, "--text", "tale.txt", "--contexts", "300", "--out", out
    )
    assert code == 0, errors
    assert all(name in printed for name in CONFIGS) and "page.html" in printed
    assert "Traceback" not in errors and "Warning" not in errors
    page = out.read_text()
    assert page.startswith("<!doctype html>") and all(name in page for name in CONFIGS)
    result = json.loads((tmp_path / "page.json").read_text())
    found = {model["name"]: model for model in result["models"]}
    assert {name: model["rank"]["bound"] for name, model in found.items()} == BOUNDS
    for name, bound in BOUNDS.items():
        assert found[name]["text"]["num_contexts"] == 300
        assert found[name]["unargmaxable"]["num_argmaxable"] > 0
        if bound is not None:
            assert found[name]["rank"]["measures"]["numerical_rank_float64"] == bound
    assert found["gemma2"]["rank"]["measures"]["numerical_rank_float64"] > 18
    assert found["gemma2"]["head"]["softcap"] == 4.0 and found["phi"]["head"]["has_bias"]


def test_a_run_and_a_hugging_face_model_on_one_text(highrank, hugging_face, tmp_path):
    options = ("--text", "tale.txt", "--quick", "--json", "--out", tmp_path / "a.html")
    code, printed, errors = highrank("audit", "tiny", "gpt2", "upgraded", *options)
    assert code == 0, errors
    result = json.loads(printed)
    assert result == json.loads((tmp_path / "a.json").read_text())
    run, model, upgraded = result["models"]
    assert (run["source"], model["source"]) == ("run", "huggingface")
    assert run["text"]["name"] == model["text"]["name"] == "tale.txt"
    assert run["text"]["sha256"] == model["text"]["sha256"]
    assert result["quick"] and run["text"]["num_contexts"] == 500
    assert run["head"]["kind"] == "mos" and run["unargmaxable"] is None
    assert len(run["mixture"]["components"]) == 3
    # Of Gemma 2, whose softcap it keeps.
    head, rank = upgraded["head"], upgraded["rank"]
    assert (head["kind"], head["softcap"], head["is_tied"]) == ("low-rank-mos", 4.0, True)
    assert rank["bound"] is None and len(upgraded["mixture"]["components"]) == 3


def test_a_run_is_audited_on_its_test_split(highrank, trained, tmp_path):
    picture = tmp_path / "spectrum.png"
    code, printed, errors = highrank(
        "audit", "tiny", "--contexts", "100", "--out", tmp_path / "a.html", "--picture", picture
    )
    assert code == 0, errors
    assert picture.read_bytes().startswith(b"\x89PNG")
    (run,) = json.loads((tmp_path / "a.json").read_text())["models"]
    assert run["text"]["name"] == "tale/test" and run["rank"]["num_tokens"] == 14
    assert run["text"]["perplexity"] < 14


def test_without_a_text_the_addresses_are_read(highrank, hugging_face, tmp_path):
    code, printed, errors = highrank(
        "audit", "gpt2", "--contexts", "50", "--no-fit", "--json", "--out", tmp_path / "a.html"
    )
    assert code == 0, errors
    (model,) = json.loads(printed)["models"]
    assert model["text"]["name"] == "sotu/test" and "--no-fit" in model["fit_note"]


@pytest.mark.parametrize(
    ("place", "options", "extra"),
    [
        ((audit_model, "package_files"), (), "data"),
        ((library, "find_spec"), ("--text", "tale.txt"), "hf"),
    ],
)
def test_what_is_missing_comes_with_the_command_that_installs_it(
    place, options, extra, highrank, hugging_face, monkeypatch
):
    def missing(name):
        if extra == "data":
            raise ValueError("not installed")

    monkeypatch.setattr(*place, missing)
    code, _, errors = highrank("audit", "gpt2", *options)
    assert code == 2 and f"pip install '.[{extra}]'" in errors


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "models must be given"),
        (("tiny", "--contexts", "1"), "contexts must be at least 2, got 1"),
        (("tiny", "--out", "numbers.json"), "out must be a page and not end in .json"),
        (("tiny", "--device", "moon"), "device must be one that torch has here"),
    ],
)
def test_mistakes_end_with_one_line_and_leave_no_page(highrank, trained, arguments, message):
    code, printed, errors = highrank("audit", *arguments)
    assert code == 2
    assert message in printed + errors and "Traceback" not in errors
    assert not (trained / "highrank-audit.html").exists()


@pytest.mark.parametrize("options", [("--out", "my.html"), ("--picture", "my.json")])
def test_the_text_is_not_written_over(highrank, monkeypatch, tmp_path, options):
    monkeypatch.setattr("highrank.studies.audit.model.find_model", lambda *_: pytest.fail("loaded"))
    option, name = options
    (tmp_path / "my.json").write_text("all my work")
    text = ("--text", tmp_path / "my.json")
    code, _, errors = highrank("audit", "tiny", *text, option, tmp_path / name)
    assert code == 2 and "the text must not be written over" in errors
    code, _, errors = highrank("audit", "tiny", "--out", tmp_path / "my.html")
    assert code == 2 and "my.json is there" in errors
    assert (tmp_path / "my.json").read_text() == "all my work"


def test_an_earlier_page_is_kept(highrank, trained, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "highrank-audit.html").touch()
    (tmp_path / "highrank-audit-2.json").touch()
    code, printed, errors = highrank("audit", trained / "tiny", "--contexts", "2")
    assert code == 0, errors
    assert "highrank-audit-3.html" in printed and (tmp_path / "highrank-audit-3.json").exists()


@pytest.mark.parametrize("name", ["./nowhere", "a/b/c", "tale.txt", "a b"])
def test_paths_that_are_no_folders_are_refused_and_the_hub_is_not_asked(
    highrank, monkeypatch, name
):
    monkeypatch.setattr(reader, "hub_answers", lambda name: pytest.fail(name))
    code, _, errors = highrank("audit", "tiny", name, "--text", "tale.txt")
    assert code == 2 and "MODEL must be a run's folder, a Hugging Face model's folder" in errors
    assert f"got the file {name}" in errors if name == "tale.txt" else f"got {name}" in errors


@pytest.mark.parametrize("reason", ["the hub has no such model", "the hub could not be reached"])
def test_a_name_that_is_nowhere_says_where_it_was_looked_for(
    highrank, monkeypatch, reason, tmp_path
):
    asked = []

    def answer(name):
        asked.append(name)
        raise HubError(reason)

    monkeypatch.setattr(reader, "hub_answers", answer)
    # Where no run of another test has a like name.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tale.txt").write_text("a cat")
    code, _, errors = highrank("audit", "small-1", "--text", "tale.txt")
    assert code == 2 and len(errors.splitlines()) == 1 and asked == ["small-1"]
    assert (
        f"got small-1: there is no such folder here, no such run in ./runs, and {reason}" in errors
    )
    assert "give the model's folder" in errors


@pytest.mark.parametrize("command", ["audit", "evaluate"])
@pytest.mark.parametrize("name", ["small-1", "smal-1", "runs/smal-1"])
def test_a_wrong_name_of_a_run_says_which_is_meant(command, name, highrank, monkeypatch, tmp_path):
    def answer(name):
        raise HubError("no answer")

    monkeypatch.setattr(reader, "hub_answers", answer)
    (tmp_path / "runs" / "small-1").mkdir(parents=True)
    (tmp_path / "runs" / "small-1" / "config.json").write_text("{}")
    (tmp_path / "text.txt").write_text("a cat")
    monkeypatch.chdir(tmp_path)
    code, _, errors = highrank(command, name, "--text", "text.txt")
    assert code == 2 and "did you mean runs/small-1?" in errors


@pytest.mark.parametrize("config", [None, "[1]", '{"other": 1}'])
def test_a_folder_that_is_neither_says_what_both_have(highrank, tmp_path, config):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    code, _, errors = highrank("audit", tmp_path, "--text", "tale.txt")
    assert code == 2 and f"made, got {tmp_path}, which is no Hugging Face model either" in errors
    assert "a run has config.json with the format of one" in errors and "a model has" in errors


@pytest.mark.parametrize("model", ["tiny", "phi"])
def test_two_contexts_are_enough_for_a_page(highrank, hugging_face, tmp_path, model):
    code, printed, errors = highrank(
        "audit", model, "--text", "tale.txt", "--contexts", "2", "--out", tmp_path / "a.html"
    )
    assert code == 0, errors
    assert "2×" in printed and (tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    ("name", "options"), [("a.json", ("--json",)), ("a.html", ()), ("a.png", ())]
)
def test_a_full_disk_loses_nothing_and_is_named(name, options, highrank, monkeypatch, tmp_path):
    def full(_temporary):
        raise OSError(errno.ENOSPC, "No space left on device")

    def write(path, write):
        write_atomically(path, full if path.name == name else write)

    for module in ("cli.audit", "cli.console", "report.figure"):
        monkeypatch.setattr(f"highrank.{module}.write_atomically", write)
    outputs = ("--out", tmp_path / "a.html", "--picture", tmp_path / "a.png")
    code, printed, errors = highrank("audit", "tiny", "--contexts", "50", *outputs, *options)
    assert f"The disk is full: {tmp_path / name} was not written." in errors
    assert code == 2 and ('{"answer": ' if options else "numerical rank, float32") in printed


def test_hugging_face_models_pass_the_check(hugging_face, highrank):
    for name in ("gpt2", "upgraded"):
        code, out, _ = highrank("check", name, "--text", "tale.txt")
        assert code == 0 and len(out.splitlines()) == 8, out
