"""Random losses against a dense definition in float64: all options, in all combinations.

    python tests/invariants/fuzz_losses.py --cases 10000

A case is its number: `--first 4711 --cases 1` is it alone. The definition knows no −inf: impossible
tokens have no column, and targets without a column have no row. N tokens, K components, J further
terms, M targets of a token, E embedding size, V vocabulary.
"""

import argparse
import copy
import random

import torch

from highrank.ops.linear_cross_entropy import linear_cross_entropy
from highrank.ops.logit_map import GeneralizedSigsoftmax, PiecewiseLinear, Softcap
from highrank.ops.mixture_cross_entropy import mixture_loss

BACKENDS = ("auto", "reference", "chunked", "fused", "registered", "linear")
# By the largest number of a tensor, in float64 and in float32.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}


class Case:
    """Arguments of a loss, drawn by the case's number."""

    def __init__(self, number):
        self.random, self.number = random.Random(number), number
        self.generator = torch.Generator().manual_seed(number)
        choose, has = self.random.choice, self._has
        self.dtype = choose((torch.float64,) * 3 + (torch.float32,))
        self.V, self.E, self.K = choose((1, 2, 5, 9)), choose((1, 3, 4)), choose((1, 1, 2, 3))
        self.shape = choose(((), (0,), (1,), (4,), (7,), (2, 3), (3, 4)))
        self.backend, self.reduction = choose(BACKENDS), choose(("mean", "sum", "none"))
        self.is_soft = has(0.2)
        self.leaves, self.options = {}, {}
        self._draw_mixture()
        self._draw_target()
        self._draw_options()

    def _has(self, chance):
        return self.random.random() < chance

    def _normal(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def _draw_mixture(self):
        large, K, E, V = self.random.choice((0.1, 1.0, 3.0)), self.K, self.E, self.V
        log_weight = self._normal(*self.shape, K)
        if K > 1 and self._has(0.2):
            log_weight[..., 0] = -torch.inf
        self.leaves["context"] = self._normal(*self.shape, K, E) * large
        self.leaves["log_weight"] = log_weight.log_softmax(-1)
        self.leaves["weight"] = self._normal(V, E)
        if self._has(0.7):
            bias = self._normal(V)
            if self._has(0.4):
                forbidden = torch.rand(V, generator=self.generator) < 0.3
                forbidden[self.random.randrange(V)] = False
                bias[forbidden] = -torch.inf
            self.leaves["bias"] = bias
        self.ignore_index = self.random.choice((-100, -100, -1, 0, V, 1000))
        self.has_extra = not self.is_soft and self._has(0.2)
        if self.has_extra:
            both = self._normal(2, *self.shape, 2).log_softmax(-1)
            self.leaves["extra_weight"], self.leaves["extra_log_q"] = both - 1

    def _draw_target(self):
        shape = (*self.shape, self.random.choice((1, 2, 3))) if self.is_soft else self.shape
        ids = torch.randint(self.V, shape, generator=self.generator)
        if self._has(0.5):
            ignored = torch.rand(shape, generator=self.generator) < self.random.choice((0.3, 1.0))
            ids[ignored] = self.ignore_index
        # Some values of ignore_index are no tokens, others are.
        self.ids, self.amount = ids, None
        if self.is_soft:
            self.amount = self._normal(*shape).softmax(-1)

    def _draw_options(self):
        options, V, random = self.options, self.V, self.random
        if self._has(0.2):
            options["token_weight"] = self._weights(*self.shape)
        if not self.is_soft and self._has(0.2):
            options["class_weight"] = self._weights(V)
        if not self.is_soft and not self.has_extra and self._has(0.25):
            options["label_smoothing"] = random.choice((0.05, 0.4))
        if self._has(0.2):
            options["z_loss"] = random.choice((1e-3, 0.5))
        if len(self.shape) == 2 and self._has(0.2):
            options["shift"] = random.choice((1, 2))
        if self._has(0.3):
            maps = Softcap(2.0), GeneralizedSigsoftmax(-0.5, random.choice((0.4, 1.0, 2.5)))
            options["logit_map"] = random.choice((*maps, self._learned_map()))
        if self._has(0.3):
            scale = random.choice((0.5, 1.0, -1.3))
            if self._has(0.5):
                self.leaves["logit_scale"] = torch.tensor(scale, dtype=torch.float64)
            else:
                options["logit_scale"] = scale
        if self._has(0.5):
            options["chunk_bytes"] = random.choice((1, 100, 1000))
        if self.backend == "registered" and isinstance(options.get("logit_map"), PiecewiseLinear):
            self.backend = "auto"
        if (self.backend, self.reduction) == ("fused", "none"):
            self.backend = "chunked"
        if self.backend == "linear" and (self.K > 1 or self.has_extra):
            self.backend = "auto"

    def _weights(self, *shape):
        weight = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return weight * (weight > self.random.choice((0.0, 0.5, 1.0)))

    def _learned_map(self):
        found = PiecewiseLinear(4, 1.5, dtype=torch.float64).requires_grad_(False)
        found.score.copy_(self._normal(4))
        return found

    def tensors(self, dtype):
        return {
            name: x.to(dtype).detach().clone().requires_grad_() for name, x in self.leaves.items()
        }


def fast(case):
    """The loss of each token and the reduced one, by the package, and its leaves."""
    leaves = case.tensors(case.dtype)
    options = {
        name: copy.deepcopy(x).to(case.dtype) if hasattr(x, "to") else x
        for name, x in case.options.items()
    }
    given = {**options, "reduction": case.reduction, "ignore_index": case.ignore_index}
    if "logit_scale" in leaves:
        given["logit_scale"] = leaves["logit_scale"]
    target = case.ids if case.amount is None else (case.ids, case.amount.to(case.dtype))
    if case.backend == "linear":
        given["weight"] = given.pop("class_weight", None)
        del leaves["log_weight"]
        context = leaves["context"].squeeze(-2)
        loss = linear_cross_entropy(
            context, leaves["weight"], target, linear_bias=leaves.get("bias"), **given
        )
        return None, loss, leaves
    extra = (leaves["extra_weight"], leaves["extra_log_q"]) if case.has_extra else None
    mixture = leaves["context"], leaves["log_weight"], leaves["weight"]
    more = {"bias": leaves.get("bias"), "extra": extra, "backend": case.backend}
    found = mixture_loss(*mixture, target, **more, **given)
    return found.token_loss, found.loss, leaves


def slow(case):
    """The same by the definition."""
    leaves, options = case.tensors(torch.float64), case.options
    shift, leading = options.get("shift", 0), len(case.shape)
    ids, amount = (case.ids, case.amount) if case.is_soft else (case.ids[..., None], None)
    weight = options.get("token_weight", torch.ones(case.shape, dtype=torch.float64))
    time = leading - 1

    def cut(x, is_later):
        if not shift:
            return x.flatten(0, time) if leading else x[None]
        start = shift if is_later else 0
        return x.narrow(time, start, x.shape[time] - shift).flatten(0, time)

    context, log_weight = (cut(leaves[name], False) for name in ("context", "log_weight"))
    ids, weight = cut(ids, True), cut(weight, True)
    amount = torch.ones(ids.shape).double() if amount is None else cut(amount, True)
    is_target = ids != case.ignore_index  # (N, M)
    amount, ids = amount * is_target, ids.masked_fill(~is_target, 0)
    prob, lse = probabilities(case, leaves, context, log_weight)  # (N, V), (N, K)
    picked = prob.gather(-1, ids)  # (N, M)
    if case.has_extra:
        terms = leaves["extra_weight"] + leaves["extra_log_q"]
        picked = picked + cut(terms, False).exp().sum(-1, keepdim=True)
    class_weight = options.get("class_weight", torch.ones(case.V).double())
    epsilon = options.get("label_smoothing", 0.0)
    amount = amount * class_weight[ids] * (1 - epsilon)
    loss = cross_entropy(picked, amount)
    if epsilon:
        smoothing = (epsilon / case.V * class_weight).expand(prob.shape)
        loss = loss + cross_entropy(prob, smoothing)
    loss = loss + options.get("z_loss", 0.0) * (log_weight.exp() * lse.square()).sum(-1)
    mass = weight * (1 if case.is_soft else class_weight[ids[:, 0]])
    return *reduced(case, loss, weight, mass, is_target.any(-1)), leaves


def probabilities(case, leaves, context, log_weight):
    """p (N, V) of the softmaxes, and the log-sum-exps (N, K)."""
    scale = leaves.get("logit_scale", case.options.get("logit_scale", 1.0))
    logit_map, bias = case.options.get("logit_map"), leaves.get("bias")
    forbidden = torch.zeros(case.V, dtype=torch.bool) if bias is None else bias.isneginf()
    kept = (~forbidden).nonzero().squeeze(1)
    z = context @ leaves["weight"][kept].T  # (N, K, V')
    z = (z if bias is None else z + bias[kept]) * scale
    if isinstance(logit_map, Softcap):
        # It has a least value, which forbidden tokens have, too.
        z = logit_map.cap * (z / logit_map.cap).tanh()
        least = z.new_full((*z.shape[:-1], int(forbidden.sum())), -logit_map.cap)
        z, kept = torch.cat((z, least), -1), torch.cat((kept, forbidden.nonzero().squeeze(1)))
    elif isinstance(logit_map, GeneralizedSigsoftmax):
        z = z - (logit_map.slope - 1) * torch.log1p((logit_map.centre - z).exp())
    elif logit_map is not None:
        z = bent(z, logit_map)
    total = z.exp().sum(-1)  # (N, K)
    prob = torch.einsum("nk,nkv->nv", log_weight.exp() / total, z.exp())
    return prob.new_zeros(len(prob), case.V).index_copy(1, kept, prob), total.log()


def bent(z, logit_map):
    """A piecewise linear map, as a sum of what each segment adds."""
    slopes, limit = torch.log1p(logit_map.score.exp()), logit_map.limit
    width, found = 2 * limit / len(slopes), -limit
    for i, slope in enumerate(slopes):
        low = None if i == 0 else 0.0
        high = None if i == len(slopes) - 1 else width
        rise = z + limit - i * width
        found = found + slope * (rise if low is high is None else rise.clamp(low, high))
    return found


def cross_entropy(prob, amount):
    """-Σ amount · log prob (N,); +inf where a probability with an amount is 0."""
    impossible = (prob == 0) & (amount != 0)
    loss = -(amount * torch.where(prob == 0, 1.0, prob).log()).sum(-1)
    return torch.where(impossible.any(-1), torch.inf, loss)


def reduced(case, loss, weight, mass, is_kept):
    loss = torch.where(is_kept & (weight != 0), weight * loss, 0.0)  # (N,)
    possible = is_kept & (loss != torch.inf)
    options = case.options
    weighted = "token_weight" in options or "class_weight" in options
    divisor = (mass * possible).sum() if weighted else possible.sum()
    total = loss[possible].sum()
    if case.reduction == "none":
        # Its gradient is that of the possible ones.
        return loss.detach(), torch.where(possible, loss, 0.0)
    if case.reduction == "mean":
        total = total / divisor if divisor else 0.0 * torch.nan_to_num(total)
        if not divisor and bool((is_kept & ~possible).any()) is False:
            total = total + torch.nan
    return loss.detach(), total + (torch.inf if (loss == torch.inf).any() else 0.0)


def problem_of(number):
    """What is wrong with a case; None if nothing is."""
    case = Case(number)
    try:
        got_tokens, got, leaves = fast(case)
    except ValueError as error:
        is_expected = "shift must be below" in str(error) and min(case.shape[-1:], default=0) <= 2
        return None if is_expected else f"refused: {error}"
    want_tokens, want, slow_leaves = slow(case)
    pairs = [("loss", got.flatten(), want_tokens if case.reduction == "none" else want.flatten())]
    if got_tokens is not None:
        pairs.append(("token losses", got_tokens.flatten(), want_tokens))
    upstream = torch.randn(want.shape, generator=case.generator, dtype=torch.float64)
    pairs += gradients(got.reshape(want.shape), want, upstream, leaves, slow_leaves)
    wrong = [name for name, a, b in pairs if not is_close(a, b, TOLERANCE[case.dtype])]
    return (
        f"{', '.join(wrong)} of {case.backend}, {case.reduction}, {case.options}" if wrong else None
    )


def gradients(got, want, upstream, leaves, slow_leaves):
    """The gradients of both, 0 where there is none."""
    found = []
    for result, given in ((got, leaves), (want, slow_leaves)):
        tensors, factor = [given[name] for name in leaves], upstream.to(result.dtype)
        some = torch.autograd.grad(result, tensors, factor, allow_unused=True)
        found.append(
            [torch.zeros_like(x) if g is None else g for g, x in zip(some, tensors, strict=True)]
        )
    return [(f"gradient of {name}", *pair) for name, *pair in zip(leaves, *found, strict=True)]


def is_close(got, want, tolerance):
    finite = want[want.isfinite()].abs()
    largest = max(1.0, finite.max().item() if finite.numel() else 0.0)
    return torch.allclose(
        got.detach().double(), want.detach(), rtol=0, atol=tolerance * largest, equal_nan=True
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    wrong = 0
    for number in range(options.first, options.first + options.cases):
        problem = problem_of(number)
        if problem is not None:
            wrong += 1
            print(f"case {number}: {problem}", flush=True)
    print(f"{options.cases} cases, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
