"""Every backend with every option against a dense computation: values and all gradients, float64.

N tokens, K components, J further terms, M targets of a token, E embedding size, V vocabulary.
"""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank.ops.logit_map import GeneralizedSigsoftmax, Softcap
from highrank.ops.loss import REDUCTIONS
from highrank.ops.mixture_cross_entropy import mixture_loss

BACKENDS = ("reference", "chunked", "fused", "registered")
EVERY_WAY = [(b, r) for b in BACKENDS for r in REDUCTIONS if (b, r) != ("fused", "none")]
OPTIONS = ("class", "token", "zeros", "smoothing", "z-loss", "scale", "map", "shift", "soft")
TOGETHER = ("class", "token", "smoothing", "z-loss", "scale", "map", "shift")
EACH_OPTION = [
    *((name,) for name in (*OPTIONS, "extra")),
    *((), TOGETHER, ("extra", "z-loss", "token"), ("soft", "z-loss", "map", "shift")),
]
REFUSED = {
    ("class", "soft"): "class_weight must come with target ids, got probabilities",
    ("smoothing", "soft"): "label_smoothing must come with target ids, got probabilities",
    ("extra", "soft"): "extra must come with target ids, got probabilities",
    ("extra", "smoothing"): "label_smoothing must come without extra terms, got both",
}


class Case:
    """Tensors, options by name, and the loss: by a backend, or by log-probabilities of all."""

    def __init__(self, chosen=(), N=6, K=3, E=4, V=7, *, bias=True, scale=1.0, ignored=(), seed=0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        def positive(*shape):
            return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1

        self.N, self.V = N, V
        self.leaves = {"context": scale * normal(N, K, E), "prior": normal(N, K)}
        self.leaves |= {"weight": normal(V, E)} | ({"bias": normal(V)} if bias else {})
        self.target = torch.randint(V, (N,), generator=generator)
        if "impossible" in chosen:
            self.leaves["bias"][self.target[-1]] = -torch.inf
        self.target[list(ignored)] = -100
        self.shift = min(2, N - 1) if "shift" in chosen else 0
        made = {
            "class": {"class_weight": positive(V)},
            "token": {"token_weight": positive(N)},
            "zeros": {"token_weight": torch.arange(N).remainder(2).double()},
            "smoothing": {"label_smoothing": 0.2},
            "z-loss": {"z_loss": 0.1},
            "map": {"logit_map": Softcap(2.0)},
            "sigsoftmax": {"logit_map": GeneralizedSigsoftmax()},
            "shift": {"shift": self.shift},
        }
        self.options = {k: v for name in chosen for k, v in made.get(name, {}).items()}
        if "scale" in chosen:
            self.leaves["scale"] = positive()
        if "extra" in chosen:
            self.leaves |= {"gate": normal(N, 2), "constant": normal(N, 2)}
        if "soft" in chosen:
            ids = torch.stack([self.target, (self.target + 1) % V], -1)
            ids[self.target == -100] = -100
            ids[:1, 1] = -100
            self.target = (ids, positive(N, 2))
        for leaf in self.leaves.values():
            leaf.requires_grad_()

    def weights(self):
        """log-weights of the softmaxes (N, K), and of the further terms (N, J) or None."""
        prior = self.leaves["prior"]
        if "gate" not in self.leaves:
            return prior.log_softmax(-1), None
        both = torch.cat((prior, self.leaves["gate"]), -1).log_softmax(-1)
        return both.split([prior.shape[1], 2], -1)

    def output(self, **way):
        log_weight, gate = self.weights()
        extra = None if gate is None else (gate, self.leaves["constant"].log_softmax(-1))
        options = {**self.options, "logit_scale": self.leaves.get("scale"), **way}
        options |= {"bias": self.leaves.get("bias"), "extra": extra}
        context, weight = self.leaves["context"], self.leaves["weight"]
        return mixture_loss(context, log_weight, weight, self.target, **options)

    def loss(self, **way):
        return self.output(**way).loss

    def dense(self, reduction):
        (log_weight, gate), options = self.weights(), self.options
        logits = self.leaves["context"] @ self.leaves["weight"].T + self.leaves.get("bias", 0.0)
        logits = options.get("logit_map", lambda z: z)(logits * self.leaves.get("scale", 1.0))
        log_p = (log_weight[..., None] + logits.log_softmax(-1)).logsumexp(-2)  # (N, V)
        penalty = (log_weight.exp() * logits.logsumexp(-1).square()).sum(-1)  # (N,)
        ids, amount = self.target, torch.ones(self.N, 1).double()
        ids, amount = ids if isinstance(ids, tuple) else (ids[:, None], amount)  # (N, M)
        token_weight = options.get("token_weight", torch.ones(self.N).double())
        keep = self.N - self.shift
        log_p, penalty, token_weight = log_p[:keep], penalty[:keep], token_weight[self.shift :]
        ids, amount = ids[self.shift :], amount[self.shift :]
        is_target, known = ids != -100, ids.clamp(min=0)
        log_q = log_p.gather(-1, known)  # (N, M)
        if gate is not None:
            terms = (gate + self.leaves["constant"].log_softmax(-1))[:keep]  # (N, J)
            log_q = torch.cat((log_q, terms), -1).logsumexp(-1, keepdim=True)
        class_weight = options.get("class_weight", torch.ones(self.V).double())
        epsilon = options.get("label_smoothing", 0.0)
        log_q = torch.where(is_target, log_q, 0.0)
        loss = -(1 - epsilon) * (amount * class_weight[known] * log_q).sum(-1)
        if epsilon:
            loss = loss - epsilon * (log_p * class_weight).mean(-1)
        loss = (loss + options.get("z_loss", 0.0) * penalty) * token_weight
        loss = torch.where(token_weight == 0, 0.0, loss)
        mass = token_weight * (class_weight[known[:, 0]] if "class_weight" in options else 1.0)
        return reduced(loss, mass, is_target.any(-1), reduction)

    def gradients(self, loss):
        upstream = torch.linspace(0.5, 1.5, loss.numel(), dtype=torch.float64).reshape(loss.shape)
        leaves = list(self.leaves.values())
        found = torch.autograd.grad(loss, leaves, upstream, retain_graph=True, allow_unused=True)
        pairs = zip(found, leaves, strict=True)
        return [torch.zeros_like(leaf) if g is None else g for g, leaf in pairs]


def reduced(loss, mass, kept, reduction):
    """Impossible targets count in the value alone."""
    loss = torch.where(kept, loss, 0.0)
    possible = kept & (loss != torch.inf)
    if reduction == "none":
        return loss
    total = torch.where(possible, loss, 0.0).sum()
    if reduction == "mean":
        total = total / mass[possible].sum() if possible.any() else total * torch.nan
    return total if torch.equal(possible, kept) else total.nan_to_num() + torch.inf


def solved(case, loss):
    return loss.detach(), *case.gradients(loss)


@pytest.mark.parametrize("chosen", EACH_OPTION)
@pytest.mark.parametrize("backend, reduction", EVERY_WAY)
def test_every_option_is_that_of_a_dense_computation(agree, backend, reduction, chosen):
    case = Case(chosen, N=9, ignored=[3])
    got = solved(case, case.loss(backend=backend, reduction=reduction, chunk_bytes=400))
    agree(got, solved(case, case.dense(reduction)))


@st.composite
def cases(draw):
    """Sizes, options, and tokens and components that are impossible."""
    N, K, V = draw(st.integers(0, 7)), draw(st.integers(1, 4)), draw(st.integers(1, 9))
    chosen = draw(st.sets(st.sampled_from((*OPTIONS, "sigsoftmax", "extra")), max_size=3))
    sizes = {
        "bias": draw(st.booleans()),
        "scale": draw(st.sampled_from([0.1, 1.0, 30.0, 3000.0])),
        "ignored": draw(st.sets(st.integers(0, max(0, N - 1)), max_size=N)),
        "seed": draw(st.integers(0, 2**32)),
    }
    chosen -= {"shift"} if N < 2 else set()
    case = Case(chosen, N, K, draw(st.integers(1, 5)), V, **sizes)
    impossible = draw(st.sets(st.integers(0, V - 1), max_size=V - 1)) if sizes["bias"] else set()
    idle = draw(st.sets(st.integers(0, K - 1), max_size=K - 1))
    with torch.no_grad():
        case.leaves["prior"][:, list(idle)] = -torch.inf
        if impossible:
            case.leaves["bias"][list(impossible)] = -torch.inf
    return chosen, case, impossible, draw(st.integers(1, 8 * 3 * K * V))


@settings(max_examples=300)
@given(drawn=cases(), way=st.sampled_from(EVERY_WAY))
def test_options_together_are_those_of_a_dense_computation(agree, drawn, way):
    (chosen, case, impossible, chunk_bytes), (backend, reduction) = drawn, way
    refused = [text for names, text in REFUSED.items() if set(names) <= chosen]
    if refused:
        with pytest.raises(ValueError) as caught:
            case.loss(backend=backend, reduction=reduction)
        assert str(caught.value) in refused
        return
    loss, want = case.loss(reduction=reduction, backend="reference"), case.dense(reduction)
    agree([loss.detach()], [want.detach()])
    reference = solved(case, loss)
    # Where a token is impossible, autograd makes NaN of the dense computation.
    if not impossible and not want.isnan().any():
        agree(reference[1:], case.gradients(want))
    got = case.loss(backend=backend, reduction=reduction, chunk_bytes=chunk_bytes)
    agree(solved(case, got), reference)
    # The gradient of a scale is that of the bias times the bias: 0 · inf.
    assert "scale" in chosen or all(gradient.isfinite().all() for gradient in reference[1:])


# By number of processes: even as far as V allows, uneven, one without any row.
CUTS = {
    2: {"even": (0, 4, 7), "uneven": (0, 6, 7), "empty": (0, 7, 7)},
    3: {"even": (0, 3, 5, 7), "uneven": (0, 1, 6, 7), "empty": (0, 4, 4, 7)},
}
SHARDED = [
    *((case, {}, "even") for case in (*EACH_OPTION, ("impossible",))),
    *(((), sizes, "even") for sizes in ({"bias": False}, {"ignored": range(9)})),
    *((case, {}, cut) for case in ((), TOGETHER) for cut in ("uneven", "empty")),
]


def sharded(cut, chosen, sizes, way):
    """Losses, by-products and gradients, of rows cut[rank] … cut[rank + 1] or of all if None.

    Of two backward passes, the second one recomputes.
    """
    case = Case(chosen, **{"N": 9, "ignored": [3], **sizes})
    if cut is not None:
        start, stop = cut[dist.get_rank() : dist.get_rank() + 2]
        for name in {"weight", "bias"} & case.leaves.keys():
            case.leaves[name] = case.leaves[name].detach()[start:stop].requires_grad_()
        way = {**way, "shard": (start, stop)}
    also = ("lse",) if "extra" in chosen else ("lse", "prediction", "entropy")
    out = case.output(also=also, **way)
    found = {"token_loss": out.token_loss, "loss": out.loss, **out.by_products}
    for backward in ("first", "second"):
        gradients = zip(case.leaves, case.gradients(out.loss), strict=True)
        found |= {f"{backward} {name}": gradient for name, gradient in gradients}
    return {name: x.detach() for name, x in found.items()}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("chosen, sizes, name", SHARDED)
def test_every_option_of_shards_is_that_of_one_process(
    processes, agree, chosen, sizes, name, reduction
):
    cut = CUTS[processes.size][name]
    way = {"reduction": reduction, "chunk_bytes": 200 if name == "even" else None}
    parts = processes(sharded, cut, chosen, sizes, way)
    want = sharded(None, chosen, sizes, {"reduction": reduction, "backend": "reference"})
    for key, value in want.items():
        if key.endswith((" weight", " bias")):
            agree([torch.cat([part[key] for part in parts])], [value])
        else:
            agree([part[key] for part in parts], [value] * len(parts))
