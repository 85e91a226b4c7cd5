"""Settings of a training on pairs: everything that decides its numbers, the command's options."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from highrank.config import StageConfig
from highrank.integrations.huggingface.recipe import BASELINE, CONTROL, added_lr
from highrank.signatures import check_ranges
from highrank.training.budget import parse_duration

# Heads that start without changing a prediction of a trained model, and those of a comparison.
OF_PRETRAINED = (BASELINE, CONTROL, "mos")
HEADS = (BASELINE, CONTROL, "mos:4")
COUNTS = ("seeds", "steps", "batch_tokens", "vocabulary", "context", "beam", "best", "max_words")
# Of a budget; the rest is for losses on valid. How long a search takes shows when models have
# learned to end: a budget that counted it could not be planned before.
TRAINING_PART = 0.9
# Passes over the pairs without --budget and --steps.
EPOCHS, EPOCHS_FROM_SCRATCH = 3, 30
# Learning rates and steps of warm-up: of weights that were trained before, and of those at random.
LR, LR_FROM_SCRATCH = 1e-4, 4e-3
WARMUP, WARMUP_FROM_SCRATCH = 300, 600


class Variant(NamedTuple):
    """A head by its name, as mos:4."""

    kind: str
    num_components: int

    @staticmethod
    def parse(name: str) -> "Variant":
        kind, _, number = name.partition(":")
        if number and (not number.isdecimal() or int(number) < 1):
            raise ValueError(f"a head must be like softmax or mos:4, got {name}")
        is_single = kind in (BASELINE, CONTROL, "adaptive-softmax")
        return Variant(kind, int(number) if number else (1 if is_single else 4))


@dataclass(frozen=True, kw_only=True)
class Settings:
    paths: tuple[str, ...]
    """An encoder–decoder of Hugging Face (not with --config), then the pairs: two files, sources
    and targets, a line each; one .tsv (source, tab, target) or .jsonl; a file of dialogues (an
    utterance a line, an empty line between them; DailyDialog's; Switchboard's); or a folder of one
    of these, with train, valid and test."""
    config: str | None = None
    """Begin at random: transformer-tiny, or a folder with a config.json of transformers."""
    source_lang: str | None = None
    """Language of the sources, for a pretrained model of several: de, deu_Latn or de_DE, as its
    tokenizer calls it."""
    target_lang: str | None = None
    """Language of the targets."""
    source_prefix: str | None = None
    """Text before each source, for a pretrained T5: "translate German to English: "."""
    task: Literal["translation", "dialogue", "summary"]
    """What the pairs are: a text and its translation or its summary, or the utterances before a
    response and the response."""
    valid: tuple[str, ...] = ()
    """Pairs on which losses are followed, as those of training."""
    test: tuple[str, ...] = ()
    """Pairs that are scored at the end."""
    columns: tuple[str, str] | None = None
    """Source and target: endings of a folder's files, as de en; or names of columns."""
    context: int = 1
    """Dialogue: utterances before the response."""
    drop_seen: bool = False
    """Leave out pairs of valid and test that stand in train."""
    lower: bool = False
    """From scratch: lower-case all texts."""
    vocabulary: int = 4_000
    """From scratch: tokens of the joint byte-pair encoding, at most."""
    heads: tuple[str, ...] = ()
    """Output layers, softmax first, mixtures with their number of components, 4 unless given.
    linear is a control: one softmax over a linear map of the hidden state.
    A pretrained model has softmax, linear and mos; from scratch there are moc, adaptive-softmax,
    adaptive-mos, low-rank-mos and others."""
    equal_parameters: bool = False
    """From scratch: give each model as many parameters as the softmax has, by a narrower
    decoder."""
    seeds: int = 1
    """How many of each; differences are paired by seed."""
    budget: str | None = None
    """Time for training and losses on valid, such as 90s, 20m or 1.5h; each model gets an equal
    part. The search of the test pairs comes on top, twice for each model: seconds for short
    sentences, minutes for thousands of responses."""
    steps: int | None = None
    """Steps of each model."""
    lr: float | None = None
    """Learning rate of AdamW, constant after the warm-up."""
    head_lr: float | None = None
    """Learning rate of the weights that an upgrade adds."""
    warmup: int | None = None
    """Steps over which the learning rate rises."""
    batch_tokens: int = 1024
    """Places on the longer side of a batch: pairs times the longest of them."""
    label_smoothing: float = 0.1
    """In training; exact, on the log-probabilities of the whole mixture."""
    dropout: float | None = None
    """Of the body."""
    beam: int | None = None
    """Beams of the search."""
    best: int | None = None
    """Hypotheses of each source that are scored."""
    max_words: int | None = None
    """Words of a hypothesis, at most."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name.replace('_', '-')} must be at least 1, got {value}")
        if not self.data:
            raise ValueError(
                "a model, or --config, and pairs must be given (two files, a .tsv, a .jsonl or a "
                f"folder), got {' '.join(self.paths) or 'nothing'}"
            )
        for name in ("source_lang", "target_lang", "source_prefix"):
            if self.is_from_scratch and getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise ValueError(f"{option} must go with a pretrained model, got --config")
        for name in ("lr", "head_lr"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name.replace('_', '-')} must be a positive number, got {value}")
        for name in ("label_smoothing", "dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                option = name.replace("_", "-")
                raise ValueError(f"{option} must be at least 0 and below 1, got {value}")
        if self.warmup is not None and self.warmup < 0:
            raise ValueError(f"warmup must be at least 0, got {self.warmup}")
        if not self.heads:
            more = ("adaptive-mos:4",) if self.is_from_scratch else ()
            object.__setattr__(self, "heads", HEADS + more)
        self._check_heads()
        if self.budget is not None:
            parse_duration(self.budget)

    def _check_heads(self) -> None:
        variants = [Variant.parse(name) for name in self.heads]
        if self.heads[:1] != (BASELINE,) or len(set(variants)) < len(variants):
            found = " ".join(self.heads)
            raise ValueError(f"heads must begin with softmax, and have each once, got {found}")
        for name, (kind, _) in zip(self.heads, variants, strict=True):
            if kind != CONTROL:
                _check_kind(kind)
            if kind not in OF_PRETRAINED and not self.is_from_scratch:
                known = ", ".join(OF_PRETRAINED)
                raise ValueError(
                    f"heads of a pretrained model must be {known}, which change no prediction at "
                    f"first, got {name}: it trains from scratch, with --config"
                )

    @property
    def is_from_scratch(self) -> bool:
        return self.config is not None

    @property
    def model(self) -> str | None:
        """Folder or name of the pretrained model."""
        return None if self.is_from_scratch else self.paths[0]

    @property
    def data(self) -> tuple[str, ...]:
        """Files or the folder of pairs."""
        return self.paths if self.is_from_scratch else self.paths[1:]

    @property
    def rate(self) -> float:
        return self.lr or (LR_FROM_SCRATCH if self.is_from_scratch else LR)

    def warmup_steps(self, num_steps: int) -> int:
        """Steps over which the learning rate rises: by default a quarter of all at most.

        Args:
            num_steps: at equal tokens, so that all models have the same warm-up.
        """
        if self.warmup is not None:
            return self.warmup
        return min(WARMUP_FROM_SCRATCH if self.is_from_scratch else WARMUP, num_steps // 4)

    def added_lr(self, hidden_size: int) -> float:
        """The learning rate of the weights that an upgrade adds."""
        if self.head_lr is not None or self.is_from_scratch:
            return self.head_lr or self.rate
        return added_lr(self.rate, hidden_size)

    def seconds_of_each(self) -> float | None:
        """The part of the budget for the training of each model."""
        if self.budget is None:
            return None
        return TRAINING_PART * parse_duration(self.budget) / (self.seeds * len(self.heads))

    def stage(self, num_steps: int) -> StageConfig:
        """How each model is trained: the average is of about the last quarter of the steps.

        Args:
            num_steps: at equal tokens.
        """
        return StageConfig(
            optimizer="adamw",
            lr=self.rate,
            weight_decay=0.0 if self.is_from_scratch else 0.01,
            clip=1.0,
            warmup_steps=self.warmup_steps(num_steps),
            average_power=3.0,
            betas=(0.9, 0.98),
        )


def _check_kind(kind: str) -> None:
    """Refuse what is no head, and heads that see more than the decoder's last hidden state."""
    from highrank.heads import head_class

    try:
        found = head_class(kind)
    except ValueError as error:
        raise ValueError(f"heads must be {CONTROL} or kinds: {error}") from None
    parts = getattr(found, "options_of", ())
    if found.layers != (-1,) or any(part.is_stateful is True for part in parts):
        raise ValueError(f"heads must need the decoder's last hidden state only, got {kind}")
