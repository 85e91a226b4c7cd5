"""A tiny comparison and a tiny finetuning, to be killed and resumed, and all that they report."""

import contextlib
from dataclasses import asdict, replace

import tiny

from highrank.config import BatchConfig
from highrank.integrations.huggingface import variants
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.studies.compare.measure import summarise
from highrank.studies.compare.plan import Plan, Speed, write_plan
from highrank.studies.compare.presets import Comparison, base_config
from highrank.studies.compare.schedule import train
from highrank.studies.compare.variant import make_variants
from highrank.studies.finetune.measure import run_finetune
from highrank.studies.finetune.settings import Settings
from highrank.training.signals import Stopped

# Parts of the names of fields that depend on the clock or on the machine.
TIMED = (  # noqa: SIM905
    "second cpu speed time elapsed cost environment disturbed model text folder"
).split()


def make_model(folder):
    """A tiny GPT-2 with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["<unk>", *tiny.WORDS])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    with quiet_transformers("make a model") as transformers:
        config = transformers.GPT2Config(
            vocab_size=len(words), n_embd=8, n_layer=1, n_head=2, n_positions=32,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, unk_token="<unk>"
        ).save_pretrained(folder)


class TinyComparison:
    """A control and a mixture, with two seeds each."""

    def __init__(self, corpus):
        config = base_config(Comparison(corpus=str(corpus.path), hidden_sizes=(8, 7)), 1_000)
        batch = BatchConfig(batch_size=4, options={"bptt": 8, "bptt_std": 0.0})
        counts = corpus.token_counts
        variants = make_variants(
            replace(config, batch=batch), ["mos"], (2,), (6,), len(counts), counts, is_equal=False
        )
        speed = Speed(cpu=1e-4, wall=1.2e-4, alone=1e-4, valid=0.01, test=0.01, analysis=0.1)
        self.plan = Plan(
            corpus=str(corpus.path),
            max_tokens=None,
            variants=variants,
            speeds=(speed,) * len(variants),
            seeds=(0, 1),
            equal=("tokens",),
            num_tokens=600,
            cpu_seconds=None,
            cache=False,
            test_batch_size=2,
            jobs=1,
            threads=1,
        )

    def train(self, folder):
        folder.mkdir(exist_ok=True)
        write_plan(self.plan, folder)
        with contextlib.suppress(Stopped):
            train(self.plan, folder)

    def everything(self, folder):
        return report(folder, summarise(self.plan, folder))


class TinyFinetuning:
    """A softmax, a mixture of two and a linear control, 20 steps each."""

    def __init__(self, folder):
        make_model(folder / "hub")
        variants.SECONDS_BETWEEN_CHECKPOINTS = 0.02
        self.settings = Settings(
            model=str(folder / "hub"),
            text=str(folder / "tale.txt"),
            num_components=2,
            steps=20,
            batch_size=2,
            block_length=16,
            eval_tokens=64,
        )

    def train(self, folder):
        with contextlib.suppress(Stopped):
            self.result(folder)

    def result(self, folder):
        return run_finetune(self.settings, folder, lambda fraction, text: None)

    def everything(self, folder):
        return report(folder, self.result(folder))


def report(folder, result):
    """A study's numbers and its files, without what depends on the clock."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {"files": files, "result": untimed(asdict(result))}


def untimed(value):
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not any(part in str(k) for part in TIMED)}
        return {key: untimed(item) for key, item in kept.items()}
    return [untimed(item) for item in value] if isinstance(value, list | tuple) else value
