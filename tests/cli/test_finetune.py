"""`highrank finetune`: table, page, JSON, and what happens at a signal."""

import json

import pytest

pytest.importorskip("transformers")
from highrank.studies.finetune import measure
from highrank.training.signals import Stopped

OPTIONS = ["--block-length", 16, "--batch-size", 4, "--steps", 2, "--threads", 1]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with a model of characters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("base")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({sign: i for i, sign in enumerate(letters)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=bpe).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 256}
    LlamaForCausalLM(LlamaConfig(**sizes, **layers)).save_pretrained(folder)
    return folder


def test_a_table_a_page_and_numbers(highrank, base, tmp_path):
    out = tmp_path / "out"
    code, text, _ = highrank("finetune", base, "tale.txt", *OPTIONS, "--out", out)
    assert code == 0 and "nats, equal tokens" in text
    numbers = json.loads((out / "finetune.json").read_text())
    # What added weights win without a mixture is beside it.
    assert [one["variant"] for one in numbers["variants"]] == ["softmax", "residual", "linear"]
    assert ">finetune</span>" in (out / "finetune.html").read_text()
    code, text, _ = highrank("finetune", base, "tale.txt", *OPTIONS, "--out", out, "--json")
    assert json.loads(text)["equal_time"] == numbers["equal_time"]


def test_a_signal_prints_how_to_resume(highrank, base, trained, monkeypatch):
    def stopped(*_):
        raise Stopped(15)

    monkeypatch.setattr(measure, "train_variants", stopped)
    code, text, _ = highrank("finetune", base, "tale.txt", *OPTIONS)
    assert code == 143
    assert "Saved. Resume with: highrank finetune" in text and "--out runs/finetune-1" in text


def test_mistakes_leave_nothing_behind(highrank, base, tmp_path):
    code, _, error = highrank("finetune", base, "tale.txt", "--seeds", 0, "--out", tmp_path / "run")
    assert code == 2 and "seeds must be at least 1, got 0" in error
    assert not (tmp_path / "run").exists()
