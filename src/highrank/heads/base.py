"""What all heads share: the output embedding, the contexts that meet it, and the methods.

A head states its idea in `mixture`; everything else follows. Letters, here and in the heads:
D hidden size, K components, E embedding size, V vocabulary; `...` is any leading dimensions.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from highrank.ops.dropout import locked_dropout
from highrank.ops.mixture_cross_entropy import mixture_loss
from highrank.ops.mixture_log_prob import mixture_log_prob, token_slices
from highrank.ops.numerics import at_least_float32
from highrank.ops.sampling import check_sampling, draw, tempered

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


class HeadOutput(NamedTuple):
    """As `nn.AdaptiveLogSoftmaxWithLoss` returns it."""

    output: Tensor
    """log p of each target (...), 0 where it is ignored. Detached unless `reduction` is "none"."""
    loss: Tensor
    """The reduced negative log-likelihood."""


class Mixture(NamedTuple):
    log_weight: Tensor
    """(..., K), normalised."""
    context: Tensor
    """(..., K, E)."""


class Head(nn.Module):
    """Base of all heads: p(word | hidden) = Σ_k weight_k · softmax(W context_k + b)[word]."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        num_components: int,
        embedding_size: int | None,
        activation: str,
        dropout: float,
        bias: bool,
        batch_first: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        sizes = {
            "hidden_size": hidden_size,
            "vocab_size": vocab_size,
            "num_components": num_components,
            "embedding_size": hidden_size if embedding_size is None else embedding_size,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {list(ACTIVATIONS)}, got {activation!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.hidden_size, self.vocab_size = hidden_size, vocab_size
        self.num_components, self.embedding_size = num_components, sizes["embedding_size"]
        self.activation, self.dropout, self.batch_first = activation, dropout, batch_first
        self.weight = nn.Parameter(
            torch.empty(vocab_size, self.embedding_size, device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.empty(vocab_size, device=device, dtype=dtype)) if bias else None
        )
        self.latent = None
        if embedding_size is not None:
            size = num_components * embedding_size
            self.latent = nn.Linear(hidden_size, size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the paper's code: embedding uniform in ±0.1, bias 0, linear layers as torch does."""
        nn.init.uniform_(self.weight, -0.1, 0.1)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def tie(self, weight: nn.Parameter) -> None:
        """Share the output embedding with an input embedding's `weight`."""
        if not isinstance(weight, nn.Parameter):
            raise ValueError(f"weight must be an nn.Parameter, got {type(weight).__name__}")
        if weight.shape != self.weight.shape:
            raise ValueError(
                f"weight must be (vocab_size, embedding_size) = {tuple(self.weight.shape)}, "
                f"got {tuple(weight.shape)}"
            )
        self.weight = weight

    @property
    def rank_bound(self) -> int | None:
        """No matrix of this head's log-probabilities has a higher rank; None if no bound is known.

        The contexts contribute E, the normaliser 1, the bias 1.
        """
        return self.embedding_size + (1 if self.bias is None else 2)

    def mixture(self, hidden: Tensor) -> Mixture:
        """The weights (..., K) and the contexts (..., K, E) of a hidden state (..., D)."""
        raise NotImplementedError

    def softmaxes(self, hidden: Tensor) -> Mixture:
        """The contexts that each get a softmax, and the weights of those softmaxes."""
        return self.mixture(hidden)

    def forward(
        self, hidden: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = -100
    ) -> HeadOutput:
        """The log-probability of each target, and the loss.

        Args:
            hidden: (..., D).
            target: (...), word ids, or `ignore_index`.
            reduction: "mean" over the targets that are not ignored, "sum" or "none".
        """
        log_weight, context = self.softmaxes(hidden)
        token_loss, loss = mixture_loss(
            context,
            log_weight,
            self.weight,
            target,
            bias=self.bias,
            reduction=reduction,
            ignore_index=ignore_index,
        )
        return HeadOutput(0.0 - token_loss, loss)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """log p of every word (..., V), normalised."""
        return self._log_prob(self.softmaxes(hidden))

    @torch.no_grad()
    def predict(self, hidden: Tensor) -> Tensor:
        """The likeliest word (...)."""
        return self._by_chunks(hidden, lambda mixture: self._log_prob(mixture).argmax(-1))

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """A word (...) for each hidden state; `temperature` and cuts act on the mixture.

        At temperature 1 without cuts the component is drawn first: exact, and one softmax a word.
        """
        check_sampling(temperature, top_k, top_p)

        def draw_words(mixture: Mixture) -> Tensor:
            if temperature == 1 and top_k is None and top_p is None:
                mixture = _draw_components(mixture, generator)
                return draw(self._log_prob(mixture), generator)
            return draw(tempered(self._log_prob(mixture), temperature, top_k, top_p), generator)

        return self._by_chunks(hidden, draw_words)

    def extra_repr(self) -> str:
        text = f"hidden_size={self.hidden_size}, vocab_size={self.vocab_size}"
        if self.num_components > 1:
            text += f", num_components={self.num_components}"
        if self.latent is not None:
            text += f", embedding_size={self.embedding_size}, activation={self.activation!r}"
        text += f", dropout={self.dropout}, bias={self.bias is not None}"
        return text + (", batch_first=True" if self.batch_first else "")

    def _contexts(self, hidden: Tensor) -> Tensor:
        """(..., K, E), with dropout: one mask per sequence, shared over time."""
        if hidden.dim() < 1 or hidden.shape[-1] != self.hidden_size:
            raise ValueError(f"hidden must be (..., {self.hidden_size}), got {tuple(hidden.shape)}")
        if self.latent is None:
            context = hidden
        else:
            context = ACTIVATIONS[self.activation](self.latent(hidden))
        K, E = self.num_components, self.embedding_size
        context = context.view(*context.shape[:-1], K, E)  # (..., K, E)
        if not self.training:
            return context
        time_dim = int(self.batch_first) if hidden.dim() > 2 else None
        return locked_dropout(context, self.dropout, time_dim)

    def _log_prob(self, mixture: Mixture) -> Tensor:
        return mixture_log_prob(mixture.context, mixture.log_weight, self.weight, self.bias)

    def _by_chunks(self, hidden: Tensor, words_of: Callable[[Mixture], Tensor]) -> Tensor:
        """Words (...) of the hidden states, without log-probabilities for all of them at once."""
        log_weight, context = self.softmaxes(hidden)
        log_weight = log_weight.reshape(-1, log_weight.shape[-1])  # (N, K)
        context = context.reshape(-1, *context.shape[-2:])  # (N, K, E)
        words = torch.empty(len(context), dtype=torch.long, device=hidden.device)
        itemsize = at_least_float32(self.weight.dtype).itemsize
        for tokens in token_slices(len(context), self.vocab_size, itemsize):
            words[tokens] = words_of(Mixture(log_weight[tokens], context[tokens]))
        return words.reshape(hidden.shape[:-1])


def _draw_components(mixture: Mixture, generator: torch.Generator | None) -> Mixture:
    """A mixture (N, 1), (N, 1, E) with one component drawn for each token."""
    chosen = draw(mixture.log_weight, generator)  # (N,)
    rows = torch.arange(len(chosen), device=chosen.device)
    context = mixture.context[rows, chosen].unsqueeze(1)  # (N, 1, E)
    return Mixture(torch.zeros_like(mixture.log_weight[:, :1]), context)
