"""Generate text with a language model, several samples side by side. T time, B samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from highrank.data.vocabulary import EOS, Vocabulary
from highrank.heads.bases.head import Head
from highrank.heads.bases.mixture import MixtureHead, log_responsibility
from highrank.heads.composed import Composed
from highrank.models.backbone import map_state, tensors_of
from highrank.models.language_model import LanguageModel
from highrank.models.weights import without_dropout
from highrank.ops.sampling import check_sampling, draw, tempered


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is drawn. At temperature 1 without cuts a mixture draws its component first."""

    temperature: float = 1.0
    """Divides log-probabilities: below 1 bolder, above 1 wilder, 0 takes the likeliest token."""
    top_k: int | None = None
    """Draw from so many likeliest tokens only."""
    top_p: float | None = None
    """Draw from the fewest likeliest tokens that together have this probability."""
    seed: int = 0
    """The same seed draws the same tokens."""
    no_unk: bool = False
    """Draw from all tokens but `<unk>`, as if it had probability 0."""

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_k, self.top_p)
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be between 0 and {(1 << 63) - 1}, got {self.seed}")


class Step(NamedTuple):
    """The next token of every sample."""

    tokens: list[str]
    components: list[int] | None
    """For each token the component most responsible for it, from 0: a softmax, or, of a head with
    a pointer, the softmax (0) or the pointer (1). None if not asked for."""


def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: Sequence[str] = (),
    *,
    num_tokens: int = 50,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    no_unk: bool = False,
) -> list[list[str]]:
    """Samples of tokens that follow the prompt, which starts a line.

    Args:
        prompt: tokens; those outside the vocabulary are read as `<unk>`.
        temperature, top_k, top_p, no_unk: as in `Sampling`; they act on the mixture.
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, no_unk=no_unk)
    steps = stream(
        model, vocabulary, prompt, sampling, num_tokens=num_tokens, num_samples=num_samples
    )
    return [list(sample) for sample in zip(*(step.tokens for step in steps), strict=True)]


def can_generate(model: LanguageModel) -> bool:
    """Whether the backbone carries a state, so that it can read one token at a time."""
    return bool(tensors_of(model.backbone.initial_state(1)))


def stream(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: Sequence[str],
    sampling: Sampling,
    *,
    num_tokens: int,
    num_samples: int = 1,
    with_components: bool = False,
) -> Iterator[Step]:
    """Yield what `generate` returns token by token."""
    for name, count in (("num_tokens", num_tokens), ("num_samples", num_samples)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if not can_generate(model):
        raise ValueError(
            "the backbone must carry a state from token to token, got "
            f"{model.backbone.title}, whose windows stand alone"
        )
    if vocabulary.eos is None and not prompt:
        raise ValueError(f"the prompt must not be empty for a vocabulary without {EOS}")
    # The prompt follows the end of the line before it.
    prompt_ids = vocabulary.encode(prompt if vocabulary.eos is None else [EOS, *prompt])

    forbidden = vocabulary.unk if sampling.no_unk else None

    # Mistakes are found when the stream is asked for, not when its first step is.
    @torch.no_grad()
    def steps() -> Iterator[Step]:
        with without_dropout(model):
            device = next(model.parameters()).device
            generator = torch.Generator(device).manual_seed(sampling.seed)
            ids = torch.from_numpy(prompt_ids).to(device)  # (T,)
            state = model.initial_state(1)
            if len(ids) > 1:
                state = model.read(ids[:-1, None], state).state
            state = map_state(lambda tensor: tensor.repeat_interleave(num_samples, 1), state)
            ids = ids[-1:].expand(num_samples)  # (B,)
            for _ in range(num_tokens):
                hidden, past, state, _ = model.read(ids[None], state)  # (1, B, D)
                ids = _draw(model.head, hidden, past, sampling, forbidden, generator)
                components = _components(model.head, hidden, ids, past) if with_components else None
                yield Step(vocabulary.decode(ids.tolist()), components)

    return steps()


def _draw(
    head: Head,
    hidden: Tensor,
    past: dict[str, Any],
    sampling: Sampling,
    forbidden: int | None,
    generator: torch.Generator,
) -> Tensor:
    """The next tokens (B,) for hidden states (1, B, D)."""
    options = (sampling.temperature, sampling.top_k, sampling.top_p)
    if forbidden is None:
        return head.sample(hidden, *options, generator, **past)[0]
    log_p = head.log_prob(hidden, **past)[0]  # (B, V)
    log_p[:, forbidden] = -torch.inf
    return draw(tempered(log_p, *options), generator)


def _components(head: Head, hidden: Tensor, ids: Tensor, past: dict[str, Any]) -> list[int] | None:
    """The most responsible component of each token (B,), which hidden states (1, B, D) predict."""
    if isinstance(head, Composed):
        found = head.shares(hidden, ids[None], **past)[0]  # (B, 1 + J)
    elif isinstance(head, MixtureHead):
        found = log_responsibility(head, hidden[0], ids)  # (B, K)
    else:
        return None
    return [int(k) for k in found.argmax(-1)]
