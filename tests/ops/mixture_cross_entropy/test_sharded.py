"""A vocabulary over several processes against one process, in float64: values and gradients.

The functions that processes call get a problem, cut out their rows, and send back what is whole:
losses and gradients of their rows. N tokens, K components, E embedding size, V vocabulary.
"""

import pytest
import torch
import torch.distributed as dist

from highrank.ops.logit_map import Softcap
from highrank.ops.mixture_cross_entropy import mixture_loss

N, K, E, V = 9, 3, 4, 7
ALSO = ("lse", "prediction", "entropy", "log_weight")


def numbers(*shape, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def soft_targets(M=3):
    ids = (torch.arange(N)[:, None] + torch.arange(M) * 2) % V
    ids[1], ids[4, 2] = -100, -100
    return ids, numbers(N, M).softmax(-1) * 0.9


CASES = {
    "plain": {},
    "class weight": {"class_weight": numbers(V)},
    "token weight": {"token_weight": torch.arange(N).remainder(3).double()},
    "label smoothing": {"label_smoothing": 0.1},
    "z-loss": {"z_loss": 0.3},
    "scale": {"logit_scale": torch.tensor(0.5, dtype=torch.float64)},
    "softcap": {"logit_map": Softcap(2.0)},
    "soft targets": {"target": soft_targets()},
    "shift": {"shift": 2},
    "extra terms": {"extra": (numbers(N, 2).log() - 2, numbers(N, 2, seed=6).log())},
    "no bias": {"bias": None},
    "impossible": {"impossible": True},
    "all ignored": {"target": torch.full((N,), -100)},
    "all": {
        "class_weight": numbers(V),
        "token_weight": numbers(N, seed=6),
        "label_smoothing": 0.2,
        "z_loss": 0.1,
        "logit_scale": 1.7,
        "logit_map": Softcap(3.0),
        "shift": 1,
    },
}
# By number of processes: even as far as V allows, uneven, in another order, one without any row.
CUTS = {
    2: {"even": (0, 4, 7), "uneven": (0, 6, 7), "empty": (0, 7, 7)},
    3: {"even": (0, 3, 5, 7), "uneven": (0, 1, 6, 7), "empty": (0, 4, 4, 7)},
}


def solved(cut, case, reduction, options):
    """Losses, by-products and gradients, of rows cut[rank] … cut[rank + 1] or of all if None."""
    generator = torch.Generator().manual_seed(1)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    context, log_weight = normal(N, K, E), normal(N, K).log_softmax(-1)
    weight, bias = normal(V, E), normal(V)
    case = dict(CASES[case])
    target = case.pop("target", torch.arange(N).mul(3).remainder(V))
    if isinstance(target, torch.Tensor):
        target[2] = -100
    if case.pop("impossible", False):
        bias[target[3]] = -torch.inf
    if "bias" in case:
        bias = case.pop("bias")
    if cut is not None:
        start, stop = options["shard"] = cut[dist.get_rank() : dist.get_rank() + 2]
        weight, bias = weight[start:stop], None if bias is None else bias[start:stop]
    leaves = {"context": context, "log_weight": log_weight, "weight": weight, "bias": bias}
    extra, scale = case.pop("extra", None), case.get("logit_scale")
    if extra is not None:
        leaves |= {"extra_weight": extra[0], "extra": extra[1]}
    if isinstance(scale, torch.Tensor):
        leaves["scale"] = scale
    leaves = {n: x.clone().requires_grad_() for n, x in leaves.items() if x is not None}
    if "scale" in leaves:
        case["logit_scale"] = leaves["scale"]
    terms = None if extra is None else (leaves["extra_weight"], leaves["extra"])
    also = ("lse", "log_weight") if extra is not None else ALSO
    context, log_weight, weight = (leaves[n] for n in ("context", "log_weight", "weight"))
    out = mixture_loss(
        context,
        log_weight,
        weight,
        target,
        bias=leaves.get("bias"),
        extra=terms,
        reduction=reduction,
        also=also,
        **case,
        **options,
    )
    upstream = numbers(*out.loss.shape) + 0.5
    gradients = torch.autograd.grad(out.loss, list(leaves.values()), upstream, retain_graph=True)
    again = torch.autograd.grad(out.loss, list(leaves.values()), upstream)
    found = {"token_loss": out.token_loss, "loss": out.loss, **out.by_products}
    found |= {f"d_{n}": g for n, g in zip(leaves, gradients, strict=True)}
    found |= {f"second d_{n}": g for n, g in zip(leaves, again, strict=True)}
    return {name: x.detach() for name, x in found.items()}


def whole(parts, cut):
    """What the processes have, as one: all must have the same but for rows of the vocabulary."""
    found = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        if name.removeprefix("second ") in ("d_weight", "d_bias"):
            sizes = [stop - start for start, stop in zip(cut, cut[1:], strict=False)]
            assert [len(value) for value in values] == sizes
            found[name] = torch.cat(values)
        else:
            for value in values:
                torch.testing.assert_close(value, values[0], rtol=0, atol=1e-14, equal_nan=True)
            found[name] = values[0]
    return found


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(
            got[name], value, rtol=0, atol=1e-10, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", CASES)
def test_every_option_is_that_of_one_process(processes, case, reduction):
    cut = CUTS[processes.size]["even"]
    got = whole(processes(solved, cut, case, reduction, {"chunk_bytes": 200}), cut)
    assert_same(got, solved(None, case, reduction, {"backend": "reference"}))


@pytest.mark.parametrize("case", ["plain", "all"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", ["uneven", "empty"])
def test_shards_may_be_uneven_or_empty(processes, name, case, reduction):
    cut = CUTS[processes.size][name]
    got = whole(processes(solved, cut, case, reduction, {}), cut)
    assert_same(got, solved(None, case, reduction, {"backend": "reference"}))
