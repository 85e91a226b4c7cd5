"""Heads and losses for `golden.py`, computed in this process.

Only what the package offers to its users is called, so that these numbers outlive its insides. A
section yields a prefix of keys and, with further parts of the keys, values.
"""

import math

import golden_cases as cases
import torch
from golden_cases import B, D, E, K, T, V, draw, draw_ids
from torch import nn

import highrank
from highrank.heads import head_class
from highrank.ops.mixture_cross_entropy import mixture_loss

BACKENDS = ("reference", "chunked", "fused", "auto")
CASES = [(kind, case) for kind, sets in cases.HEAD_CASES.items() for case in sets]


def make_head(kind, case, dtype=None):
    """A head as its constructor leaves it."""
    arguments = {"hidden_size": D, "vocab_size": V, **cases.HEAD_CASES[kind][case]}
    is_tied = arguments.pop("tied", False)
    torch.manual_seed(0)
    head = head_class(kind)(**arguments, dtype=dtype)
    if is_tied and hasattr(head, "weights"):
        head.tie([nn.Parameter(band.detach().clone()) for band in head.weights])
    elif is_tied:
        head.tie(nn.Parameter(head.weight.detach().clone()))
    return head


def filled_head(kind, case):
    """A head in float64, everything that has a gradient, and what the head is given besides.

    The values of parameters depend on their names only.
    """
    head, arguments = make_head(kind, case, torch.float64), cases.HEAD_CASES[kind][case]
    leaves = {old_name(kind, name): parameter for name, parameter in head.named_parameters()}
    with torch.no_grad():
        for name, parameter in leaves.items():
            parameter.copy_(draw(name, *parameter.shape))
    shape = (B, T) if arguments.get("batch_first") else (T, B)
    leaves["hidden"] = draw("hidden", *shape, D, scale=1.0).requires_grad_()
    past = {}
    if head.is_stateful:
        before = draw("hidden before", T, B, D, scale=1.0), draw_ids("tokens before", T, B)
        past["state"] = head.advance(*before, head.initial_state(B))
        past["tokens"] = draw_ids("tokens", T, B)
    return head, leaves, past


def old_name(kind, name):
    """The name under which a head's parameter is recorded."""
    for new, old in cases.RENAMED_PARAMETERS.get(kind, {}).items():
        if name.startswith(new):
            return old + name.removeprefix(new)
    return name


def gradients(result, leaves):
    """Gradients of a sum of the result with fixed weights, by leaf."""
    upstream = draw("upstream", *result.shape, scale=1.0).to(result.dtype)
    given = [leaf for leaf in leaves.values() if leaf.numel()]
    found = torch.autograd.grad(result, given, upstream, retain_graph=True, allow_unused=True)
    known = {id(leaf): gradient for leaf, gradient in zip(given, found, strict=True)}
    for name, leaf in leaves.items():
        gradient = known.get(id(leaf))
        yield name, torch.zeros_like(leaf) if gradient is None else gradient


def joined_gradient(result, leaves):
    found = dict(gradients(result, leaves))
    return torch.cat([found[name].flatten() for name in sorted(found)])


def result_or_none(function, *arguments, **options):
    """Return the result, or None if the arguments are refused."""
    try:
        return function(*arguments, **options)
    except ValueError:
        return None


def heads():
    """Log-probabilities, losses and gradients."""
    for kind, case in CASES:
        yield f"heads/{kind}/{case}", head_values(kind, case)


def head_values(kind, case):
    head, leaves, past = filled_head(kind, case)
    hidden = leaves["hidden"]
    log_prob, penalty = head.log_prob(hidden, **past), head.penalty(hidden, **past)
    yield "rank_bound", head.rank_bound
    yield "log_prob", log_prob
    yield "log_prob/gradient", joined_gradient(log_prob, leaves)
    yield "predict", head.predict(hidden, **past)
    yield "penalty", penalty
    if isinstance(penalty, torch.Tensor):
        yield "penalty/gradient", joined_gradient(penalty, leaves)
    if hasattr(head, "mixture"):
        log_weight, context = head.mixture(hidden)
        yield "mixture/log_weight", log_weight
        yield "mixture/context", context
    for name, options in cases.loss_options(hidden.shape[:-1]).items():
        found = result_or_none(head, hidden, **options, **past, with_penalty=False)
        yield from [(name, "refused")] if found is None else head_losses(name, found, leaves)
    target, also = draw_ids("target", *hidden.shape[:-1]), ("lse", "prediction", "entropy")
    found = result_or_none(head, hidden, target, also=also, **past)
    yield from [("also", "refused")] if found is None else found.by_products.items()


def head_losses(name, found, leaves):
    yield name, found.loss
    yield f"{name}/output", found.output
    if name != "mean":
        yield f"{name}/gradient", joined_gradient(found.loss, leaves)
        return
    for leaf, gradient in gradients(found.loss, leaves):
        yield f"{name}/gradient/{leaf}", gradient


def starts():
    """Parameters and buffers of new heads, in float32."""
    for kind, case in CASES:
        yield f"init/{kind}/{case}", start_values(kind, case)


def start_values(kind, case):
    for name, tensor in make_head(kind, case).state_dict().items():
        yield old_name(kind, name), tensor


def draws():
    """Samples, and losses with dropout: both depend on torch's random numbers."""
    for kind, case in CASES:
        yield f"draws/{kind}/{case}", drawn_values(kind, case)


def drawn_values(kind, case):
    head, leaves, past = filled_head(kind, case)
    hidden, random = leaves["hidden"], torch.Generator().manual_seed(2)
    yield "sample", head.sample(hidden, generator=random, **past)
    cut = {"temperature": 0.7, "top_k": 9, "top_p": 0.9}
    yield "cut", head.sample(hidden, generator=random, **cut, **past)
    if "dropout" in cases.HEAD_CASES[kind][case]:
        torch.manual_seed(1)
        loss = head.train()(hidden, draw_ids("target", *hidden.shape[:-1]), **past).loss
        yield "dropout", loss
        yield "dropout/gradient", joined_gradient(loss, leaves)


def losses():
    """Values and gradients by every backend."""
    for dtype in (torch.float64, torch.float32):
        prefix = f"losses/{str(dtype).removeprefix('torch.')}"
        for name, function, inputs, options in loss_cases(dtype):
            for backend in BACKENDS:
                given = options if backend == "auto" else {**options, "backend": backend}
                yield f"{prefix}/{name}/{backend}", loss_values(function, inputs, given)


def loss_cases(dtype):
    """Name, public function, inputs with gradients, and options."""
    options = cases.loss_options((4, 5), dtype)
    ids, mixture, linear = options["mean"]["target"], mixture_inputs(dtype), linear_inputs(dtype)
    for name, given in options.items():
        yield f"mixture/{name}", highrank.mixture_cross_entropy, mixture, given
        renamed = {"weight" if key == "class_weight" else key: x for key, x in given.items()}
        yield f"linear/{name}", highrank.linear_cross_entropy, linear, renamed
    flat = {**linear, "input": linear["input"].flatten(0, 1)}
    yield "linear/flat", highrank.linear_cross_entropy, flat, {"target": ids.flatten()}
    unbiased = {name: tensor for name, tensor in mixture.items() if name != "bias"}
    yield "mixture/unbiased", highrank.mixture_cross_entropy, unbiased, {"target": ids}
    forbidden = mixture["bias"].clone()
    forbidden[ids.flatten()[:2]] = -math.inf
    impossible = {**mixture, "bias": forbidden}
    yield "mixture/impossible", highrank.mixture_cross_entropy, impossible, {"target": ids}
    extra = {"extra_weight": draw("extra_weight", 4, 5, 2).to(dtype) - 2}
    extra["extra_prob"] = -draw("extra_prob", 4, 5, 2).abs().to(dtype)
    yield "mixture/extra", with_extra, {**mixture, **extra}, {"target": ids}


def with_extra(*, extra_weight, extra_prob, **options):
    # Its public form asks for weights that sum to one.
    return mixture_loss(extra=(extra_weight, extra_prob), **options).loss


def mixture_inputs(dtype):
    return {
        "context": draw("context", 4, 5, K, E, scale=1.0).to(dtype),
        "log_weight": draw("log_weight", 4, 5, K, scale=1.0).log_softmax(-1).to(dtype),
        "weight": draw("weight", V, E, scale=1.0).to(dtype),
        "bias": draw("bias", V).to(dtype),
    }


def linear_inputs(dtype):
    return {
        "input": draw("input", 4, 5, E, scale=1.0).to(dtype),
        "linear_weight": draw("weight", V, E, scale=1.0).to(dtype),
        "linear_bias": draw("bias", V).to(dtype),
    }


def loss_values(function, inputs, options):
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    loss = result_or_none(function, **leaves, **options)
    yield "", "refused" if loss is None else loss
    if loss is not None:
        for name, gradient in gradients(loss, leaves):
            yield f"gradient/{name}", gradient


def compiled():
    """Values and gradients by the operator that compilers know."""
    function = torch.compile(highrank.mixture_cross_entropy, backend="aot_eager")
    for name in ("mean", "none"):
        options = cases.loss_options((4, 5))[name]
        values = loss_values(function, mixture_inputs(torch.float64), options)
        yield f"compiled/{name}", values
