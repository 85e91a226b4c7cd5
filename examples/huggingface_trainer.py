"""Fine-tune an upgraded model with the Trainer of transformers, save it, load it, generate.

python examples/huggingface_trainer.py
"""

from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

import highrank
from highrank.integrations.huggingface.upgrade import train_head_and_last_block


def main(folder: str) -> None:
    torch.manual_seed(0)
    # In place of AutoModelForCausalLM.from_pretrained("…").
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=None,
    )
    model = highrank.upgrade(AutoModelForCausalLM.from_config(config), num_components=4)
    # Optional: the rest of the model stays as it was.
    train_head_and_last_block(model)
    texts = torch.randint(3, (64, 24)).cumsum(1) % 64
    arguments = TrainingArguments(
        folder,
        max_steps=40,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=10,
        report_to=[],
        use_cpu=True,
    )
    data = [{"input_ids": x, "labels": x} for x in texts]
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(f"step {entry['step']}: loss {entry['loss']}")
    trainer.save_model(folder)

    loaded: Any = AutoModelForCausalLM.from_pretrained(folder)
    found = loaded.generate(texts[:1, :8], max_new_tokens=12, num_beams=3, do_sample=False)
    print(type(loaded).__name__, "continues", texts[0, :8].tolist(), "with", found[0, 8:].tolist())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(folder)
