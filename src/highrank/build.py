"""From a configuration to objects: a model, a head, batches; and whether a run can begin."""

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from highrank.config import RunConfig
from highrank.data import BATCHES
from highrank.data.batches import Batches
from highrank.data.corpus import CorpusLike
from highrank.environment import check_device, memory_bytes, prepare_bfloat16
from highrank.heads import head_class
from highrank.heads.bases.adaptive import AdaptiveHead
from highrank.heads.bases.head import Head
from highrank.heads.bases.token_rows import EMBEDDING_RANGE
from highrank.models import backbone_class
from highrank.models.adaptive_embedding import AdaptiveEmbedding
from highrank.models.backbone import Backbone
from highrank.models.language_model import LanguageModel
from highrank.signatures import arguments_of, checked_options, construct, load_class

# Arguments of constructors that are no options: they come from the corpus or from other fields.
MODEL_GIVEN = frozenset({"vocab_size", "embedding_size", "device", "dtype"})
HEAD_GIVEN = frozenset(
    {
        "hidden_size",
        "vocab_size",
        "hidden_norm",
        "layer_sizes",
        "token_counts",
        "batch_first",
        "device",
        "dtype",
    }
)
BATCH_GIVEN = frozenset(
    {"tokens", "batch_size", "seed", "device", "columns", "prefix", "sentence_end"}
)
# A run has its weights, their gradients and the best weights at least.
COPIES = 3


def batches_class(kind: str) -> type[Any]:
    """The class of a key of `BATCHES`."""
    return load_class(BATCHES, kind, "batch.kind")


def canonical(config: RunConfig) -> RunConfig:
    """The configuration with options of the right types, and only those that are no defaults."""
    parts: dict[str, Any] = {}
    for name, class_of, given in (
        ("model", backbone_class, MODEL_GIVEN),
        ("head", head_class, HEAD_GIVEN),
        ("batch", batches_class, BATCH_GIVEN),
    ):
        part = getattr(config, name)
        options = checked_options(class_of(part.kind), part.options, given, name)
        parts[name] = replace(part, options=options)
    return replace(config, **parts)


def build_model(
    config: RunConfig, vocab_size: int, token_counts: Sequence[int] | None = None
) -> LanguageModel:
    """The model of a configuration, freshly initialised.

    Args:
        token_counts: how often the training split has each token, for heads that want it.
    """
    model, backbone = config.model, _build_backbone(config, vocab_size)
    sizes, norm = backbone.layer_sizes, backbone.hidden_norm
    head = build_head(config, vocab_size, token_counts, sizes, norm)
    weight = getattr(head, "weight", None)
    size = model.embedding_size if weight is None else weight.shape[1]
    if model.tied and size != model.embedding_size:
        raise ValueError(
            f"the last hidden size must be the embedding size for a tied {config.head.kind}, got "
            f"{size} and {model.embedding_size}: change one, set --model.no-tied, or take a head "
            "with a context of its own, as --head.kind mos --head.num-components 1 has"
        )
    core = head.core
    if model.tied and isinstance(core, AdaptiveHead) and core.is_banded:
        backbone.embedding = AdaptiveEmbedding(
            model.embedding_size, core.order, core.sizes, core.widths, backbone.embedding_range
        )
    if not model.tied:
        # Far below this range, contexts get hardly any gradient: the bias alone is learned.
        head.scale_embedding(backbone.embedding_range / EMBEDDING_RANGE)
    if config.head.start_bias == "unigram" and token_counts is not None:
        head.start_at_unigram(token_counts)
    return LanguageModel(backbone, head, tied=model.tied)


def _build_backbone(config: RunConfig, vocab_size: int) -> Backbone:
    found: Backbone = construct(
        backbone_class(config.model.kind),
        "model",
        vocab_size,
        config.model.embedding_size,
        **_options(config, "model"),
    )
    return found


def build_head(
    config: RunConfig,
    vocab_size: int,
    token_counts: Sequence[int] | None = None,
    layer_sizes: Sequence[int] | None = None,
    hidden_norm: float = 1.0,
) -> Head:
    """The head alone; it is given what its constructor has an argument for.

    Args:
        layer_sizes: of the backbone's hidden states, from the embeddings to the last; those of the
            configuration's backbone if None.
        hidden_norm: of the backbone's last hidden states at the start.
    """
    head = config.head
    if layer_sizes is None:
        with torch.device("meta"):
            layer_sizes = _build_backbone(config, vocab_size).layer_sizes
    kind = head_class(head.kind)
    arguments, options = arguments_of(kind), _options(config, "head")
    sizes = _read_sizes(layer_sizes, options.get("layers", kind.layers))
    values: dict[str, Any] = {
        "num_components": head.num_components,
        "dropout": head.dropout,
        "activation": head.activation,
        "token_counts": token_counts,
        "layer_sizes": sizes,
        "hidden_norm": hidden_norm,
    }
    values = {name: value for name, value in values.items() if name in arguments}
    size = arguments.get("embedding_size")
    if size is not None and size.default is inspect.Parameter.empty:
        values["embedding_size"] = config.model.embedding_size
    found: Head = construct(kind, "head", sum(sizes), vocab_size, **(values | options))
    return found


def build_batches(
    config: RunConfig,
    train: NDArray[np.integer],
    device: torch.device | str = "cpu",
    columns: slice = slice(None),
    sentence_end: int | None = None,
) -> Batches:
    """The training split as batches.

    Args:
        columns: the sequences of each batch that this process reads.
        sentence_end: token id of `<eos>`, for batches of sentences.
    """
    batch = config.batch
    kind = batches_class(batch.kind)
    more = {"sentence_end": sentence_end} if "sentence_end" in arguments_of(kind) else {}
    found: Batches = construct(
        kind,
        "batch",
        train,
        batch.batch_size,
        seed=config.seed,
        device=device,
        columns=columns,
        **more,
        **_options(config, "batch"),
    )
    return found


def check_options(config: RunConfig) -> None:
    """Raise ValueError for options that no backbone and no batches can have."""
    # Numbers of which torch cannot even make a shape are found when the size is checked.
    with torch.device("meta"), suppress(RuntimeError, TypeError, OverflowError):
        _build_backbone(config, vocab_size=2)
    # Longer than any text, and of one byte: whether a text is long enough is found out with it.
    build_batches(config, np.broadcast_to(np.uint8(0), 1 << 62), sentence_end=0)


def _options(config: RunConfig, part: str) -> dict[str, Any]:
    return dict(getattr(canonical(config), part).options)


def _read_sizes(layer_sizes: Sequence[int], layers: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the hidden states that a head asks for."""
    for layer in layers:
        if not -len(layer_sizes) <= layer < len(layer_sizes):
            raise ValueError(
                f"head.layers must be from {-len(layer_sizes)} (the embeddings) to -1, got {layer}"
            )
    return tuple(layer_sizes[layer] for layer in layers)


@dataclass(frozen=True)
class CheckedRun:
    """A run that can begin: its values fit together, to the corpus and to this machine."""

    config: RunConfig
    corpus: CorpusLike
    device: str
    num_parameters: int


def check_run(config: RunConfig, corpus: CorpusLike, device: str = "cpu") -> CheckedRun:
    """Find mistakes before anything is allocated or a folder is made."""
    config = canonical(config)
    train, valid = corpus.split("train"), corpus.split("valid")
    build_batches(config, train, sentence_end=corpus.vocabulary.eos)
    check_streams("valid-batch-size", config.valid_batch_size, len(valid), "validation")
    if config.precision == "bfloat16":
        prepare_bfloat16()
    check_device(device)
    return CheckedRun(config, corpus, device, _checked_size(config, corpus.token_counts))


def check_streams(name: str, value: int, num_tokens: int, split: str) -> None:
    """Raise unless so many streams of a split have two tokens each."""
    if not 1 <= value <= num_tokens // 2:
        raise ValueError(
            f"{name} must be between 1 and {num_tokens // 2:,} for a {split} split of "
            f"{num_tokens:,} tokens, got {value}"
        )


def _checked_size(config: RunConfig, token_counts: Sequence[int]) -> int:
    """The number of parameters; raise ValueError if this machine cannot hold the model."""
    try:
        with torch.device("meta"):
            model = build_model(config, len(token_counts), token_counts)
        parameters = list(model.parameters())
        size = sum(p.numel() * p.element_size() for p in parameters)
    except (RuntimeError, TypeError, OverflowError):
        # Numbers of which torch cannot even make a shape.
        parameters, size = [], None
    memory = memory_bytes()
    if size is None or (memory is not None and COPIES * size > memory):
        found = "sizes beyond all" if size is None else f"{COPIES * size / 1e9:,.0f} GB"
        raise ValueError(
            "a model's weights, their gradients and its best weights must fit into memory, got "
            f"{found}: lower model.hidden-sizes, model.embedding-size or head.num-components"
        )
    return sum(p.numel() for p in parameters)
