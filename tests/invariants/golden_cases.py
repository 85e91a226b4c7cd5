"""Cases of `golden.py`: heads with their options, losses, runs and commands.

T time, B sequences, K components, M targets of a token, D hidden size, E embedding size,
V vocabulary.
"""

import hashlib
import random

import numpy as np
import torch

T, B, K, M, D, E, V = 7, 3, 3, 2, 6, 4, 23

# Where parameters got other names, kind of head: beginnings of new names and of old ones. Their
# values are drawn and recorded under the old ones.
OF_SOFTMAX = ("weight", "bias", "latent.")
RENAMED_PARAMETERS = {
    "multi-sense": {name: f"softmax.{name}" for name in OF_SOFTMAX},
    "mos+constant": {"base.": "softmaxes.", "components.0.": ""},
    "mos+pointer": {"base.": "softmaxes.", "components.0.": ""},
    "adaptive-softmax+pointer": {"base.": "", "components.0.": ""},
}

COUNTS = {"token_counts": [7 * token % V + 1 for token in range(V)]}
SIZE = {"embedding_size": E}
MIXTURE = {"num_components": K, **SIZE}
SINGLE = {"num_components": 1, **SIZE}
TIMEWISE = {"activation": "identity", "dropout": 0.3, "bias": False}
OTHER = {**TIMEWISE, "batch_first": True}
NOISY = {**OTHER, "start_noise": 0.05}
BANDS = {"frequent": 6, "cutoffs": (11, 17), "div_value": 2.0, **COUNTS}
POINTER = {"num_states": 4, "key_size": 3}
LAYERS = {"layers": (-2, -1), "layer_sizes": (2, 4)}
PRIOR_MIXTURE = {"plain": MIXTURE, "single": SINGLE, "other": {**MIXTURE, **NOISY}}

# Of each head some sets of its constructor's arguments; `tied` stands for a call of `tie`.
HEAD_CASES = {
    "softmax": {
        "plain": {},
        "context": SIZE,
        "other": {**SIZE, **OTHER},
        "tied": {**SIZE, "tied": True},
    },
    "moc": PRIOR_MIXTURE,
    "mos": {**PRIOR_MIXTURE, "tied": {**MIXTURE, "tied": True}},
    "sparse-mos": {
        "plain": MIXTURE,
        "one": {**MIXTURE, "num_active": 1, "balance": 0.5},
        "other": {**MIXTURE, **NOISY, "balance": 0.0},
    },
    "multi-sense": {
        "plain": {**SIZE, "num_frequent": 5},
        "single": {**SIZE, "num_senses": 1},
        "other": {
            **SIZE,
            **COUNTS,
            **{"num_senses": 3, "num_frequent": 6, "sense_noise": 0.3},
            **OTHER,
        },
    },
    "mos+constant": {
        "plain": {**MIXTURE, **COUNTS, "num_topics": 2, "objective": "joint"},
        "single": {**SINGLE, "num_topics": 0},
        "other": {**MIXTURE, **NOISY, "num_topics": 2, "constant_weight": 0.3},
    },
    "mos+pointer": {
        "plain": {**MIXTURE, **POINTER, "objective": "joint"},
        "single": {**SINGLE, "num_states": 9, "key_size": 2, "pointer_weight": 0.3},
        "other": {**MIXTURE, **POINTER, **TIMEWISE, "start_noise": 0.05},
    },
    "low-rank-mos": {
        "plain": {**MIXTURE, "rank": 2},
        "hidden": {**MIXTURE, "embedding_size": None, "rank": 2, "prior_bias": True},
        "other": {**MIXTURE, **NOISY, "rank": 3},
    },
    "doc": {
        "plain": {**MIXTURE, **LAYERS},
        "last": {**MIXTURE, "layers": (-1,)},
        "other": {
            **NOISY,
            **{"num_components": 5, "embedding_size": E, "lower_components": (1, 2)},
            **{"layers": (0, -2, -1), "layer_sizes": (1, 2, 3), "balance": 0.5},
        },
    },
    "mixtape": {
        "plain": {**SIZE, "num_components": 4, "frequent_fraction": 0.3, "gate_size": 3},
        "other": {
            **COUNTS,
            **{"num_components": 2, "embedding_size": E, "frequent_fraction": 0.5, "gate_size": 2},
            **{"dropout": 0.3, "bias": False, "start_noise": 0.05, "batch_first": True},
        },
    },
    "partition": {"plain": SIZE, "other": {**SIZE, **OTHER, "num_partitions": 3}},
    "mfs": {
        "plain": MIXTURE,
        "previous": {**MIXTURE, **LAYERS, "num_previous": 2, "num_partitions": 2},
        "other": {
            **{**SINGLE, "num_partitions": 3},
            **{"dropout": 0.3, "bias": False, "start_noise": 0.05},
        },
    },
    "pointwise": {
        "plain": MIXTURE,
        "gss": {**SINGLE, "logit_map": "gss:-1.5,2.5"},
        "softcap": {**MIXTURE, **NOISY, "logit_map": "softcap:3"},
        "plif": {**MIXTURE, "logit_map": "plif:7,2"},
    },
    "adaptive-softmax": {
        "plain": {**SIZE, **COUNTS},
        "hidden": {"embedding_size": None, "frequent": 5, "cutoffs": (12,)},
        "other": {**SIZE, **BANDS, **OTHER},
        "tied": {**SIZE, **BANDS, "tied": True},
    },
    "adaptive-mos": {
        "plain": {**MIXTURE, **COUNTS},
        "single": {**SINGLE, "frequent": 6},
        "other": {**MIXTURE, **BANDS, **NOISY, "mix_first_tail": True},
    },
    "adaptive-softmax+pointer": {
        "plain": {**SIZE, **POINTER, **COUNTS, "objective": "joint"},
        "other": {**SIZE, **POINTER, **BANDS, **TIMEWISE, "pointer_weight": 0.3},
    },
}


def draw(name, *shape, scale=0.3):
    """Normal numbers that depend on the name and the shape only, in float64."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return scale * torch.from_numpy(np.asarray(numbers))


def draw_ids(name, *shape, least=0, vocab_size=V):
    """Token ids that depend on the name and the shape only."""
    numbers = draw(name, *shape, scale=1e6).long()
    return least + numbers % (vocab_size - least)


class Bend:
    """A map of logits: φ(z) = z + tanh(z) / 2."""

    def __call__(self, logits):
        return logits + logits.tanh() / 2

    def with_slope(self, logits):
        bent = logits.tanh()
        return logits + bent / 2, 1.5 - bent.square() / 2


def loss_options(shape, dtype=torch.float64):
    """Options of every loss, and of a head's, by name; targets are of this shape."""
    ids = draw_ids("target", *shape)
    amount = draw("amount", *shape, M).abs().to(dtype)
    return {
        "mean": {"target": ids},
        "none": {"target": ids, "reduction": "none"},
        "chunks": {"target": ids, "reduction": "sum", "chunk_bytes": 1000},
        "ignored": {"target": ids, "ignore_index": int(ids.flatten()[3])},
        "smoothed": {"target": ids, "label_smoothing": 0.1},
        "weighted": {"target": ids, "token_weight": draw("weights", *shape).abs().to(dtype)},
        "classes": {"target": ids, "class_weight": draw("classes", V).abs().to(dtype)},
        "soft": {"target": (draw_ids("soft", *shape, M), amount)},
        "shifted": {"target": ids, "shift": 1},
        "z-loss": {"target": ids, "z_loss": 0.1},
        "scaled": {"target": ids, "logit_scale": 0.7},
        "mapped": {"target": ids, "logit_map": Bend()},
    }


# One network for all runs; the heads differ, and how they are trained.
NETWORK = (
    "--corpus tale --seed 3 --model.embedding-size 8 --model.hidden-sizes 12 10 "
    "--model.embedding-dropout 0.1 --model.input-dropout 0.1 --model.hidden-dropout 0.1 "
    "--model.output-dropout 0.1 --model.weight-dropout 0.1 --model.embedding-range 0.3 "
    "--batch.batch-size 4 --batch.bptt 20 --batch.bptt-std 3 --batch.bptt-max-delta 8 "
    "--batch.bptt-half-probability 0.05 "
    "--model.activation-penalty 0.1 --model.temporal-penalty 0.1 "
    "--valid-batch-size 2 --head.dropout 0.1 --train.weight-decay 0.001 --train.clip 1 "
    "--threads 1 --json"
)
ADAMW = "--train.optimizer adamw --train.lr 0.03 --train.epochs 4"
CONSTANT = f"{ADAMW} --train.no-anneal --train.average-power 8 --train.warmup-steps 10"
SGD = "--train.optimizer sgd --train.lr 5 --train.epochs 4 --train.no-anneal"
FINETUNE = (
    "--finetune.optimizer asgd --finetune.lr 2 --finetune.weight-decay 0.001 --finetune.clip 1 "
    "--finetune.epochs 2 --finetune.stop-after 5"
)

# By name: preset, options.
RUNS = {
    "softmax": f"small {SGD} --head.kind softmax --train.switch-epoch 1 --model.hidden-sizes 12 8",
    "triggered": f"small {SGD} --head.kind moc --head.num-components 3 --train.switch-after 0 "
    "--train.lr 10 --train.epochs 6",
    "stopped": f"small {SGD} --head.kind low-rank-mos --head.num-components 2 --head.rank 3 "
    "--train.stop-after 0 --train.epochs 9",
    "finetuned": "ptb-mos --train.optimizer sgd --train.lr 2 --train.epochs 2 "
    f"--train.switch-epoch 1 --head.num-components 3 {FINETUNE}",
    "moc": f"small {ADAMW} --head.kind moc --head.num-components 3 --batch.micro-batch-size 3",
    "averaged": f"small {CONSTANT} --head.kind mos --head.num-components 2 --head.start-noise 0.05 "
    "--validate-every 500",
    "untied": f"small {ADAMW} --head.kind mos --head.num-components 2 --model.no-tied "
    "--head.activation identity --head.no-bias",
    "bfloat16": f"small {ADAMW} --head.kind mos --head.num-components 2 --precision bfloat16",
    "adaptive-pointer": f"small {ADAMW} --head.kind adaptive-softmax+pointer --head.num-states 20 "
    "--head.key-size 4 --head.frequent 8",
    "pointer": f"small {ADAMW} --head.kind mos+pointer --head.num-components 1 "
    "--head.num-states 20 --batch.micro-batch-size 2",
    "doc": f"small {ADAMW} --head.kind doc --head.num-components 5 --head.layers 0 -2 -1 "
    "--head.lower-components 1 2 --head.balance 0.1",
    "mfs": f"small {ADAMW} --head.kind mfs --head.num-components 2 --head.num-partitions 2 "
    "--head.num-previous 1 --head.layers -2 -1",
    "sparse-mos": f"small {ADAMW} --head.kind sparse-mos --head.num-components 4 "
    "--head.num-active 2 --head.balance 0.1 --batch.micro-batch-size 2",
    "adaptive-mos": f"small {CONSTANT} --head.kind adaptive-mos --head.num-components 3 "
    "--head.frequent 8 --head.cutoffs 20 --head.div-value 2 --head.mix-first-tail",
    "pointwise": f"small {ADAMW} --head.kind pointwise --head.num-components 1 "
    "--head.logit-map plif:20,5",
}
# On these runs, after all of them; a file `tokens.jsonl` that one writes is recorded, too.
COMMANDS = {
    "evaluate/softmax": "evaluate softmax --all --json --cache.window 50",
    "evaluate/finetuned": "evaluate finetuned --all --json --dynamic.lr 1e-3",
    "evaluate/adaptive-pointer": "evaluate adaptive-pointer --all --json",
    "evaluate/compat": "evaluate untied --compat mos --batch-size 3 --json",
    "evaluate/search": "evaluate moc --cache --search --cache.window 20 50 --cache.theta 0.1 0.3 "
    "--cache.weight 0.1 0.2 --search-tokens 100 --json",
    "evaluate/lines": "evaluate averaged --text part.txt --independent-lines "
    "--per-token tokens.jsonl --json",
    "evaluate/tokens": "evaluate sparse-mos --text part.txt --cache --per-token tokens.jsonl "
    "--json",
    "generate/finetuned": "generate finetuned --seed 5 --num-tokens 30 --num-samples 2 "
    "--temperature 0.8 --top-k 20 --top-p 0.9 --show-components --prompt ba --json",
    "generate/adaptive-pointer": "generate adaptive-pointer --seed 6 --num-tokens 40 --json",
    "audit/runs": "audit softmax averaged doc adaptive-pointer --quick --contexts 100 --json",
    "audit/huggingface": "audit gpt2 --text part.txt --quick --contexts 100 --json",
}

# Architecture: head and start of an upgrade; None is the default.
UPGRADES = {
    "gpt2": [("mos", None), ("mos", "identity"), ("mos", "new"), ("mos+constant", None)],
    "llama": [("mos", None), ("mos", "identity"), ("mos", "new"), ("softmax", None)],
    "gemma2": [("mos", None)],
    "phi": [("mos", "identity")],
}
COMPARISONS = ("penn-treebank", "factorised", "senses")


def write_texts(folder):
    """`tale.txt`, of which the last word says much about the next, and its beginning."""
    rng = random.Random(0)
    words = [first + second for first in "bdfgklm" for second in "aeiou"]
    lines, last = [], 0
    for _ in range(400):
        line = []
        for _ in range(9):
            near = (3 * last + rng.choice((1, 2))) % len(words)
            last = near if rng.random() < 0.8 else int(len(words) ** rng.random()) - 1
            line.append(words[last])
        lines.append(" ".join(line))
    (folder / "tale.txt").write_text("\n".join(lines))
    (folder / "part.txt").write_text("\n".join(lines[:20]))


def make_plain(architecture):
    """A small Hugging Face model whose weights depend on their names only."""
    import transformers
    from transformers import AutoModelForCausalLM

    transformers.utils.logging.disable_progress_bar()
    sizes = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 64}
    sizes |= {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    wide = {**sizes, "intermediate_size": 24}
    few = {**wide, "num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 8}
    undropped = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = {
        "gpt2": lambda: transformers.GPT2Config(**sizes, **undropped),
        "llama": lambda: transformers.LlamaConfig(**wide),
        "gemma2": lambda: transformers.Gemma2Config(**few, final_logit_softcapping=5.0),
        "phi": lambda: transformers.PhiConfig(**wide),
    }[architecture]()
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, *parameter.shape))
    return model


def write_huggingface(folder):
    """A GPT-2 of bytes, with its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({sign: i for i, sign in enumerate(signs)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
    make_plain("gpt2").save_pretrained(folder)
