"""Random heads, hidden states and options of `head_kl` against tables of float64.

    python tests/invariants/fuzz_divergence.py --cases 2000

The same number is the same case: `--first 1234 --cases 1` repeats one.
"""

import argparse
import copy
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from highrank import MixtureOfContexts, MixtureOfSoftmaxes, Softmax, head_kl
from highrank.heads import AdaptiveMixtureOfSoftmaxes, AdaptiveSoftmax, Mixtape, MultiSenseSoftmax
from highrank.heads.linear import LinearHead
from highrank.ops.divergence import DIRECTIONS, sides
from highrank.ops.logit_map import GeneralizedSigsoftmax, Softcap

TOLERANCES = {torch.float64: 1e-9, torch.float32: 3e-4}
# Errors are fractions of the largest number, but of no less than this part of the divergence: of
# logits as large as these heads have, a float32 has few digits behind the point.
FLOORS = {torch.float64: 1e-3, torch.float32: 1.0}
MAPS = (None, None, Softcap(2.0), GeneralizedSigsoftmax())
# Heads that are no mixtures of softmaxes of one embedding; their tables are their own.
OTHERS = {
    AdaptiveSoftmax: {"embedding_size": 3, "frequent": 3},
    AdaptiveMixtureOfSoftmaxes: {"num_components": 2, "embedding_size": 3, "frequent": 3},
    Mixtape: {"embedding_size": 3, "num_components": 2},
    MultiSenseSoftmax: {"embedding_size": 3, "num_frequent": 2},
}


def make_head(rng, V, D, is_student):
    """A head in no special position."""
    kinds = ["linear", "softmax", "moc", "mos", "mos", *(["other"] if V > 5 else [])]
    kind = rng.choice(kinds if is_student else [*kinds, "stored"])
    has_bias, E, scale = rng.random() < 0.7, rng.randint(1, 5), rng.choice([0.5, 1.0, 8.0])
    if kind == "linear":
        head = nn.Linear(D, V, has_bias)
    elif kind == "softmax":
        head = Softmax(D, V, rng.choice([None, E]), bias=has_bias)
    elif kind == "other":
        cls = rng.choice(list(OTHERS))
        head = cls(D, V, **OTHERS[cls])
    elif kind == "stored":
        bias, cap = torch.randn(V) if has_bias else None, rng.choice([None, 3.0])
        return LinearHead(torch.randn(V, D), bias, scale=rng.uniform(0.3, 2), softcap=cap)
    else:
        cls = MixtureOfSoftmaxes if kind == "mos" else MixtureOfContexts
        head = cls(D, V, rng.randint(1, 6), E, bias=has_bias)
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=scale)
    if kind in ("softmax", "moc", "mos"):
        head.logit_map = rng.choice(MAPS)
    if kind != "other" and has_bias and rng.random() < 0.3:
        with torch.no_grad():
            head.bias[torch.rand(V) < rng.choice([0.1, 0.6])] = -torch.inf
            head.bias[rng.randrange(V)] = 0.0
    return head


def table(head, hidden):
    """log p (N, A) by the definition of each head, of the tokens (A,) that it does not rule out."""
    bias = getattr(head, "bias", None)
    kept = torch.arange(head.out_features if isinstance(head, nn.Linear) else head.vocab_size)
    if type(head) in OTHERS:
        return head.log_prob(hidden), kept
    if bias is not None:
        # A softcap makes -inf a number.
        if not isinstance(getattr(head, "logit_map", None), Softcap):
            kept = kept[bias.detach() > -torch.inf]
        bias = bias[kept].double()
    weight = head.weight[kept].double()
    if isinstance(head, LinearHead):
        z = head.scale * F.linear(hidden, weight, bias)
        z = z if head.softcap is None else head.softcap * (z / head.softcap).tanh()
        return z.log_softmax(-1), kept
    if isinstance(head, nn.Linear):
        return F.linear(hidden, weight, bias).log_softmax(-1), kept
    log_weight, context = head.softmaxes(hidden)
    z = F.linear(context, weight, bias)  # (N, K, A)
    if isinstance(head.logit_map, Softcap):
        z = 2.0 * (z / 2.0).tanh()
    elif head.logit_map is not None:
        z = z + F.logsigmoid(z)
    return (log_weight[..., None] + z.log_softmax(-1)).logsumexp(-2), kept


def reference(student, teacher, direction, temperature):
    """The divergences (N,) of tables; autograd sees no infinite number."""
    (s, of_s), (t, of_t) = student, teacher
    s, t = ((x / temperature).log_softmax(-1) for x in (s, t))
    if direction == "forward":
        return kl(t, of_t, s, of_s)
    if direction == "reverse":
        return kl(s, of_s, t, of_t)
    return (to_middle(t, of_t, s, of_s) + to_middle(s, of_s, t, of_t)) / 2


def kl(log_p, of_p, log_q, of_q):
    """KL(p ‖ q); +inf, without a gradient, where p has a token that q rules out."""
    both = torch.isin(of_p, of_q)
    ratio = log_p[:, both] - log_q[:, torch.isin(of_q, of_p)]
    is_infinite = (log_p[:, ~both].exp() > 0).any(-1)
    return (log_p[:, both].exp() * ratio).sum(-1).masked_fill(is_infinite, torch.inf)


def to_middle(log_p, of_p, log_q, of_q):
    """KL(p ‖ (p + q) / 2): where q has no token, the logarithm is that of 2."""
    both = torch.isin(of_p, of_q)
    shared, alone = log_p[:, both], log_p[:, ~both]
    log_m = torch.logaddexp(shared, log_q[:, torch.isin(of_q, of_p)]) - math.log(2)
    return (shared.exp() * (shared - log_m)).sum(-1) + math.log(2) * alone.exp().sum(-1)


def error(found, want, floor):
    """The largest error as a fraction of the largest number, or of `floor`."""
    found, is_infinite = found.double(), want == torch.inf
    if not torch.equal(found == torch.inf, is_infinite):
        return math.inf
    found, want = found[~is_infinite], want[~is_infinite]
    if not want.numel():
        return 0.0
    return ((found - want).abs().max() / want.abs().max().clamp(min=floor)).item()


def case(number):
    """What was drawn, its precision, and the largest error."""
    rng = random.Random(number)
    torch.manual_seed(number)
    V, N = rng.choice([1, 2, 7, 40, 200, 700]), rng.choice([1, 2, 5, 17])
    D, other_D = rng.randint(1, 6), rng.randint(1, 6)
    student, teacher = make_head(rng, V, D, True), make_head(rng, V, other_D, False)
    hidden, other = torch.randn(N, D), torch.randn(N, other_D)
    dtype = rng.choice([torch.float64, torch.float64, torch.float32])
    direction, temperature = rng.choice(DIRECTIONS), rng.choice([1.0, 1.0, 0.7, 3.0])
    reduction, trains_teacher = rng.choice(["mean", "sum", "none"]), rng.random() < 0.3
    mask = torch.rand(N) < 0.7 if rng.random() < 0.5 else torch.ones(N).bool()
    mask[rng.randrange(N)] = True
    options = {"mask": mask, "chunk_bytes": rng.choice([None, 1, 9 * V, 3000 * V])}
    options["trains_teacher"] = trains_teacher
    sides.BLOCK_NUMBERS = rng.choice([2**18, 400, 2000])
    upstream = torch.randn(N)

    def problem(dtype):
        """The heads and hidden states in this precision, and what gradients are wanted of."""
        heads = [copy.deepcopy(head).to(dtype) for head in (student, teacher)]
        if isinstance(teacher, LinearHead):
            bias = None if teacher.bias is None else teacher.bias.to(dtype)
            how = {"scale": teacher.scale, "softcap": teacher.softcap}
            heads[1] = LinearHead(teacher.weight.to(dtype), bias, **how)
        states = [x.to(dtype).requires_grad_() for x in (hidden, other)]
        leaves = [[x, *head.parameters()] for x, head in zip(states, heads, strict=True)]
        return heads, states, leaves[0] + leaves[1]

    def result(loss, leaves):
        """The loss, and its gradients; infinite losses have none."""
        total = (loss.masked_fill(loss == torch.inf, 0.0) * upstream).sum()
        total = total if reduction == "none" else loss
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        pairs = zip(leaves, gradients, strict=True)
        return [loss.detach(), *(torch.zeros_like(x) if g is None else g for x, g in pairs)]

    heads, states, leaves = problem(torch.float64)
    tables = [table(*pair) for pair in zip(heads, states, strict=True)]
    if not trains_teacher:
        tables[1] = tables[1][0].detach(), tables[1][1]
    losses = reference(*tables, direction, temperature)
    reduced = {"mean": losses[mask].mean(), "sum": losses[mask].sum()}
    want = result(reduced.get(reduction, losses.masked_fill(~mask, 0.0)), leaves)
    finite = losses.detach().masked_fill(losses == torch.inf, 0.0)
    # Gradients are differences of terms as large as the divergence.
    worst, floor = 0.0, FLOORS[dtype] * max(1.0, finite.max().item())
    (s, t), (x, y), leaves = problem(dtype)
    for backend in ("auto", "dense"):
        loss = head_kl(s, x, t, y, direction, temperature, reduction, backend=backend, **options)
        found = result(loss, leaves)
        worst = max(worst, *(error(a, b, floor) for a, b in zip(found, want, strict=True)))
    drawn = type(student).__name__, type(teacher).__name__, V, N, direction, temperature, reduction
    return drawn, dtype, worst if math.isfinite(worst) else math.inf


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    worst, num_wrong = dict.fromkeys(TOLERANCES, 0.0), 0
    for number in range(options.first, options.first + options.cases):
        drawn, dtype, found = case(number)
        worst[dtype] = max(worst[dtype], found)
        if not found <= TOLERANCES[dtype]:
            num_wrong += 1
            print(f"case {number}: error {found:.1e} for {drawn}", flush=True)
    each = ", ".join(f"{found:.1e} in {dtype}" for dtype, found in worst.items())
    print(f"{options.cases} cases, {num_wrong} wrong, largest error {each}")
    return int(num_wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
