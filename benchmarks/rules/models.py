"""Small models, each trained with one softmax, with a mixture and with its control.

N tokens, V vocabulary, D hidden size, d size of what meets the output embedding.
"""

import copy
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from highrank.build import build_batches, build_head, build_model
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data.batches import Streams, windows
from highrank.data.corpus import MemoryCorpus
from highrank.data.languages import Language, factorised, sample_corpus, senses
from highrank.data.vocabulary import EOS, UNK, Vocabulary
from highrank.heads import MixtureHead
from highrank.heads.bases.component import components_of
from highrank.models.backbone import Backbone, BackboneOutput
from highrank.models.language_model import LanguageModel
from highrank.models.weights import without_dropout
from highrank.studies.audit.fit import STARTS
from highrank.training.trainer import Trainer

KINDS = ("softmax", "mos", "moc")
NUM_COMPONENTS, BATCH_SIZE = 4, 32
TEXTS = {"dialogue": "dailydialog/dialogues_{}.txt", "penn": "penn-treebank/ptb.{}.txt"}
SPLITS = {"dialogue": ("train", "validation", "test"), "penn": ("train", "valid", "test")}
LANGUAGES = {
    "factorised-8": lambda seed: factorised(vocab_size=100, num_contexts=64, rank=8, seed=seed),
    "factorised-40": lambda seed: factorised(vocab_size=100, num_contexts=64, rank=40, seed=seed),
    "senses": lambda seed: senses(
        vocab_size=100, num_contexts=64, num_senses=20, sense_size=4, seed=seed
    ),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model to be trained."""

    corpus: str
    """A key of `LANGUAGES`, or a text and its unit, as "dialogue-words"."""
    network: str
    """"lstm": a context of d numbers is made of 96; "narrow": the last layer has d; "tanh":
    contexts within ±1; "default": the head of `highrank train`; "gpt2"."""
    size: int
    """d."""
    steps: int
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.corpus}-{self.network}-d{self.size}-{self.steps}-s{self.seed}"


def cases(steps: int | None = None) -> list[Case]:
    """All models; with so many steps each, if given."""
    found = []
    for corpus, network, sizes, usual, seeds in (
        ("dialogue-words", "lstm", (4, 8, 16, 32, 64, 128), 500, (0,)),
        ("factorised-8", "lstm", (4, 7, 16, 32), 600, (0, 1)),
        ("dialogue-characters", "lstm", (4, 8, 16, 32), 500, (0,)),
        ("senses", "lstm", (4, 8, 16, 64), 600, (0, 1)),
        ("penn-words", "lstm", (8, 16, 32, 64), 500, (1,)),
        ("dialogue-words", "gpt2", (16, 64), 500, (0,)),
        ("factorised-40", "lstm", (8, 39, 64), 600, (0,)),
        ("dialogue-words", "tanh", (8, 32), 500, (0,)),
        ("dialogue-words", "narrow", (16, 64), 500, (0,)),
        ("factorised-8", "lstm", (24, 48), 600, (2,)),
        ("penn-words", "gpt2", (32,), 500, (0,)),
        ("penn-words", "narrow", (16, 64), 500, (0,)),
        ("penn-characters", "lstm", (8, 32), 500, (0,)),
        ("penn-words", "lstm", (16,), 500, (0,)),
        ("dialogue-words", "lstm", (32,), 500, (1,)),
        ("factorised-8", "lstm", (128,), 600, (0,)),
        ("senses", "lstm", (128,), 600, (0,)),
        ("dialogue-words", "default", (16, 64), 500, (0,)),
        ("penn-words", "default", (16, 64), 500, (0,)),
    ):
        for seed in seeds:
            for size in sizes:
                found.append(
                    Case(
                        corpus=corpus,
                        network=network,
                        size=size,
                        steps=steps or usual,
                        seed=seed,
                    )
                )
    return found


def open_corpus(case: Case, data: Path) -> MemoryCorpus:
    if case.corpus in LANGUAGES:
        language: Language = LANGUAGES[case.corpus](case.seed)
        return sample_corpus(language, {"train": 300_000, "valid": 20_000, "test": 40_000})
    text, unit = case.corpus.split("-")
    limits = {"words": (75_000, 1_000), "characters": (300_000, 60)}
    num_tokens, vocab_size = limits[unit]
    tokens = {}
    for split, name in zip(("train", "valid", "test"), SPLITS[text], strict=True):
        content = (data / TEXTS[text].format(name)).read_text().lower()
        content = content.replace("__eou__", "\n")
        lines = [line.split() if unit == "words" else list(line) for line in content.split("\n")]
        flat = [token for line in lines if line for token in (*line, EOS)]
        tokens[split] = flat[: num_tokens if split == "train" else 20_000]
    counts = Counter(tokens["train"])
    counts.pop(EOS, None), counts.pop(UNK, None)
    kept = [token for token, _ in counts.most_common(vocab_size - 2)]
    vocabulary = Vocabulary((EOS, UNK, *kept))
    return MemoryCorpus(vocabulary, {k: vocabulary.encode(v) for k, v in tokens.items()})


class GPT2(Backbone):
    """transformers' GPT-2 with two blocks; each window stands alone."""

    title = "GPT-2"
    length = 64

    def __init__(self, vocab_size: int, size: int) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2Model

        config = GPT2Config(
            vocab_size=vocab_size,
            n_positions=self.length,
            n_embd=size,
            n_layer=2,
            n_head=max(1, size // 16),
        )
        self.network = GPT2Model(config)
        self.embedding, self.embedding_range = self.network.wte, 0.02
        self.layer_sizes = (size, size)

    def forward(self, tokens: Tensor, state: Any) -> BackboneOutput:
        found = self.network(input_ids=tokens.T, use_cache=False).last_hidden_state
        hidden = found.transpose(0, 1)
        return BackboneOutput(hidden, (), (hidden, hidden))


def run_config(case: Case, kind: str, repeat: int = 0) -> RunConfig:
    rate = 0.0 if case.corpus in LANGUAGES else 0.15
    # Contexts within ±1 need larger embeddings, or learn nothing but frequencies.
    is_bounded = case.network in ("tanh", "narrow")
    sizes = (96, case.size) if case.network == "narrow" else (96,)
    options: dict[str, Any] = {"start_noise": 0.05}
    num_components = NUM_COMPONENTS
    if kind == "softmax":
        kind, num_components, options = "mos", 1, {}
        if case.network in ("narrow", "gpt2"):
            kind = "softmax"
    if case.network == "default":
        kind = "adaptive-mos" if num_components > 1 else "adaptive-softmax"
        kind += "+pointer+ngram"
    return RunConfig(
        corpus=case.corpus,
        seed=case.seed + 100 * repeat,
        model=ModelConfig(
            embedding_size=case.size,
            options={
                "hidden_sizes": sizes,
                "embedding_range": 1.0 if is_bounded else case.size**-0.5,
                "input_dropout": rate,
                "output_dropout": rate,
            },
        ),
        head=HeadConfig(
            kind=kind,
            num_components=num_components,
            dropout=0.0,
            activation="tanh" if case.network == "tanh" else "identity",
            options=options,
        ),
        batch=BatchConfig(batch_size=BATCH_SIZE, options={"bptt": 20, "bptt_std": 0.0}),
        train=StageConfig(
            optimizer="adamw", lr=1e-2, weight_decay=0.01, clip=1.0, warmup_steps=50, anneal=True
        ),
    )


def make_model(config: RunConfig, case: Case, corpus: MemoryCorpus) -> LanguageModel:
    vocab_size = len(corpus.vocabulary)
    torch.manual_seed(config.seed)
    if case.network != "gpt2":
        model = build_model(config, vocab_size, corpus.token_counts)
        for component in components_of(model):
            component.fit(corpus.split("train"), corpus.token_counts)
        return model
    backbone = GPT2(vocab_size, case.size)
    head = build_head(config, vocab_size, corpus.token_counts, backbone.layer_sizes)
    return LanguageModel(backbone, head)


def audited_model(case: Case, corpus: MemoryCorpus) -> LanguageModel:
    """The model with one softmax that is to be judged, as it starts."""
    return make_model(run_config(case, "softmax"), case, corpus)


def train(case: Case, kind: str, corpus: MemoryCorpus, repeat: int) -> LanguageModel:
    config = run_config(case, kind, repeat)
    model = make_model(config, case, corpus)
    train_on(model, config, corpus, case.steps)
    return model


def train_on(model: LanguageModel, config: RunConfig, corpus: MemoryCorpus, steps: int) -> None:
    trainer, batches = Trainer(model, config.train), build_batches(config, corpus.split("train"))
    for step in range(steps):
        if batches.is_epoch_over:
            batches.start_epoch()
        trainer.step(next(batches), step / steps)


def upgrade(case: Case, model: LanguageModel, kind: str, corpus: MemoryCorpus) -> LanguageModel:
    """The model continued with another head that starts as its own."""
    model = copy.deepcopy(model)
    if kind != "softmax":
        assert isinstance(model.head, MixtureHead)
        model.head = STARTS[kind](model.head)
        model.tie_again()
    config = run_config(case, "softmax")
    config = replace(config, train=replace(config.train, lr=config.train.lr / 2))
    train_on(model, config, corpus, case.steps // 2)
    return model


@torch.no_grad()
def read_losses(model: LanguageModel, tokens: Any, batch_size: int = 8) -> Tensor:
    """(N,), of all tokens but the first of each stream."""
    data, found = Streams(tokens, batch_size), []
    with without_dropout(model):
        state = model.initial_state(batch_size)
        for start, length in windows(len(data), 50):
            target = data[start + 1 : start + 1 + length]
            out = model(data[start : start + length], target, state, "none")
            state = out.state
            found.append(-out.output)
    return torch.cat(found).flatten()


def kinds_of(case: Case) -> tuple[str, ...]:
    """No head has all parameters of an adaptive mixture and the bound of an adaptive softmax."""
    return KINDS[:2] if case.network == "default" else KINDS


def train_all(case: Case, corpus: MemoryCorpus, repeat: int = 0) -> dict[str, LanguageModel]:
    """The models with a softmax, MoS and MoC; of the first, "audited" is the one to be judged."""
    base = train(case, "softmax", corpus, repeat)
    if case.network == "gpt2":
        found = {kind: upgrade(case, base, kind, corpus) for kind in KINDS}
    else:
        kinds = kinds_of(case)
        found = {kind: train(case, kind, corpus, repeat) for kind in kinds if kind != "softmax"}
        found["softmax"] = base
    return {"audited": base, **found}


def losses(models: dict[str, LanguageModel], corpus: MemoryCorpus) -> dict[str, float]:
    """In nats per token of test, of each kind."""
    test = corpus.split("test")
    found = {kind: model for kind, model in models.items() if kind in KINDS}
    return {kind: read_losses(model, test).double().mean().item() for kind, model in found.items()}


def about(case: Case, corpus: MemoryCorpus, models: dict[str, LanguageModel]) -> dict[str, Any]:
    return {
        **asdict(case),
        "name": case.name,
        "vocab_size": len(corpus.vocabulary),
        "floor": corpus.floor,
        "num_parameters": {
            k: sum(p.numel() for p in models[k].parameters()) for k in kinds_of(case)
        },
        "nats": [],
    }
