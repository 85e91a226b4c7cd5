"""Mixtures of softmaxes over mapped logits: sigsoftmax, its generalisation, PLIF and softcap.

    p = Σ_k π_k · softmax(φ(W h_k + b)),  π = softmax(P hidden),  h_k = tanh(L_k hidden + c_k)

An increasing, nonlinear φ bends every entry of the matrix of logits: even one softmax then has no
bound on the rank of log p. The maps are sigsoftmax (and with K > 1 MoSS) of Kanai et al. (2018),
arXiv 1805.10829; its generalisation of Parthiban et al. (2021), AAAI 35; PLIF, a learned piecewise
linear map of Ganea et al. (2019), arXiv 1902.08077; and the softcap of Gemma 2.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from highrank.heads.base import Head, MeasuredOutput
from highrank.heads.logits import can_stream, one_each, streamed_losses
from highrank.heads.mixture import Activation, Mixture, PriorMixture
from highrank.ops.logit_map import LogitMap, Pieces, PiecewiseLinear, parse_logit_map
from highrank.ops.loss import ByProduct, LossOptions, Reduction, Target
from highrank.ops.loss.targets import Targets
from highrank.ops.precision import at_least_float32
from highrank.ops.streamed_cross_entropy import Block, Logits


class Pointwise(PriorMixture):
    """K softmaxes of mapped logits, weighted by the hidden state.

    Args:
        hidden_size: D.
        vocab_size: V.
        num_components: K.
        embedding_size: E, the size of each context and of the output embedding.
        logit_map: "sigsoftmax", "gss:CENTRE,SLOPE" (the authors' best are gss:-1.5,2.5 on Penn
            Treebank and gss:-1.5,3 on WikiText-2), "softcap:CAP" or "plif:SEGMENTS,LIMIT".
        activation: "tanh" or "identity".
        dropout: on the contexts, one mask per sequence, independent per component.
        bias: whether each token has a bias.
        start_noise: start with nearly equal contexts, as in `MixtureOfSoftmaxes`.
        batch_first: hidden is (B, T, D) rather than (T, B, D).
    """

    logit_map: LogitMap

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        num_components: int,
        embedding_size: int,
        *,
        logit_map: str = "sigsoftmax",
        activation: Activation = "tanh",
        dropout: float = 0.0,
        bias: bool = True,
        start_noise: float | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            hidden_size,
            vocab_size,
            num_components,
            embedding_size,
            activation=activation,
            dropout=dropout,
            bias=bias,
            start_noise=start_noise,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.map_name, self.logit_map = logit_map, parse_logit_map(logit_map)
        if isinstance(self.logit_map, PiecewiseLinear):
            self.logit_map.to(device=device, dtype=dtype)

    def _loss(
        self,
        features: Mixture,
        target: Target,
        reduction: Reduction,
        ignore_index: int,
        also: Sequence[ByProduct],
        options: LossOptions,
    ) -> MeasuredOutput:
        # The mixture loss trains no parameters of a map.
        if isinstance(self.logit_map, PiecewiseLinear):
            return Head._loss(self, features, target, reduction, ignore_index, also, options)
        return super()._loss(features, target, reduction, ignore_index, also, options)

    def _scored(
        self,
        features: Mixture,
        targets: Targets,
        reduction: Reduction,
        chunk_bytes: int | None,
    ) -> tuple[Tensor, Tensor]:
        learned, V = self.logit_map, self.vocab_size
        if not isinstance(learned, PiecewiseLinear) or not can_stream(
            features.log_weight, targets, reduction
        ):
            return super()._scored(features, targets, reduction, chunk_bytes)
        dtype = at_least_float32(self.weight.dtype)
        logits = Logits(
            one_each,
            [Block(k, slice(0, V), slice(None)) for k in range(self.num_components)],
            self.weight,
            self.bias,
            num_softmaxes=self.num_components,
            # The segments of logits are 64-bit integers.
            num_tables=5,
            pieces=Pieces(F.softplus(learned.score.to(dtype)), learned.limit),
        )
        return streamed_losses(logits, features, None, targets, reduction, chunk_bytes)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, logit_map={self.map_name!r}"
