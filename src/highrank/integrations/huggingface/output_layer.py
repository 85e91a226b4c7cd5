"""The output layer of a language model of Hugging Face, and a head of ours in its place.

The layer is read, and checked by using it. What is not a linear map with a scale and a softcap that
the configuration names is refused, so that neither an audit nor an upgrade silently forgets a part
of it. B texts, L tokens, D hidden size, V vocabulary.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.heads import Composed, Head, MixtureHead, head_arguments, head_class
from highrank.heads.bases.mixture import Mixture
from highrank.heads.composed import Features
from highrank.heads.linear import LinearHead
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.loss import CURRENT
from highrank.integrations.huggingface.seq2seq import input_embedding, inputs_of, logits_bias
from highrank.ops.logit_map import Softcap
from highrank.ops.loss import Target
from highrank.ops.precision import without_autocast

# Names that configurations give to a softcap, a factor and a divisor of the logits.
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
OPTIONAL, NO_CAP = ("final_logit_softcapping",), 1e30
FACTORS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}
# Tokens with which a model is checked, and a logit far in the bent part of any softcap.
NUM_CHECKED, CHECKED_LOGIT = 8, 100.0


def read_output_layer(model: Any, name: str) -> LinearHead:
    """The layer by the modules and the configuration; `check_output_layer` tests that it is so.

    Args:
        name: of the model, for errors.
    """
    layer = model.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        found = "none" if layer is None else type(layer).__name__
        raise ValueError(f"the output layer of {name} must be nn.Linear, got {found}")
    config = model.config.get_text_config()
    return LinearHead(
        layer.weight,
        bias_of(model),
        scale=(_first_of(config, FACTORS) or 1.0) / (_first_of(config, DIVISORS) or 1.0),
        softcap=_first_of(config, SOFTCAPS),
    )


def bias_of(model: Any) -> Tensor | None:
    """The bias (V,) of a linear output layer; no parameter if it is not trained."""
    bias: Tensor | None = model.get_output_embeddings().bias
    return logits_bias(model) if bias is None else bias


def has_tied_output(model: Any) -> bool:
    """Whether the output embedding is the input embedding."""
    embedding = input_embedding(model)
    output = model.get_output_embeddings()
    owner = output.embedding if isinstance(output, HeadOutputLayer) else output
    return embedding is not None and embedding.weight is owner.weight


def without_map(config: Any) -> dict[str, float | None]:
    """The fields of a configuration that scale or cap logits, with values that do neither."""
    # Most cannot be None; so large a cap is none, to the last digit but one.
    caps = {name: None if name in OPTIONAL else NO_CAP for name in SOFTCAPS}
    fields = {name: cap for name, cap in caps.items() if hasattr(config, name)}
    return fields | {name: 1.0 for name in (*FACTORS, *DIVISORS) if hasattr(config, name)}


def run(
    model: Any, tokens: Tensor, name: str, change: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The hidden states (B, L, D) of tokens (B, L), and the logits (B, L, V) made of them.

    Args:
        name: of the model, for errors.
        change: applied to the hidden states before the output layer.
    """
    calls: list[Tensor] = []

    def before(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        calls.append(inputs[0])
        return inputs if change is None else (change(inputs[0]), *inputs[1:])

    tokens = tokens.to(model.device)
    layer = model.get_output_embeddings()
    hook = layer.register_forward_pre_hook(before)
    try:
        # Without a mask no token counts as padding; transformers warns about that.
        with quiet_transformers(f"run {name}"):
            logits: Tensor = model(**inputs_of(model, tokens), use_cache=False).logits
    finally:
        hook.remove()
    want, shapes = (*tokens.shape, layer.weight.shape[1]), [tuple(hidden.shape) for hidden in calls]
    if shapes != [want]:
        raise ValueError(
            f"the output layer of {name} must be called once with states {want}, got {shapes} from "
            f"{type(model).__name__}"
        )
    return calls[0], logits


def probe(model: Any) -> Tensor:
    """Tokens (1, NUM_CHECKED) with which a model is checked."""
    vocab_size: int = model.get_output_embeddings().weight.shape[0]
    return torch.arange(NUM_CHECKED)[None] % vocab_size


@torch.no_grad()
def check_output_layer(model: Any, layer: LinearHead, name: str) -> None:
    """Refuse a model that does more with its hidden states than the layer does.

    It is run as it is, and with hidden states that are scaled to a large logit.
    """
    plain = LinearHead(layer.weight, layer.bias)

    def enlarged(hidden: Tensor) -> Tensor:
        largest = plain.logits(hidden.float()).abs().max().clamp_min(1e-9).item()
        return hidden * (CHECKED_LOGIT / largest)

    for change in (None, enlarged):
        hidden, logits = run(model, probe(model), name, change)
        hidden = hidden if change is None else change(hidden)
        ours, theirs = layer.logits(hidden.float()), logits.float()
        worst = float("nan")
        if ours.shape == theirs.shape:
            worst = (theirs.log_softmax(-1) - ours.log_softmax(-1)).abs().max().item()
        largest = ours.abs().max().item() if change is None else CHECKED_LOGIT
        # Written so that nan is refused, too.
        if not worst <= tolerance(largest, hidden.dtype):
            raise ValueError(
                f"the output layer of {name} must be a linear map with at most a scale "
                f"and a softcap that its configuration names, got {type(model).__name__} with "
                f"log-probabilities that differ from those by {worst:.3g}"
            )


def tolerance(largest: float, dtype: torch.dtype) -> float:
    """Error that is allowed in values up to `largest`, which are rounded in this precision."""
    return max(1.0, largest) * (1e-4 + 4 * torch.finfo(dtype).eps)


def _first_of(config: Any, names: tuple[str, ...]) -> float | None:
    values = (getattr(config, name, None) for name in names)
    return next((float(v) for v in values if isinstance(v, int | float)), None)


LAST_ONLY = "head must need the last hidden state only"


class HeadOutputLayer(nn.Module):
    """A head where a model of transformers expects its linear output layer.

    It returns logits (..., V) whose softmax is the mixture: its log-probabilities plus one number
    for each state, with which the likeliest token has the mean of its logits in the components. As
    long as all components are the old layer, so are the logits, and what depends on their sign,
    such as `repetition_penalty`, acts as before. The logits of a head that is no mixture of
    softmaxes are its log-probabilities.

    Code that multiplies with the `weight` of an output layer would bypass the mixture: it gets an
    error. `embedding` has the weight.

    Args:
        head: gets `scale` · hidden.
        scale: of the model's logits.
        precision: "float32" or "float64", in which the head computes whatever its weights are
            stored in, also under autocast; its output embedding is converted in blocks. None is the
            precision of the weights.
    """

    def __init__(self, head: Head, scale: float = 1.0, precision: str | None = None) -> None:
        super().__init__()
        self.head, self.scale, self.precision = head, scale, precision
        if precision is not None:
            check_precision(head, precision)

    @property
    def weight(self) -> "WeightOfNoMatrix":
        """Its precision, device and shape, which some architectures look at."""
        return WeightOfNoMatrix(self.embedding.weight)

    @property
    def embedding(self) -> Any:
        """The module with the output embedding `weight` (V, D), and `bias` (V,) or None."""
        return weight_owner(self.head)[1]

    def forward(self, hidden: Tensor, target: Target | None = None, **options: Any) -> Tensor:
        """Logits; with targets (...) the loss, with options as those of the head.

        In training the loss has the penalty of the head.
        """
        if target is None and CURRENT.loss is not None:
            return hidden
        with self._autocast(hidden):
            hidden = self.states(hidden)
            if target is None:
                return _logits(self.head, hidden)
            loss: Tensor = self.head(hidden, target, **options).loss
            return loss

    def per_token_log_probs(self, hidden: Tensor, ids: Tensor, block: int | None = None) -> Tensor:
        """As of the head, for the hidden states of the model: log p of each id (...)."""
        with self._autocast(hidden):
            return self.head.per_token_log_probs(self.states(hidden), ids, block)

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states of the model as the head takes them: in its precision, and scaled."""
        name = self.precision
        hidden = hidden.to(self.embedding.weight.dtype if name is None else PRECISIONS[name])
        return hidden if self.scale == 1 else hidden * self.scale

    def _autocast(self, hidden: Tensor) -> AbstractContextManager[object]:
        return nullcontext() if self.precision is None else without_autocast(hidden.device)


def check_precision(head: Head, precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be None or one of {list(PRECISIONS)}, got {precision!r}")
    owner = weight_owner(head)[1]
    if not isinstance(owner, MixtureHead) or isinstance(owner.logit_map, nn.Module):
        kind = type(owner).__name__
        raise ValueError(f"precision must be None for {kind}, no mixture of softmaxes, got one")


class WeightOfNoMatrix:
    """Stands for the weight of a linear layer, and raises where it is computed with."""

    ERROR = (
        "the output layer of an upgraded model must be called, got code that computes with its "
        "weight alone, which would bypass the mixture; the output embedding is "
        "get_output_embeddings().embedding.weight"
    )

    def __init__(self, weight: Tensor) -> None:
        self.dtype, self.device, self.shape = weight.dtype, weight.device, weight.shape
        self.requires_grad = weight.requires_grad

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self.ERROR)

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        raise ValueError(cls.ERROR)

    def _refuse(self, *_: Any) -> Any:
        raise ValueError(self.ERROR)

    # Python looks for these on the class alone.
    __getitem__ = __array__ = __mul__ = __matmul__ = __neg__ = _refuse


def _logits(head: Head, hidden: Tensor) -> Tensor:
    """Log-probabilities (..., V), or those plus a number for each state, as of the layer above."""
    features = head.features(hidden)
    log_p = head.log_prob_from(features)
    mixture, owner = features, weight_owner(head)[1]
    while isinstance(mixture, Features):
        mixture = mixture.base
    if not isinstance(mixture, Mixture):
        return log_p
    best = log_p.argmax(-1)  # (...)
    vector = F.embedding(best, owner.weight).unsqueeze(-2)  # (..., 1, E)
    logits = (mixture.context.to(log_p.dtype) * vector).sum(-1)  # (..., K)
    if owner.bias is not None:
        logits = logits + owner.bias[best].unsqueeze(-1)
    if owner.logit_map is not None:
        logits = owner.logit_map(logits)
    mean = (mixture.log_weight.exp() * logits).sum(-1, keepdim=True)  # (..., 1)
    return log_p + (mean - log_p.gather(-1, best.unsqueeze(-1)))


def weight_owner(head: Head) -> tuple[str, Any]:
    """The module with the output embedding and the bias, and its name in the head."""
    name = ""
    while isinstance(head, Composed):
        name, head = f"{name}.base".removeprefix("."), head.base
    return name, head


def share(head: Head, weight: nn.Parameter, bias: Tensor | None) -> None:
    """Give the head the weight (V, D) and the bias (V,) of a linear layer.

    A bias that is no parameter becomes a buffer: it is saved, but not trained.
    """
    owner = weight_owner(head)[1]
    found = owner._parameters.get("weight")
    if found is None or found.shape != weight.shape:
        raise ValueError(
            f"head must have one output embedding of {tuple(weight.shape)}, as the model's layer, "
            f"got {type(head).__name__}"
        )
    owner.weight = weight
    if bias is None or isinstance(bias, nn.Parameter):
        owner.bias = bias
    else:
        del owner.bias
        owner.register_buffer("bias", bias.detach())


def head_from(spec: Mapping[str, Any], hidden_size: int, vocab_size: int) -> Head:
    """A head from what a model's configuration says of it.

    Args:
        spec: "kind", a key of `HEADS`; "options" of its constructor; "softcap" of its logits.
    """
    kind, softcap = spec["kind"], spec["softcap"]
    found = head_class(kind)
    if tuple(spec["options"].get("layers", found.layers)) != (-1,):
        raise ValueError(f"{LAST_ONLY}, got {kind}, with several layers")
    known = [name for name in head_arguments(kind) if name not in ("hidden_size", "vocab_size")]
    if unknown := [name for name in spec["options"] if name not in known]:
        names = ", ".join(known)
        raise ValueError(f"an option of {kind} must be one of {names}, got {unknown[0]!r}")
    head = found(hidden_size, vocab_size, **spec["options"])
    if head.is_stateful:
        raise ValueError(f"{LAST_ONLY}, got {kind}, with earlier tokens")
    if softcap is not None:
        if not isinstance(head, MixtureHead) or head.logit_map is not None:
            raise ValueError(
                f"a model with a softcap of {softcap} must get a mixture of softmaxes of plain "
                f"logits, got {type(head).__name__}"
            )
        head.logit_map = Softcap(softcap)
    return head
