"""Random heads, hidden states and options of `head_kl` against tables of float64.

    python tests/invariants/fuzz_divergence.py --cases 2000

The same number is the same case: `--first 1234 --cases 1` repeats one.
"""

import argparse
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from highrank import MixtureOfContexts, MixtureOfSoftmaxes, Softmax, head_kl
from highrank.heads.linear import LinearHead
from highrank.ops.divergence import DIRECTIONS, sides
from highrank.ops.logit_map import GeneralizedSigsoftmax, Softcap

TOLERANCE = 1e-9
MAPS = (None, None, Softcap(2.0), GeneralizedSigsoftmax())


def make_head(rng, V, D, is_student):
    """A head in no special position."""
    kind = rng.choice(["linear", "softmax", "moc", "mos", "mos", "stored"][: 5 + (not is_student)])
    has_bias, E, scale = rng.random() < 0.7, rng.randint(1, 5), rng.choice([0.5, 1.0, 8.0])
    if kind == "linear":
        head = nn.Linear(D, V, has_bias)
    elif kind == "softmax":
        head = Softmax(D, V, rng.choice([None, E]), bias=has_bias)
    elif kind == "stored":
        bias = torch.randn(V).double() if has_bias else None
        cap = rng.choice([None, 3.0])
        return LinearHead(torch.randn(V, D).double(), bias, scale=rng.uniform(0.3, 2), softcap=cap)
    else:
        cls = MixtureOfSoftmaxes if kind == "mos" else MixtureOfContexts
        head = cls(D, V, rng.randint(1, 6), E, bias=has_bias)
    for parameter in head.double().parameters():
        nn.init.normal_(parameter, std=scale)
    if kind != "linear":
        head.logit_map = rng.choice(MAPS)
    return head


def table(head, hidden):
    """log p (N, V) by the definition of each head."""
    if isinstance(head, LinearHead):
        z = head.scale * F.linear(hidden, head.weight, head.bias)
        return (
            z if head.softcap is None else head.softcap * (z / head.softcap).tanh()
        ).log_softmax(-1)
    if isinstance(head, nn.Linear):
        return head(hidden).log_softmax(-1)
    log_weight, context = head.softmaxes(hidden)
    z = F.linear(context, head.weight, head.bias)  # (N, K, V)
    if isinstance(head.logit_map, Softcap):
        z = 2.0 * (z / 2.0).tanh()
    elif head.logit_map is not None:
        z = z + F.logsigmoid(z)
    return (log_weight[..., None] + z.log_softmax(-1)).logsumexp(-2)


def reference(student, teacher, direction, temperature):
    """The divergences (N,) of tables, by torch's own functions."""
    s, t = ((x / temperature).log_softmax(-1) for x in (student, teacher))
    kl = lambda log_p, log_q: F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)  # noqa: E731
    if direction == "js":
        m = torch.logaddexp(s, t) - math.log(2)
        return (kl(t, m) + kl(s, m)) / 2
    return kl(t, s) if direction == "forward" else kl(s, t)


def error(found, want, size):
    """The largest error as a fraction of the largest number, or of a thousandth of `size`."""
    return ((found - want).abs().max() / want.abs().max().clamp(min=1e-3 * size)).item()


def case(number):
    """What was drawn, and the largest error."""
    rng = random.Random(number)
    torch.manual_seed(number)
    V, N = rng.choice([1, 2, 7, 40, 200, 700]), rng.choice([1, 2, 5, 17])
    D, other_D = rng.randint(1, 6), rng.randint(1, 6)
    student, teacher = make_head(rng, V, D, True), make_head(rng, V, other_D, False)
    hidden = torch.randn(N, D).double().requires_grad_()
    other = torch.randn(N, other_D).double()
    direction, temperature = rng.choice(DIRECTIONS), rng.choice([1.0, 1.0, 0.7, 3.0])
    reduction = rng.choice(["mean", "sum", "none"])
    mask = torch.rand(N) < 0.7 if rng.random() < 0.5 else torch.ones(N).bool()
    mask[rng.randrange(N)] = True
    options = {"mask": mask, "chunk_bytes": rng.choice([None, 1, 9 * V, 3000 * V])}
    sides.BLOCK_NUMBERS = rng.choice([2**18, 400, 2000])
    upstream = torch.randn(N).double()
    leaves = [hidden, *student.parameters()]

    def result(loss):
        loss = (loss * upstream).sum() if reduction == "none" else loss
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        pairs = zip(leaves, gradients, strict=True)
        return [loss, *(torch.zeros_like(x) if g is None else g for x, g in pairs)]

    losses = reference(table(student, hidden), table(teacher, other), direction, temperature)
    reduced = {"mean": losses[mask].mean(), "sum": losses[mask].sum(), "none": losses * mask}
    want = result(reduced[reduction])
    # Gradients are differences of terms as large as the divergence.
    worst, size = 0.0, max(1.0, losses.max().item())
    for backend in ("auto", "dense"):
        loss = head_kl(
            student, hidden, teacher, other, direction, temperature, reduction,
            backend=backend, **options,
        )  # fmt: skip
        worst = max(worst, *(error(a, b, size) for a, b in zip(result(loss), want, strict=True)))
    drawn = type(student).__name__, type(teacher).__name__, V, N, direction, temperature, reduction
    return drawn, worst if math.isfinite(worst) else math.inf


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    worst, num_wrong = 0.0, 0
    for number in range(options.first, options.first + options.cases):
        drawn, found = case(number)
        worst = max(worst, found)
        if not found <= TOLERANCE:
            num_wrong += 1
            print(f"case {number}: error {found:.1e} for {drawn}", flush=True)
    print(f"{options.cases} cases, {num_wrong} wrong, largest error {worst:.1e}")
    return int(num_wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
