"""The exported model predicts, trains and generates as the run that it was made from."""

import subprocess
import sys

import pytest
import torch

from highrank.generation import generate
from highrank.heads import COMPOSED, HEADS
from highrank.models.weights import without_dropout

pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoTokenizer

from highrank.integrations.huggingface.export import export_run
from highrank.integrations.huggingface.run_model import RunForCausalLM

TEXTS = ["the cat", "a dog saw the old cat. it slept", "it"]
OPTIONS = {
    "mos+pointer": {"num_states": 20},
    "mos+constant": {"num_topics": 3},
    "sparse-mos": {"num_active": 1},
    "multi-sense": {"num_frequent": 5},
}
# Stateful, with tied bands, with counts of tokens, with lower layers; the rest in `-m slow`.
FEW = ("mos", "mos+pointer", "adaptive-mos", "mos+constant", "mos+ngram", "doc")
ALL = (*HEADS, *COMPOSED, "mos+ngram")
KINDS = [k if k in FEW else pytest.param(k, marks=pytest.mark.slow) for k in ALL]


@pytest.fixture(scope="module")
def model(exported):
    return AutoModelForCausalLM.from_pretrained(exported)


@pytest.fixture(scope="module")
def tokenizer(exported):
    return AutoTokenizer.from_pretrained(exported)


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_generates_the_same_text(kind, run_of, tmp_path):
    loaded = run_of(kind, **OPTIONS.get(kind, {}))
    folder = export_run(loaded, tmp_path / "export").folder
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("the cat", return_tensors="pt")
    want = generate(loaded.model, loaded.vocabulary, ["the", "cat"], num_tokens=25, temperature=0.0)
    found = model.generate(**prompt, max_new_tokens=25, do_sample=False)
    assert tokenizer.convert_ids_to_tokens(found[0, 3:]) == want[0]
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    for row, text in zip(model(**batch).logits, TEXTS, strict=True):
        alone = model(**tokenizer(text, return_tensors="pt")).logits[0]
        torch.testing.assert_close(row[-len(alone) :], alone)


def test_a_new_process_finds_model_and_tokenizer_when_they_are_needed(exported):
    program = f"""
import sys, transformers, highrank
assert "highrank.integrations.huggingface.run_model" not in sys.modules
tokenizer = transformers.AutoTokenizer.from_pretrained({str(exported)!r})
assert type(tokenizer).__name__ == "RunTokenizer"
model = transformers.AutoModelForCausalLM.from_pretrained({str(exported)!r})
assert type(model).__name__ == "RunForCausalLM"
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


def test_log_probabilities_are_those_of_the_run(model, loaded):
    ids = torch.randint(len(loaded.vocabulary), (2, 9))
    read = loaded.model.read(ids.T, loaded.model.initial_state(2))
    want = loaded.model.head.log_prob(read.hidden).transpose(0, 1)
    out = model(ids, output_hidden_states=True)
    torch.testing.assert_close(out.logits, want)
    torch.testing.assert_close(out.hidden_states[-1], read.hidden.transpose(0, 1))
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, want[:, -2:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([3])).logits, want[:, [3]])
    first = model(ids[:, :4])
    rest = model(ids[:, 4:], cache_params=first.cache_params)
    assert rest.cache_params.get_seq_length() == 9
    torch.testing.assert_close(rest.logits, want[:, 4:])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generation_needs_no_cache(num_beams, model, tokenizer):
    prompt = tokenizer(TEXTS, return_tensors="pt", padding=True)
    options = {"max_new_tokens": 8, "num_beams": num_beams, "do_sample": False}
    cached = model.generate(**prompt, **options)
    assert torch.equal(cached, model.generate(**prompt, **options, use_cache=False))


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_is_that_of_each_text_alone(side, model, tokenizer):
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side=side)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    total = count = 0
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        out = model(ids, labels=ids)
        picked = out.logits[0, :-1].gather(1, ids[0, 1:, None])
        torch.testing.assert_close(out.loss, -picked.mean())
        total, count = total - picked.sum(), count + len(picked)
    torch.testing.assert_close(model(**batch, labels=labels).loss, total / count)
    found = model(**batch, labels=labels, num_items_in_batch=7).loss
    torch.testing.assert_close(found, total / 7)


def test_gradients_are_those_of_the_run(model, loaded):
    ids = torch.randint(10, (2, 9))
    model.train()
    # Dropout off, but as in training: no logits.
    with without_dropout(model.language_model):
        out = model(ids, labels=ids)
    model.eval()
    out.loss.backward()
    assert out.logits is None
    with without_dropout(loaded.model):
        state = loaded.model.initial_state(2)
        loaded.model(ids.T[:-1], ids.T[1:], state).loss.backward()
    for ours, theirs in zip(
        loaded.model.parameters(), model.language_model.parameters(), strict=True
    ):
        torch.testing.assert_close(theirs.grad, ours.grad)


def test_tied_weights_stay_tied_and_are_saved_once(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = RunForCausalLM.from_pretrained(tmp_path)
    inner = again.language_model
    assert inner.head.weight is inner.backbone.embedding.weight
    assert torch.equal(again(torch.arange(5)[None]).logits, model(torch.arange(5)[None]).logits)


def test_missing_weights_are_an_error(exported, tmp_path):
    from safetensors.torch import load_file, save_file

    for file in exported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["language_model.head.prior.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="got none for language_model.head.prior.weight"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_what_it_cannot_do_is_refused(model):
    for options, message in (
        ({"inputs_embeds": torch.zeros(1, 3, 8)}, "inputs_embeds must be None"),
        ({"attention_mask": torch.zeros(1, 3)}, "attention_mask must leave every sequence a token"),
        ({"logits_to_keep": torch.ones(1, 3)}, "logits_to_keep must be a number or a 1-D index"),
    ):
        with pytest.raises(ValueError, match=message):
            model(torch.zeros(1, 3, dtype=torch.long), **options)
    with pytest.raises(ValueError, match="cannot be resized"):
        model.resize_token_embeddings(50)
