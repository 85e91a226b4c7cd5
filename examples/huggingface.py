"""Upgrade a Hugging Face model to a mixture, fine-tune it in a loop, audit it before and after.

python examples/huggingface.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast

import highrank
from highrank.studies.audit.measure import run_audit
from highrank.studies.audit.model import find_model

WORDS = [f"w{i}" for i in range(64)]


def train(model: Any, text: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = model.train()(text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} of {type(model).__name__}: loss {loss.item():.3f}")


def main(folder: Path) -> None:
    torch.manual_seed(0)
    text = torch.randint(8, (12, 48)).cumsum(1) % 64  # (B, L)
    (folder / "text.txt").write_text(" ".join(WORDS[i] for i in text.flatten()))
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)

    # In place of AutoModelForCausalLM.from_pretrained("gpt2").
    config = GPT2Config(
        vocab_size=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = AutoModelForCausalLM.from_config(config)
    train(model, text, 41)
    for name in ("softmax", "mixture"):
        if name == "mixture":
            model = highrank.upgrade(model, num_components=4, rank=8)
            train(model, text, 41)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        found = find_model(str(folder / name), folder / "text.txt", "cpu")
        print(run_audit([found], num_contexts=200, quick=True).answer)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder))
