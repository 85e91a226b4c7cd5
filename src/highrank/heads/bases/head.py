"""Base of every output layer: probabilities, a loss in bounded memory, prediction, sampling.

A head states its idea in `log_prob_from`; everything else follows. Letters, here and in the heads:
N tokens, D hidden size, K components, E embedding size, V vocabulary; `...` is any leading
dimensions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, overload

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from highrank.heads.bases.output import (
    ForwardOptions,
    HeadOutput,
    LossSettings,
    MeasuredOutput,
    penalised,
)
from highrank.heads.bases.past import PAST, check_names, check_shift, check_time
from highrank.heads.bases.token_rows import TokenRows, check_sizes
from highrank.ops.loss import (
    ByProduct,
    Reduction,
    Target,
    check_options,
    check_reduction,
    check_target_shape,
    check_targets,
)
from highrank.ops.loss.targets import (
    Targets,
    drop_ignored,
    make_targets,
    reduce_losses,
    shift_targets,
    weight_losses,
    weighted_sum,
)
from highrank.ops.mixture_log_prob import in_chunks, token_slices
from highrank.ops.precision import at_least_float32
from highrank.ops.sampling import check_sampling, draw, tempered
from highrank.ops.scoring import log_probs_in_blocks
from highrank.signatures import arguments_of

# Options of a loss that have a meaning for logits of softmaxes only.
MIXTURE_OPTIONS = ("logit_map", "logit_scale", "z_loss", "backend", "also", "group", "shard")


class Head(TokenRows):
    """Base of all heads: p(token | hidden).

    A subclass writes `log_prob_from`, `rank_bound` and, where something must be computed for whole
    sequences (dropout that is shared over time, a look at past tokens), `features`. It has the
    output embedding `weight`, or its own `tie` and `scale_embedding`. Parameters are drawn once, by
    `reset_parameters` at the end of a constructor: that of the class, or of a base that calls it.

    A head that looks back has `is_stateful` and writes `initial_state` and `advance`; its methods
    then take `tokens` and `state` besides the hidden states, as `past`.
    """

    title: ClassVar[str] = ""
    """Its name in tables and on pages; if empty, its key in `HEADS`."""
    default_components: ClassVar[int] = 1
    """K of a run that does not say it."""
    options_of: ClassVar[tuple[type[nn.Module], ...]] = ()
    """Classes that are given the constructor's `**options`, if these are none of the bases."""
    num_components: int = 1
    """Softmaxes that are computed for each token (K)."""
    layers: tuple[int, ...] = (-1,)
    """Layers of the backbone whose hidden states, side by side, are what this head is given."""
    batch_first: bool = False
    """Whether windows are (B, T, …) rather than (T, B, …)."""
    weight: nn.Parameter

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        check_sizes(hidden_size=hidden_size, vocab_size=vocab_size)
        self.hidden_size, self.vocab_size = hidden_size, vocab_size

    @property
    def core(self) -> "Head":
        """The head itself, or that which further components stand beside."""
        return self

    @property
    def is_stateful(self) -> bool:
        """Whether it remembers tokens and states of the windows before."""
        return False

    def context_length(self, hidden: int) -> int | None:
        """How many tokens a prediction can depend on; None where no bound is known.

        Args:
            hidden: how many a hidden state depends on.
        """
        return None if self.is_stateful else hidden

    @property
    def rank_bound(self) -> int | None:
        """No matrix of log-probabilities has a higher rank; None if no bound is known."""
        return None

    def features(self, hidden: Tensor, **past: Any) -> Any:
        """The inputs of each token's prediction: a pytree of tensors (..., anything)."""
        return hidden

    def log_prob_from(self, features: Any) -> Tensor:
        """log p of every token (..., V), normalised, in at least float32; nothing random."""
        raise NotImplementedError

    def penalty(self, hidden: Tensor, **past: Any) -> Tensor | float:
        """A term of the mean loss in training, such as one that balances weights."""
        return 0.0

    def initial_state(self, batch_size: int) -> Any:
        """The memory of a stateful head before the first window. Dimension 1 is the batch."""
        raise NotImplementedError

    def advance(self, hidden: Tensor, tokens: Tensor, state: Any) -> Any:
        """The memory after a window of hidden states (T, B, D) and tokens (T, B).

        Both are (B, T, …) for a head with `batch_first`.
        """
        raise NotImplementedError

    def log_prob(self, hidden: Tensor, **past: Any) -> Tensor:
        """log p of every token (..., V), normalised."""
        return self.log_prob_from(self._read(hidden, past))

    def forward(
        self,
        hidden: Tensor,
        target: Target | None = None,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        also: Sequence[ByProduct] = (),
        **options: Unpack[ForwardOptions],
    ) -> HeadOutput | MeasuredOutput | Tensor:
        """The log-probability of each target, and the loss; without targets, `log_prob(hidden)`.

        Args:
            hidden: (..., D).
            target: (...), token ids, or `ignore_index`. For distillation two tensors (..., M): ids,
                and the probabilities that a teacher gives them.
            reduction: "mean" over the targets that are not ignored, "sum" or "none".
            ignore_index: a target that counts for nothing.
            also: by-products that mixtures yield in the same pass, of "lse", "prediction",
                "entropy" and "log_weight"; a third result, a dictionary, has them.
            options: class_weight, token_weight, label_smoothing, shift and chunk_bytes, and for
                mixtures logit_map, logit_scale, z_loss, backend, group and shard, as of
                `mixture_cross_entropy`; for a stateful head the tokens (T, B) that the backbone has
                read, the state after the windows before, and the position (T, B) of each token in
                the training split, where the text is that; with_penalty: False leaves the head's
                penalty out of the loss in training.
        """
        rest: Any = dict(options)
        with_penalty = rest.pop("with_penalty", True)
        past: dict[str, Any] = {name: rest.pop(name) for name in PAST if name in rest}
        check_time(self, past.get("tokens"), target, ignore_index)
        features = self._read(hidden, past)
        if target is None:
            if rest:
                raise ValueError(f"target must be given with {', '.join(rest)}, got None")
            return self.log_prob_from(features)
        check_options(rest)
        check_shift(self, hidden, rest.get("shift", 0))
        settings = LossSettings(reduction, ignore_index, also, rest)
        found = self._loss(features, target, settings)
        if self.training and with_penalty:
            penalty = self.penalty(hidden, **past)
            found = found._replace(loss=penalised(found.loss, penalty, target, settings))
        return found if also else HeadOutput(found.output, found.loss)

    if TYPE_CHECKING:

        @overload
        def __call__(
            self, hidden: Tensor, target: None = None, **options: Unpack[ForwardOptions]
        ) -> Tensor: ...
        @overload
        def __call__(
            self,
            hidden: Tensor,
            target: Target,
            reduction: Reduction = "mean",
            ignore_index: int = -100,
            **options: Unpack[ForwardOptions],
        ) -> HeadOutput: ...
        @overload
        def __call__(
            self,
            hidden: Tensor,
            target: Target,
            reduction: Reduction = "mean",
            ignore_index: int = -100,
            *,
            also: Sequence[ByProduct],
            **options: Unpack[ForwardOptions],
        ) -> MeasuredOutput: ...
        def __call__(self, *arguments: Any, **options: Any) -> Any: ...

    def per_token_log_probs(
        self, hidden: Tensor, ids: Tensor, block: int | None = None, **past: Any
    ) -> Tensor:
        """log p of each id (...), 0 where it is negative, with gradients.

        Args:
            hidden: (..., D).
            ids: (...), below V.
            block: how many tokens are computed at once, always as many. To the last bit, a number
                then depends on the token and its place in the block, with 1 on the token alone,
                as in serving and training. None is faster. Not for a head that looks back.
        """
        if block is None:
            ids = ids.masked_fill(ids < 0, -100)
            log_p: Tensor = self(hidden, ids, "none", with_penalty=False, **past).output
            return log_p
        if self.is_stateful:
            kind = type(self).__name__
            raise ValueError(f"block must be None for {kind}, which looks back, got {block}")
        check_names(self, past)
        check_target_shape(ids, tuple(hidden.shape[:-1]))
        check_targets(ids.clamp(min=0), self.vocab_size)
        return log_probs_in_blocks(self.log_prob, hidden, ids, block)

    @torch.no_grad()
    def predict(self, hidden: Tensor, **past: Any) -> Tensor:
        """The likeliest token (...)."""
        return self._by_chunks(hidden.shape[:-1], self._read(hidden, past), self._best)

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        **past: Any,
    ) -> Tensor:
        """A token (...) for each hidden state; `temperature` and cuts act on the probabilities.

        Args:
            hidden: (..., D).
            temperature: 0 takes the likeliest token.
            top_k: how many of the likeliest tokens are kept.
            top_p: the probability that the likeliest tokens which are kept must reach.
            generator: draws on the device of the head; torch's own if None.
            past: `tokens` and `state`, of a stateful head.
        """
        check_sampling(temperature, top_k, top_p)
        is_plain = temperature == 1 and top_k is None and top_p is None

        def tokens_of(chunk: Any) -> Tensor:
            if is_plain:
                return self._draw(chunk, generator)
            return draw(tempered(self.log_prob_from(chunk), temperature, top_k, top_p), generator)

        return self._by_chunks(hidden.shape[:-1], self._read(hidden, past), tokens_of)

    def _read(self, hidden: Tensor, past: dict[str, Any]) -> Any:
        """`features`, with tokens and state for a head that looks back, and for no other."""
        check_names(self, past)
        return self.features(hidden, **past)

    def _best(self, features: Any) -> Tensor:
        """The likeliest token (N,) for the features of each of N."""
        return self.log_prob_from(features).argmax(-1)

    def _draw(self, features: Any, generator: torch.Generator | None) -> Tensor:
        """A token (N,) for the features of each of N."""
        return draw(self.log_prob_from(features), generator)

    def _loss(self, features: Any, target: Target, settings: LossSettings) -> MeasuredOutput:
        """Chunks of tokens, streamed through autograd: the backward pass recomputes each chunk."""
        reduction, ignore_index, also, options, beside = settings
        check_reduction(reduction)
        self._refuse(MIXTURE_OPTIONS, {**options, "also": also})
        if shift := options.get("shift", 0):
            target = shift_targets(target, shift)
            time = (target[0].dim() - 1 if isinstance(target, tuple) else target.dim()) - 1
            features = tree_map(lambda x: x.narrow(time, 0, x.shape[time] - shift), features)
        shape = target[0].shape[:-1] if isinstance(target, tuple) else target.shape
        leaves, tree = tree_flatten((features, beside or ()))
        check_target_shape(target, tuple(leaves[0].shape[: len(shape)]))
        leaves = flattened(leaves, len(shape))
        dtype = at_least_float32(leaves[0].dtype)
        targets = make_targets(target, options, self.vocab_size, dtype)
        targets, kept = drop_ignored(targets, ignore_index, dtype)
        check_targets(targets.target, self.vocab_size)
        leaves = leaves if kept is None else [leaf[kept] for leaf in leaves]
        features, beside = tree_unflatten(leaves, tree)
        settings = settings._replace(beside=beside or None)
        token_loss, loss = self._flat_loss(features, targets, settings)
        if kept is not None:
            token_loss = token_loss.new_zeros(shape.numel()).index_copy(0, kept, token_loss)
        token_loss = token_loss.reshape(shape)
        if reduction == "none":
            return MeasuredOutput(0.0 - token_loss, token_loss, {})
        return MeasuredOutput(0.0 - token_loss.detach(), loss, {})

    def _flat_loss(
        self, features: Any, targets: Targets, settings: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """The loss of each token (N,), and the reduced loss, from features (N, …)."""
        leaves, tree = tree_flatten((features, settings.beside or ()))

        def chunk_loss(ids: Tensor, amount: Tensor | None, *leaves: Tensor) -> Tensor:
            chunk, terms = tree_unflatten(leaves, tree)
            log_p = self.log_prob_from(chunk)  # (n, V)
            found = log_p.gather(-1, ids)  # (n, M)
            loss = weighted_sum(-(terms.log_mixed(found) if terms else found), amount)  # (n,)
            if targets.smoothing is not None:
                loss = loss + weighted_sum(-log_p, targets.smoothing)
            return loss

        row_bytes = self.vocab_size * at_least_float32(leaves[0].dtype).itemsize
        tensors = (targets.target, targets.amount, *leaves)
        found = in_chunks(chunk_loss, tensors, row_bytes, settings.options.get("chunk_bytes"))
        token_loss = weight_losses(found, targets.token_weight)
        # An impossible target has no gradient.
        token_loss = token_loss.masked_fill(token_loss == torch.inf, torch.inf)
        return token_loss, reduce_losses(token_loss, targets.mass, settings.reduction)

    def _refuse(self, names: tuple[str, ...], options: Mapping[str, Any]) -> None:
        """Options that this head has no meaning for are errors, not ignored."""
        for name in names:
            if options.get(name):
                raise ValueError(f"{name} must be left out for {type(self).__name__}, got one")

    def _check_hidden(self, hidden: Tensor) -> None:
        if hidden.dim() < 1 or hidden.shape[-1] != self.hidden_size:
            raise ValueError(f"hidden must be (..., {self.hidden_size}), got {tuple(hidden.shape)}")

    def _linear(self, in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
        """A layer on the device and in the precision of the parameters that there are."""
        known = next(self.parameters())
        return nn.Linear(in_features, out_features, bias, known.device, known.dtype)

    def _empty_linear(self, in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
        """`_linear` without values: only `reset_parameters` draws them."""
        known = next(self.parameters())
        layer: nn.Linear = skip_init(
            nn.Linear, in_features, out_features, bias, device=known.device, dtype=known.dtype
        )
        return layer

    def extra_repr(self) -> str:
        """The constructor's arguments that are kept and are no defaults."""
        found = []
        for name, argument in arguments_of(type(self)).items():
            value = getattr(self, name, argument.default)
            value = value is not None if name == "bias" else value
            if isinstance(value, int | float | str | tuple) and value != argument.default:
                found.append(f"{name}={value!r}")
        return ", ".join(found)

    def _by_chunks(
        self, shape: torch.Size, features: Any, tokens_of: Callable[[Any], Tensor]
    ) -> Tensor:
        """Tokens (...) without log-probabilities for all of them at once."""
        flat = flattened(features, len(shape))
        leaves = tree_flatten(flat)[0]
        found = torch.empty(shape.numel(), dtype=torch.long, device=leaves[0].device)
        itemsize = at_least_float32(leaves[0].dtype).itemsize
        for rows in token_slices(len(found), self.vocab_size * itemsize):
            found[rows] = tokens_of(tree_map(lambda leaf, rows=rows: leaf[rows], flat))
        return found.reshape(shape)


def flattened(features: Any, num_leading: int) -> Any:
    """The tensors with their leading dimensions as one, (N, …)."""
    return tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[num_leading:]), features)
