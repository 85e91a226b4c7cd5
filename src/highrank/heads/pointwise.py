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
from highrank.heads.logits import Logits, can_stream, streamed_output
from highrank.heads.mixture import Activation, Mixture, PriorMixture
from highrank.ops.logit_map import LogitMap, PiecewiseLinear, parse_logit_map, piecewise_linear
from highrank.ops.mixture_cross_entropy.options import ByProduct, LossOptions
from highrank.ops.mixture_cross_entropy.targets import Reduction, Target
from highrank.ops.numerics import at_least_float32


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
        learned = self.logit_map
        if not isinstance(learned, PiecewiseLinear):
            return super()._loss(features, target, reduction, ignore_index, also, options)
        # The mixture loss trains no parameters of a map.
        if also or options or not can_stream(target, reduction):
            return Head._loss(self, features, target, reduction, ignore_index, also, options)
        bias = self.weight.new_zeros(self.vocab_size) if self.bias is None else self.bias

        def logits_from(features: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
            (context,), (weight, bias, score) = features, shared
            logits = F.linear(context, weight, bias)  # (n, K, V)
            logits = logits.to(at_least_float32(logits.dtype))
            return piecewise_linear(logits, score, learned.limit)

        columns = torch.arange(self.vocab_size, device=target.device)
        logits = Logits(logits_from, (self.weight, bias, learned.score), columns)
        return streamed_output(logits, features, target, reduction, ignore_index)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, logit_map={self.map_name!r}"
