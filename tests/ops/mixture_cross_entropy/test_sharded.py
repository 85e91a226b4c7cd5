"""A vocabulary over several processes against one process, in float64: values and gradients.

N tokens, K components, E embedding size, V vocabulary.
"""

import pytest
import torch
import torch.distributed as dist

from highrank.ops.logit_map import Softcap
from highrank.ops.mixture_cross_entropy import mixture_loss

N, K, E, V = 9, 3, 4, 7


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
    "impossible": {"impossible": 2},
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
# By number of processes: even as far as V allows, uneven, one without any row.
CUTS = {
    2: {"even": (0, 4, 7), "uneven": (0, 6, 7), "empty": (0, 7, 7)},
    3: {"even": (0, 3, 5, 7), "uneven": (0, 1, 6, 7), "empty": (0, 4, 4, 7)},
}


def solved(cut, name, reduction, **options):
    """Losses, by-products and gradients, of rows cut[rank] … cut[rank + 1] or of all if None.

    Of two backward passes, the second one recomputes.
    """
    generator, case = torch.Generator().manual_seed(1), dict(CASES[name])
    shapes = {"context": (N, K, E), "log_weight": (N, K), "weight": (V, E), "bias": (V,)}
    leaves = {
        key: torch.randn(shape, generator=generator, dtype=torch.float64)
        for key, shape in shapes.items()
    }
    leaves["log_weight"] = leaves["log_weight"].log_softmax(-1)
    target = case.pop(
        "target", torch.arange(N).mul(3).remainder(V).index_fill(0, torch.tensor(2), -100)
    )
    leaves["bias"][case.pop("impossible", [])] = -torch.inf
    leaves |= {"bias": case.pop("bias")} if "bias" in case else {}
    if cut is not None:
        start, stop = options["shard"] = cut[dist.get_rank() : dist.get_rank() + 2]
        for key in ("weight", "bias"):
            leaves[key] = None if leaves[key] is None else leaves[key][start:stop]
    if "extra" in case:
        leaves["extra"], leaves["extra weight"] = case.pop("extra")
    if isinstance(case.get("logit_scale"), torch.Tensor):
        leaves["scale"] = case.pop("logit_scale")
    leaves = {n: x.clone().requires_grad_() for n, x in leaves.items() if x is not None}
    extra = (leaves["extra"], leaves["extra weight"]) if "extra" in leaves else None
    case |= {"logit_scale": leaves["scale"]} if "scale" in leaves else {}
    out = mixture_loss(
        *(leaves[key] for key in ("context", "log_weight", "weight")),
        target,
        bias=leaves.get("bias"),
        extra=extra,
        reduction=reduction,
        also=("lse", "log_weight") if extra else ("lse", "prediction", "entropy", "log_weight"),
        **case,
        **options,
    )
    upstream = numbers(*out.loss.shape) + 0.5
    found = {"token_loss": out.token_loss, "loss": out.loss, **out.by_products}
    for again in ("", " again"):
        gradients = torch.autograd.grad(out.loss, list(leaves.values()), upstream, not again)
        found |= {f"d_{n}{again}": g for n, g in zip(leaves, gradients, strict=True)}
    return {key: x.detach() for key, x in found.items()}


def joined(parts, cut):
    """Results of all processes as one: they must be the same but for rows of the vocabulary."""
    found = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        if name.removesuffix(" again") in ("d_weight", "d_bias"):
            sizes = [stop - start for start, stop in zip(cut, cut[1:], strict=False)]
            assert [len(value) for value in values] == sizes
            found[name] = torch.cat(values)
        else:
            for value in values:
                torch.testing.assert_close(value, values[0], rtol=0, atol=1e-14, equal_nan=True)
            found[name] = values[0]
    return found


def sharded(cut, name, reduction, chunk_bytes):
    return solved(cut, name, reduction, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "case, name",
    [
        *((case, "even") for case in CASES),
        *((case, name) for case in ("plain", "all") for name in ("uneven", "empty")),
    ],
)
def test_every_option_is_that_of_one_process(processes, case, name, reduction):
    cut = CUTS[processes.size][name]
    chunk_bytes = 200 if name == "even" else None
    got = joined(processes(sharded, cut, case, reduction, chunk_bytes), cut)
    want = solved(None, case, reduction, backend="reference")
    assert got.keys() == want.keys()
    for key, value in want.items():
        torch.testing.assert_close(
            got[key], value, rtol=0, atol=1e-10, equal_nan=True, msg=lambda m, n=key: f"{n}: {m}"
        )
