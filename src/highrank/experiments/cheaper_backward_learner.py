"""The learners of `cheaper_backward.py`: small language models that read a text in turns.

T time, B sequences, N = T · B tokens, D hidden size, K components, E embedding size, V vocabulary.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from highrank.experiments.cheaper_backward_loss import Selection, selective_loss
from highrank.experiments.cheaper_backward_result import Point, Sizes
from highrank.heads import Mixture, MixtureOfSoftmaxes
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy
from highrank.ops.mixture_cross_entropy.stream import Inputs

State = tuple[Tensor, Tensor]


def read_text(data: Path, vocab_size: int | None) -> tuple[Tensor, Tensor, int]:
    """The word ids of the training and the validation text, and V.

    The most frequent words of the training text are kept, the others become <unk>.
    """
    if vocab_size is not None and vocab_size < 2:
        raise ValueError(f"vocab_size must be at least 2, got {vocab_size}")
    train, valid = (_read_words(data / f"ptb.{part}.txt") for part in ("train", "valid"))
    by_frequency = (word for word, _ in Counter(train).most_common() if word != "<unk>")
    ids = {word: i for i, word in enumerate(["<unk>", *by_frequency][:vocab_size])}

    def to_ids(words: list[str]) -> Tensor:
        return torch.tensor([ids.get(word, ids["<unk>"]) for word in words])

    return to_ids(train), to_ids(valid), len(ids)


def _read_words(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(
            f"data must be a folder with ptb.train.txt and ptb.valid.txt, got {path.parent}"
        )
    return path.read_text(encoding="utf-8").replace("\n", " <eos> ").split()


class LanguageModel(nn.Module):
    """Embedding, LSTM, mixture of softmaxes; input and output embedding are one."""

    def __init__(self, vocab_size: int, sizes: Sizes) -> None:
        super().__init__()
        D, E = sizes.hidden_size, sizes.embedding_size
        self.embedding = nn.Embedding(vocab_size, E)
        self.dropout = nn.Dropout(sizes.dropout)
        self.lstm = nn.LSTM(E, D)
        self.head = MixtureOfSoftmaxes(
            D, vocab_size, sizes.num_components, E, dropout=sizes.dropout
        )
        # The head's own start, uniform in ±0.1, serves both.
        self.embedding.weight = self.head.weight

    def forward(self, words: Tensor, state: State | None) -> tuple[Tensor, State]:
        """The hidden states (T, B, D) of words (T, B), and what the next window starts from."""
        hidden, (h, c) = self.lstm(self.dropout(self.embedding(words)), state)
        return self.dropout(hidden), (h.detach(), c.detach())

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        select: Selection | None,
        words: Tensor,
        target: Tensor,
        state: State | None,
    ) -> State:
        """One step of training, and what the next window starts from."""
        optimizer.zero_grad()
        hidden, state = self(words, state)
        mean_loss(self.head, self.head.mixture(hidden), target, select).backward()
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        optimizer.step()
        return state


def mean_loss(
    head: MixtureOfSoftmaxes, mixture: Mixture, target: Tensor, select: Selection | None
) -> Tensor:
    """The head's mean loss, with the gradients of the selected rows; of all if `select` is None."""
    log_weight, context = mixture
    if select is None:
        return mixture_cross_entropy(
            context, log_weight, head.weight, target, bias=head.bias, backend="fused"
        )
    log_weight, context = log_weight.flatten(0, -2), context.flatten(0, -3)  # (N, K), (N, K, E)
    inputs = Inputs(context, log_weight, head.weight, head.bias, target.flatten(), None)
    return selective_loss(inputs, select, scale=1 / target.numel())


class Learner:
    """A model in training: its place in the text, its random numbers and its clock are its own."""

    def __init__(
        self,
        model: LanguageModel,
        select: Selection | None,
        train: Tensor,
        valid: Tensor,
        sizes: Sizes,
    ) -> None:
        self.model, self.select, self.sizes = model, select, sizes
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.lr)
        self.train = _columns(train, sizes.batch_size)
        self.valid = _columns(valid[: sizes.num_valid_tokens], sizes.batch_size)
        self.rng_state = torch.random.get_rng_state()
        self.windows: Iterator[tuple[Tensor, Tensor]] = iter(())
        self.state: State | None = None
        self.elapsed, self.num_tokens = 0.0, 0
        self.by_time: list[Point] = []
        self.by_tokens: list[Point] = []

    def learn_until(self, elapsed: float) -> None:
        """Train until the learner's clock shows `elapsed` seconds, evaluating at token marks."""
        torch.random.set_rng_state(self.rng_state)
        while self.elapsed < elapsed:
            words, target = self.next_window()
            start = time.perf_counter()
            self.state = self.model.step(self.optimizer, self.select, words, target, self.state)
            self.elapsed += time.perf_counter() - start
            marks_before = self.num_tokens // self.sizes.tokens_per_mark
            self.num_tokens += words.numel()
            if self.num_tokens // self.sizes.tokens_per_mark > marks_before:
                self.by_tokens.append(self.evaluate())
        self.rng_state = torch.random.get_rng_state()

    def next_window(self) -> tuple[Tensor, Tensor]:
        """The next words and targets (T, B); the text starts again when it is finished."""
        window = next(self.windows, None)
        if window is None:
            self.windows, self.state = _windows(self.train, self.sizes.window), None
            window = next(self.windows)
        return window

    @torch.no_grad()
    def evaluate(self) -> Point:
        self.model.eval()
        total, count, state = 0.0, 0, None
        for words, target in _windows(self.valid, self.sizes.window):
            hidden, state = self.model(words, state)
            total += self.model.head(hidden, target, reduction="sum").loss.item()
            count += target.numel()
        self.model.train()
        return Point(
            elapsed=self.elapsed, num_tokens=self.num_tokens, perplexity=math.exp(total / count)
        )


def _columns(text: Tensor, batch_size: int) -> Tensor:
    """The text as `batch_size` columns, without the words that do not fill a row."""
    return text[: len(text) // batch_size * batch_size].view(batch_size, -1).T.contiguous()


def _windows(columns: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(columns) - 1, length):
        end = min(start + length, len(columns) - 1)
        yield columns[start:end], columns[start + 1 : end + 1]
