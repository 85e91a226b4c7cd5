"""Any options together, on any backend, against a dense computation: values and gradients.

N tokens, K components, J further terms, M targets of a token, E embedding size, V vocabulary.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank.ops.logit_map import GeneralizedSigsoftmax, Softcap
from highrank.ops.mixture_cross_entropy import mixture_loss

N, K, E, V = 6, 3, 4, 7
BACKENDS = ("reference", "chunked", "fused", "registered")
OPTIONS = ("class", "token", "smoothing", "z-loss", "scale", "map", "shift", "soft", "extra")


@st.composite
def cases(draw):
    """Two or three options at once, and where they are applied."""
    chosen = draw(st.sets(st.sampled_from(OPTIONS), min_size=2, max_size=3))
    case = {
        "backend": draw(st.sampled_from(BACKENDS)),
        "reduction": draw(st.sampled_from(("mean", "sum", "none"))),
        "bias": draw(st.booleans()),
        "ignored": draw(st.sets(st.integers(0, N - 1), max_size=N - 1)),
        "impossible": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32)),
    }
    if case["backend"] == "fused" and case["reduction"] == "none":
        case["backend"] = "chunked"
    return chosen, case


class Problem:
    """The tensors of a case, its options, and its loss by log-probabilities of all tokens."""

    def __init__(self, chosen, case):
        generator = torch.Generator().manual_seed(case["seed"])

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        def positive(*shape):
            return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1

        self.leaves = {"context": normal(N, K, E), "prior": normal(N, K), "weight": normal(V, E)}
        self.leaves |= {"bias": normal(V)} if case["bias"] else {}
        self.target = torch.randint(V, (N,), generator=generator)
        if case["impossible"] and case["bias"]:
            self.leaves["bias"][self.target[-1]] = -torch.inf
        self.target[list(case["ignored"])] = -100
        self.shift = 2 if "shift" in chosen else 0
        made = {
            "class": {"class_weight": positive(V)},
            "token": {"token_weight": positive(N)},
            "smoothing": {"label_smoothing": 0.2},
            "z-loss": {"z_loss": 0.1},
            "map": {"logit_map": Softcap(2.0) if case["seed"] % 2 else GeneralizedSigsoftmax()},
            "shift": {"shift": self.shift},
        }
        self.options = {k: v for n in chosen if n in made for k, v in made[n].items()}
        if "scale" in chosen:
            self.leaves["scale"] = positive()
        if "extra" in chosen:
            self.leaves |= {"gate": normal(N, 2), "constant": normal(N, 2)}
        if "soft" in chosen:
            ids = torch.stack([self.target, (self.target + 1) % V], -1)
            ids[self.target == -100] = -100
            self.target = (ids, positive(N, 2))
        self.leaves = {name: leaf.requires_grad_() for name, leaf in self.leaves.items()}

    def weights(self):
        """log-weights of the softmaxes (N, K), and of the further terms (N, J) or None."""
        prior = self.leaves["prior"]
        if "gate" not in self.leaves:
            return prior.log_softmax(-1), None
        both = torch.cat((prior, self.leaves["gate"]), -1).log_softmax(-1)
        return both[:, :K], both[:, K:]

    def streamed(self, **way):
        log_weight, gate = self.weights()
        context, weight = self.leaves["context"], self.leaves["weight"]
        extra = None if gate is None else (gate, self.leaves["constant"].log_softmax(-1))
        options = {**self.options, "logit_scale": self.leaves.get("scale"), **way}
        given = {"bias": self.leaves.get("bias"), "extra": extra, "chunk_bytes": 400}
        return mixture_loss(context, log_weight, weight, self.target, **given, **options)

    def dense(self, reduction):
        log_weight, gate = self.weights()
        logits = self.leaves["context"] @ self.leaves["weight"].T + self.leaves.get("bias", 0.0)
        logits = logits * self.leaves.get("scale", 1.0)
        logits = self.options.get("logit_map", lambda z: z)(logits)
        log_p = (log_weight[..., None] + logits.log_softmax(-1)).logsumexp(-2)  # (N, V)
        ids, amount = self.target, torch.ones(N, 1).double()
        ids, amount = ids if isinstance(ids, tuple) else (ids[:, None], amount)  # (N, M)
        penalty = (log_weight.exp() * logits.logsumexp(-1).square()).sum(-1)  # (N,)
        of_token = self.options.get("token_weight", torch.ones(N).double())
        if self.shift:
            keep = N - self.shift
            log_p, penalty, of_token = log_p[:keep], penalty[:keep], of_token[self.shift :]
            ids, amount = ids[self.shift :], amount[self.shift :]
            gate = None if gate is None else gate[:keep]
        kept = (ids != -100).any(-1)
        known = ids.clamp(min=0)
        nll = -log_p.gather(-1, known)  # (N, M)
        if gate is not None:
            constant = self.leaves["constant"].log_softmax(-1)[: len(gate)]
            nll = -torch.cat((-nll, gate + constant), -1).logsumexp(-1, keepdim=True)
        of_class = self.options.get("class_weight", torch.ones(V).double())
        mass = of_token * (of_class[known[:, 0]] if "class_weight" in self.options else 1.0)
        epsilon = self.options.get("label_smoothing", 0.0)
        loss = (1 - epsilon) * (amount * of_class[known] * nll).sum(-1)
        if epsilon:
            loss = loss - epsilon * (log_p * of_class).mean(-1)
        loss = (loss + self.options.get("z_loss", 0.0) * penalty) * of_token
        return self.reduced(loss, mass, kept, reduction)

    def reduced(self, loss, mass, kept, reduction):
        """Impossible targets count in the value alone."""
        loss = torch.where(kept, loss, 0.0)
        possible = kept & (loss != torch.inf)
        if reduction == "none":
            return torch.where(loss == torch.inf, torch.inf, loss)
        total = torch.where(possible, loss, 0.0).sum()
        if reduction == "mean":
            count = mass[possible].sum()
            total = total / count if possible.any() else total * torch.nan
        return total if torch.equal(possible, kept) else total.nan_to_num() + torch.inf


REFUSED = {
    ("class", "soft"): "class_weight must come with target ids, got probabilities",
    ("smoothing", "soft"): "label_smoothing must come with target ids, got probabilities",
    ("extra", "soft"): "extra must come with target ids, got probabilities",
    ("extra", "smoothing"): "label_smoothing must come without extra terms, got both",
}


@settings(max_examples=120)
@given(case=cases())
def test_options_together_are_those_of_a_dense_computation(agree, case):
    chosen, case = case
    problem, way = Problem(chosen, case), {n: case[n] for n in ("backend", "reduction")}
    refused = [text for names, text in REFUSED.items() if set(names) <= chosen]
    if refused:
        with pytest.raises(ValueError) as caught:
            problem.streamed(**way)
        assert str(caught.value) in refused
        return
    leaves = list(problem.leaves.values())
    got, want = problem.streamed(**way).loss, problem.dense(case["reduction"])
    agree([got.detach()], [want.detach()])
    # The gradients of impossible targets are not those of a dense computation.
    if case["impossible"] or want.isnan().any():
        return
    upstream = torch.linspace(0.5, 1.5, want.numel(), dtype=torch.float64).reshape(want.shape)
    found = [
        torch.autograd.grad(x, leaves, upstream, allow_unused=True, materialize_grads=True)
        for x in (got, want)
    ]
    agree(*found)
