"""What the README tells people to type works."""

import re
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_example_runs_and_trains():
    names = {}
    exec(BLOCKS[1], names)
    assert names["loss"].isfinite()
    assert names["embedding"].weight.grad.abs().sum() > 0
    assert names["head"].weight is names["embedding"].weight


def test_the_example_of_an_upgrade_runs(monkeypatch):
    """With a tiny model for the one that would be downloaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
    config = GPT2Config(
        vocab_size=30, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    plain = GPT2LMHeadModel(config).eval()
    want = plain(torch.arange(9)[None]).logits
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda name: plain)
    names = {}
    exec(BLOCKS[0], names)
    got = names["model"](torch.arange(9)[None]).logits
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_links_lead_to_files():
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
