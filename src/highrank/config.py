"""What a run is: plain frozen data, no behaviour, imports nothing of the package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The backbone: AWD-LSTM."""

    embedding_size: int = 280
    """Size of the token embeddings, input and output (E)."""
    hidden_sizes: tuple[int, ...] = (960, 960, 620)
    """Size of each LSTM layer; the last one feeds the head (D)."""
    tied: bool = True
    """Input and output share one embedding, or (--model.no-tied) each has its own."""
    embedding_dropout: float = 0.1
    """Fraction of the tokens that are left out of a window (dropoute)."""
    input_dropout: float = 0.4
    """On the embeddings, one mask per sequence (dropouti)."""
    hidden_dropout: float = 0.225
    """Between the layers, one mask per sequence (dropouth)."""
    output_dropout: float = 0.4
    """On the last layer, one mask per sequence (dropout)."""
    weight_dropout: float = 0.5
    """On each recurrent matrix, one mask per window (wdrop)."""
    embedding_range: float = 0.1
    """Embeddings start uniform in ± this. The paper's 0.1 takes a thousand steps to get going."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The output layer."""

    kind: str = "mos"
    """The kind of output layer: a key of `highrank.heads.HEADS`."""
    num_components: int = 15
    """Number of contexts or softmaxes (K). 1 is a softmax over tanh(Linear(hidden))."""
    dropout: float = 0.29
    """On the contexts, one mask per sequence and component (dropoutl)."""
    activation: Literal["tanh", "identity"] = "tanh"
    """What follows the linear layer of each context."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the head's constructor."""


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How the corpus is cut into batches."""

    batch_size: int = 12
    """Streams of the corpus that are read in parallel (B)."""
    micro_batch_size: int | None = None
    """Streams per backward pass; gradients are those of the whole batch. None takes all at once."""
    bptt: int = 70
    """Mean length of a window of truncated BPTT, in tokens."""
    bptt_std: float = 5.0
    """Standard deviation of the length; 0 makes all windows equally long."""
    bptt_max_delta: int = 40
    """The longest window is this much longer than the mean (max_seq_len_delta)."""
    bptt_half_probability: float = 0.05
    """Probability that a window's length is drawn around half the mean."""


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """How one stage trains. A run has one, or a second to finetune."""

    optimizer: Literal["sgd", "asgd", "adamw"] = "sgd"
    """sgd may switch to averaging; asgd averages from the start; adamw is for quick runs."""
    lr: float = 20.0
    """Learning rate. In a window it is scaled by the window's length."""
    weight_decay: float = 1.2e-6
    """On every parameter. Added to the gradient (sgd, asgd) or decoupled (adamw)."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly at the start of the run."""
    clip: float = 0.25
    """Largest 2-norm of the gradient over all parameters."""
    epochs: int = 1000
    """Most passes over the training split."""
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
    """Lower the learning rate to 0 over the stage, along a cosine."""


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
    activation_penalty: float = 2.0
    """α of activation regularisation (AR)."""
    temporal_penalty: float = 1.0
    """β of temporal activation regularisation (TAR)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 runs the matrix multiplies under autocast."""
    valid_batch_size: int = 10
    """Streams of text in validation; the test is read as one."""
    validate_every: int | None = None
    """Also validate whenever so many more tokens were read. None: after each epoch only."""
