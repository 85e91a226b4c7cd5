"""Networks and tokenizers from a text to an exported model, with commands only."""

import json
import re

import pytest

SIZES = {
    "transformer": ("--model.hidden-size", "8", "--model.num-layers", "1", "--model.memory", "3"),
    "gated-cnn": (
        "--model.hidden-size",
        "8",
        "--model.num-blocks",
        "2",
        "--model.kernel-size",
        "2",
    ),
}
# Tokens that the network and the pointer, with 400 states, can see.
CONTEXT = {"transformer": 4 + 400, "gated-cnn": 3 + 400}


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [("transformer", "Transformer 3 × 128"), ("gated-cnn", "gated CNN 9 × 192")],
)
def test_another_network_has_as_many_parameters(kind, chosen, highrank, trained):
    rest = ("--train.steps", "1", "--train.epochs", "1", "--threads", "1", "--json")
    found = {}
    for name in ("awd-lstm", kind):
        code, printed, errors = highrank("train", "tale.txt", "--model.kind", name, *rest)
        assert code == 0, errors
        found[name] = json.loads(printed)["num_parameters"]
    assert f"Model: {chosen}, head" in errors
    assert found[kind] == pytest.approx(found["awd-lstm"], rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "tokenizer"), [("transformer", "bpe:270"), ("gated-cnn", "characters")]
)
def test_a_text_becomes_an_exported_model(kind, tokenizer, highrank, trained, tmp_path):
    text, run = tmp_path / "tale.txt", tmp_path / "run"
    text.write_text((trained / "tale.txt").read_text())
    options = ("--model.kind", kind, *SIZES[kind], "--tokenizer", tokenizer)
    rest = ("--train.epochs", "1", "--train.steps", "3", "--threads", "1", "--out", run)
    code, printed, errors = highrank("train", text, *options, *rest)
    assert code == 0, errors
    # Subwords spell every word: there is no <unk> to leave out.
    assert ("without <unk>" in printed) == ("--no-unk" in printed) == (tokenizer == "characters")
    code, printed, _ = highrank("evaluate", run, "--split", "test", "--json")
    result = json.loads(printed)["results"][0]
    assert code == 0 and result["settings"]["context"] == CONTEXT[kind]
    assert result["unit"].endswith("per character" if tokenizer == "characters" else "per token")
    assert f"context {CONTEXT[kind]}, stride 1" in highrank("evaluate", run)[1]
    assert highrank("generate", run, "--num-tokens", "5", "--prompt", "the")[0] == 0
    code, printed, errors = highrank("export", run, tmp_path / "exported")
    assert code == 0, errors
    card = (tmp_path / "exported" / "README.md").read_text()
    assert f"{result['value']:.2f} | {result['unit']} | {result['bits_per_byte']:.4f} |" in card
    (prompt,) = re.findall(r'inputs = tokenizer\("(.*?)", return_tensors', card)
    assert prompt and "Ġ" not in prompt and prompt in " ".join(prompt.split())
