"""The configuration of a run: plain frozen data that checks itself.

A model, a head and batches are a kind, what all of their kind have in common, and `options`:
further arguments of the constructor that the kind stands for (`build.py`), only those that differ
from its defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from highrank.signatures import check_ranges


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The backbone."""

    kind: str = "awd-lstm"
    """The network before the head: a key of `highrank.models.BACKBONES`."""
    embedding_size: int = 280
    """Size of the token embeddings, input and output (E)."""
    tied: bool = True
    """Input and output share one embedding, or (--model.no-tied) each has its own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the backbone's constructor."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The output layer."""

    kind: str = "mos"
    """The kind of output layer: a key of `highrank.heads.HEADS`, or module:Class of a head of your
    own, and further components behind a plus: adaptive-softmax+pointer."""
    num_components: int = 15
    """Number of contexts or softmaxes (K). 1 is a softmax over tanh(Linear(hidden))."""
    dropout: float = 0.29
    """On the contexts, one mask per sequence and component (dropoutl)."""
    activation: Literal["tanh", "identity"] = "tanh"
    """The function after the linear layer of each context."""
    start_bias: Literal["zeros", "unigram"] = "zeros"
    """Where the bias of the logits starts: at 0, or at the log-frequencies of the training split,
    so that the network need not learn them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the head's constructor."""


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How the corpus is cut into batches."""

    kind: str = "streams"
    """How batches are made of text: a key of `highrank.data.BATCHES`."""
    batch_size: int = 12
    """Sequences that are read in parallel (B)."""
    micro_batch_size: int | None = None
    """Sequences per backward pass; gradients are those of the whole batch. None takes all at
    once."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the constructor of these batches."""


Part = TypeVar("Part", ModelConfig, HeadConfig, BatchConfig)


def with_options(part: Part, **options: Any) -> Part:
    """The same with further or other options."""
    return replace(part, options={**part.options, **options})


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """How one stage trains. A run has one, or a second to finetune."""

    optimizer: Literal["sgd", "asgd", "adamw"] = "sgd"
    """sgd may switch to averaging; asgd averages from the start; adamw is for quick runs."""
    lr: float = 20.0
    """Learning rate. Batches may scale it: windows of text by their length."""
    weight_decay: float = 1.2e-6
    """On the parameters that the backbone names. Added to the gradient (sgd, asgd) or decoupled
    (adamw)."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly at the start of the run."""
    clip: float = 0.25
    """Largest 2-norm of the gradient over all parameters."""
    epochs: int = 1000
    """Most passes over the training split."""
    steps: int | None = None
    """Most updates of the stage."""
    tokens: int | None = None
    """Most tokens to predict in the stage."""
    switch_after: int | None = 5
    """sgd: start averaging when validation is worse than the best of all but the last n epochs."""
    switch_epoch: int | None = None
    """sgd: start averaging after this epoch instead."""
    average_power: float | None = None
    """Average from the start with weights step^γ, for runs at a constant rate that may end at any
    time: the average is of about the last 1 / (γ + 1) of the run."""
    stop_after: int | None = None
    """Stop when validation is worse than the best of all but the last n epochs."""
    anneal: bool = False
    """Lower the learning rate over the stage, along a cosine."""
    anneal_to: float = 0.0
    """What is left of it at the end, from 0 to 1."""
    betas: tuple[float, float] = (0.9, 0.999)
    """adamw: how much of the averages of gradients and of their squares a step keeps."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides the numbers of a run."""

    corpus: str
    """Name of a prepared corpus, or the path of one: `highrank data list`."""
    seed: int = 0
    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    train: StageConfig = field(default_factory=StageConfig)
    finetune: StageConfig | None = None
    """A second stage, from the best weights of the first."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 runs the matrix multiplies under autocast."""
    valid_batch_size: int = 10
    """Streams of text in validation."""
    validate_every: int | None = None
    """Also validate whenever so many more tokens were read. None: after each epoch only."""

    def __post_init__(self) -> None:
        """Raise ValueError for values that no run can have, whatever its corpus."""
        check_ranges(self)
        _at_least(0, "seed", self.seed)
        _at_least(1, "model.embedding-size", self.model.embedding_size)
        _at_least(1, "head.num-components", self.head.num_components)
        _fraction("head.dropout", self.head.dropout)
        _at_least(1, "batch.batch-size", self.batch.batch_size)
        if self.batch.micro_batch_size is not None:
            _at_least(1, "batch.micro-batch-size", self.batch.micro_batch_size)
        _at_least(1, "valid-batch-size", self.valid_batch_size)
        if self.validate_every is not None:
            _at_least(1, "validate-every", self.validate_every)
        _check_stage("train", self.train)
        if self.finetune is not None:
            _check_stage("finetune", self.finetune)
            if self.finetune.warmup_steps:
                raise ValueError(
                    "finetune.warmup-steps must be 0, as only the first stage warms up, got "
                    f"{self.finetune.warmup_steps}"
                )


# Least values of the numbers of a stage; None is not checked.
LEAST_OF_STAGE = {
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "epochs": 1,
    "steps": 1,
    "tokens": 1,
    "switch_after": 0,
    "switch_epoch": 1,
    "average_power": 0.0,
    "stop_after": 0,
}


def _check_stage(name: str, stage: StageConfig) -> None:
    _positive(f"{name}.lr", stage.lr)
    _positive(f"{name}.clip", stage.clip)
    if not 0 <= stage.anneal_to <= 1:
        raise ValueError(f"{name}.anneal-to must be between 0 and 1, got {stage.anneal_to}")
    for beta in stage.betas:
        _fraction(f"{name}.betas", beta)
    for field_name, least in LEAST_OF_STAGE.items():
        value = getattr(stage, field_name)
        if value is not None:
            _at_least(least, f"{name}.{field_name.replace('_', '-')}", value)


def _at_least(least: float, name: str, value: float) -> None:
    if not value >= least:
        raise ValueError(f"{name} must be at least {least:g}, got {value}")


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be a positive number, got {value}")
