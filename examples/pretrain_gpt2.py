r"""Train a GPT-2-shaped model and its tokenizer on a text: what `highrank finetune` can start from.

    python examples/pretrain_gpt2.py my.txt base --minutes 20 --width 256 --layers 6 \
        --vocab-size 8192 --block-length 256
    highrank finetune base my.txt --seeds 3 --budget 1h

Only the train split is read, so that finetuning on the same text holds out what was never seen.
"""

import argparse
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from highrank.data.text import read_text, split_text

parser = argparse.ArgumentParser()
parser.add_argument("text", nargs="?", type=Path, help="file or folder; a few lines if left out")
parser.add_argument("out", nargs="?", default="base")
numbers = {"minutes": 0.03, "width": 64, "layers": 2, "vocab-size": 512, "batch-size": 16}
for option, default in (numbers | {"block-length": 64, "lr": 1e-3}).items():
    parser.add_argument(f"--{option}", type=type(default), default=default)
args = parser.parse_args()
if args.text is None:
    args.text = Path("example.txt")
    args.text.write_text("the cat saw the dog, and the dog slept.\n" * 500)
blocks = [block for span in split_text(args.text)[0]["train"] for block, _ in read_text(span)]
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
end, letters = "<|endoftext|>", pre_tokenizers.ByteLevel.alphabet()
sizes = {"vocab_size": args.vocab_size}
kind = trainers.BpeTrainer(**sizes, special_tokens=[end], initial_alphabet=letters)
bpe.train_from_iterator(blocks, kind)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=end, eos_token=end)
ids = torch.tensor([i for block in blocks for i in bpe.encode(block).ids])
sizes |= {"n_embd": args.width, "n_layer": args.layers, "n_positions": args.block_length}
sizes |= {"n_head": max(1, args.width // 64), "vocab_size": bpe.get_vocab_size()}
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
print(f"{model.num_parameters():,} parameters, {len(ids):,} tokens")
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
start, step, done = time.monotonic(), 0, 0.0
while done < 1 or step < 10:
    for group in optimizer.param_groups:
        group["lr"] = args.lr * min((step + 1) / 100, max(1 - done, 0.01))
    places = torch.randint(len(ids) - args.block_length, (args.batch_size,))
    batch = torch.stack([ids[i : i + args.block_length] for i in places])
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(), optimizer.zero_grad()
    step, done = step + 1, (time.monotonic() - start) / (60 * args.minutes)
    if step == 1 or step % 100 == 0 or done >= 1:
        print(f"step {step}, {done:.0%}: {loss.item():.4f}", flush=True)
model.save_pretrained(args.out)
tokenizer.save_pretrained(args.out)
