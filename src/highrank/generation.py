"""Write text with a language model, several samples side by side. T time, B samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from highrank.data.vocabulary import EOS, Vocabulary
from highrank.heads.mixture import log_responsibility
from highrank.models.awd_lstm import State
from highrank.models.language_model import LanguageModel
from highrank.models.weights import without_dropout
from highrank.ops.sampling import check_sampling


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a word is drawn. At temperature 1 without cuts a mixture draws its component first."""

    temperature: float = 1.0
    """Divides the mixture's log-probabilities: below 1 bolder, above 1 wilder, 0 takes the
    likeliest word."""
    top_k: int | None = None
    """Draw from so many likeliest words only."""
    top_p: float | None = None
    """Draw from the fewest likeliest words that together have this probability."""
    seed: int = 0
    """The same seed draws the same words."""

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_k, self.top_p)


class Step(NamedTuple):
    """The next word of every sample."""

    words: list[str]
    components: list[int] | None
    """For each word the component most responsible for it, from 0; None if not asked for."""


def generate(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: Sequence[str] = (),
    *,
    num_words: int = 50,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> list[list[str]]:
    """Samples of words that follow the prompt, which starts a line.

    Args:
        prompt: words; those outside the vocabulary are read as `<unk>`.
        temperature, top_k, top_p: as in `Sampling`; they act on the mixture.
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    steps = stream(
        model, vocabulary, prompt, sampling, num_words=num_words, num_samples=num_samples
    )
    return [list(sample) for sample in zip(*(step.words for step in steps), strict=True)]


@torch.no_grad()
def stream(
    model: LanguageModel,
    vocabulary: Vocabulary,
    prompt: Sequence[str],
    sampling: Sampling,
    *,
    num_words: int,
    num_samples: int = 1,
    with_components: bool = False,
) -> Iterator[Step]:
    """Yield what `generate` returns word by word."""
    for name, count in (("num_words", num_words), ("num_samples", num_samples)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    with without_dropout(model):
        device = next(model.parameters()).device
        generator = torch.Generator(device).manual_seed(sampling.seed)
        ids = torch.from_numpy(vocabulary.encode(_line(vocabulary, prompt))).to(device)  # (T,)
        state = model.initial_state(1)
        if len(ids) > 1:
            state = model.backbone(ids[:-1, None], state).state
        state = _repeated(state, num_samples)
        words = ids[-1:].expand(num_samples)  # (B,)
        for _ in range(num_words):
            hidden, _, state = model.backbone(words[None], state)  # (1, B, D)
            words = model.head.sample(
                hidden[0], sampling.temperature, sampling.top_k, sampling.top_p, generator
            )  # (B,)
            components = None
            if with_components:
                components = log_responsibility(model.head, hidden[0], words).argmax(-1).tolist()
            yield Step(vocabulary.decode(words.tolist()), components)


def _line(vocabulary: Vocabulary, prompt: Sequence[str]) -> list[str]:
    """The prompt after the `<eos>` of the line before it."""
    if vocabulary.eos is None:
        if not prompt:
            raise ValueError(f"the prompt must not be empty for a vocabulary without {EOS}")
        return list(prompt)
    return [EOS, *prompt]


def _repeated(state: State, num_samples: int) -> State:
    return [(h.repeat(1, num_samples, 1), c.repeat(1, num_samples, 1)) for h, c in state]
