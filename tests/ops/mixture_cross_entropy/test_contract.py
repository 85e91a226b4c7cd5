"""Every backend with every option against a dense computation: values and all gradients, float64.

N tokens, K components, J further terms, M targets of a token, E embedding size, V vocabulary.
"""

import pytest
import scipy.special
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank.ops.logit_map import GeneralizedSigsoftmax, PiecewiseLinear, Softcap
from highrank.ops.loss import REDUCTIONS
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss

BACKENDS = ("reference", "chunked", "fused", "registered")
EVERY_WAY = [(b, r) for b in BACKENDS for r in REDUCTIONS if (b, r) != ("fused", "none")]
OPTIONS = ("class", "token", "zeros", "smoothing", "z-loss", "scale", "map", "shift", "soft")
TOGETHER = ("class", "token", "smoothing", "z-loss", "scale", "map", "shift")
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

    def loss(self, **way):
        log_weight, gate = self.weights()
        extra = None if gate is None else (gate, self.leaves["constant"].log_softmax(-1))
        options = {**self.options, "logit_scale": self.leaves.get("scale"), **way}
        return mixture_cross_entropy(
            self.leaves["context"],
            log_weight,
            self.leaves["weight"],
            self.target,
            bias=self.leaves.get("bias"),
            extra=extra,
            **options,
        )

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
        loss = -(1 - epsilon) * (is_target * amount * class_weight[known] * log_q).sum(-1)
        if epsilon:
            loss = loss - epsilon * (log_p * class_weight).mean(-1)
        loss = (loss + options.get("z_loss", 0.0) * penalty) * token_weight
        loss = torch.where(token_weight == 0, 0.0, loss)
        mass = token_weight * (class_weight[known[:, 0]] if "class_weight" in options else 1.0)
        return reduced(loss, mass, is_target.any(-1), reduction)

    def gradients(self, loss):
        upstream = torch.linspace(0.5, 1.5, loss.numel(), dtype=torch.float64).reshape(loss.shape)
        leaves = list(self.leaves.values())
        found = torch.autograd.grad(loss, leaves, upstream, allow_unused=True)
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


@pytest.mark.parametrize("chosen", [(), *((name,) for name in (*OPTIONS, "extra")), TOGETHER])
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


def naive_losses(inputs, cap):
    """In probabilities, by SciPy: softmax, weigh, sum over the components, logarithm."""
    logits = (inputs.context @ inputs.weight.T + inputs.bias).numpy()
    if cap is not None:
        logits = cap * scipy.special.expit(2 * logits / cap) * 2 - cap
    share = scipy.special.softmax(inputs.log_weight.numpy(), axis=-1)
    prob = (share[..., None] * scipy.special.softmax(logits, axis=-1)).sum(-2)
    return -torch.from_numpy(prob[range(9), inputs.target]).log()


@pytest.mark.parametrize("logit_map", [None, Softcap(2.0)])
def test_the_definition_is_minus_the_log_of_the_weighted_softmaxes(problem, solve, logit_map):
    inputs = problem()
    want = naive_losses(inputs, logit_map and logit_map.cap)
    options = {"logit_map": logit_map, "backend": "reference"}
    for reduction, reduce in {"none": lambda x: x, "sum": torch.sum, "mean": torch.mean}.items():
        got = solve(inputs, reduction=reduction, **options)[0]
        torch.testing.assert_close(got, reduce(want))


def torch_solution(inputs, loss_of, reduction, **options):
    """The loss and its gradients for one component, by one of torch's functions."""
    leaves = [t.detach().requires_grad_() for t in (inputs.context, inputs.weight, inputs.bias)]
    loss = loss_of(leaves[0].squeeze(-2), *leaves[1:], inputs.target, reduction, **options)
    return loss.detach(), *torch.autograd.grad(loss, leaves, torch.ones_like(loss))


def cross_entropy(context, weight, bias, target, reduction, **options):
    logits = F.linear(context, weight, bias)
    renamed = {"weight" if key == "class_weight" else key: x for key, x in options.items()}
    return F.cross_entropy(logits, target, reduction=reduction, **renamed)


def linear_cross_entropy(context, weight, bias, target, reduction):
    return F.linear_cross_entropy(
        context, weight, target, linear_bias=bias, reduction=reduction, ignore_index=-100
    )


LOSSES = [
    (cross_entropy, {}),
    (cross_entropy, {"class_weight": torch.linspace(0.5, 2, 7).double(), "label_smoothing": 0.1}),
    *([(linear_cross_entropy, {})] if hasattr(F, "linear_cross_entropy") else []),
]


@pytest.mark.parametrize("ignored", [[], [0, 3, 8]], ids=["all", "some ignored"])
@pytest.mark.parametrize("loss_of, options", LOSSES)
def test_one_component_is_torchs_cross_entropy(
    problem, solve, agree, way, loss_of, options, ignored
):
    inputs = problem(K=1)
    inputs.target[ignored] = -100
    loss, d_context, d_log_weight, *shared = solve(inputs, **way, **options, chunk_bytes=100)
    agree((loss, d_context, *shared), torch_solution(inputs, loss_of, way["reduction"], **options))
    assert (d_log_weight[ignored] == 0).all()
    if not options:
        # One component of weight one has the whole responsibility: -1, scaled as the loss is.
        scale = 9 - len(ignored) if way["reduction"] == "mean" else 1
        want = -(inputs.target != -100)[:, None].double() / scale
        torch.testing.assert_close(d_log_weight, want)


@pytest.mark.parametrize("without", ["tokens", "targets", "weights"])
def test_without_any_target_the_loss_is_as_in_torch_and_the_gradients_are_zero(
    problem, solve, agree, way, without
):
    inputs = problem((0 if without == "tokens" else 5,), K=1)
    options = {}
    if without == "targets":
        inputs.target.fill_(-100)
    elif without == "weights":
        options["token_weight"] = torch.zeros(5).double()
    loss, *gradients = solve(inputs, **way, **options)
    assert loss.isnan() if way["reduction"] == "mean" else (loss == 0).all()
    assert not any(gradient.any() for gradient in gradients)
    if not options:
        agree([loss], torch_solution(inputs, cross_entropy, way["reduction"])[:1])


def strided(inputs):
    """Nothing is contiguous."""
    found = inputs._replace(
        context=inputs.context.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1),
        log_weight=inputs.log_weight.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        weight=inputs.weight.T.contiguous().T,
        bias=torch.stack([inputs.bias, inputs.bias], -1)[:, 0],
        target=inputs.target.T.contiguous().T,
    )
    assert not any(t.is_contiguous() for t in found)
    return found


def expanded(inputs):
    """All tokens are the first one, without a copy."""
    names = ("context", "log_weight", "target")
    tensors = [getattr(inputs, name) for name in names]
    new = [t[:1, :1].expand(t.shape) for t in tensors]
    return inputs._replace(**dict(zip(names, new, strict=True)))


@pytest.mark.parametrize(
    "shape, change",
    [((4, 9), strided), ((4, 9), expanded), *(((2, n, 2), None) for n in (3, 0)), ((1,), None)],
)
def test_tokens_are_the_leading_dimensions_in_any_memory_layout(
    problem, solve, agree, way, shape, change
):
    inputs = problem(shape) if change is None else change(problem(shape))
    flat = inputs._replace(
        context=inputs.context.reshape(-1, 3, 4).contiguous(),
        log_weight=inputs.log_weight.reshape(-1, 3).contiguous(),
        weight=inputs.weight.contiguous(),
        target=inputs.target.reshape(-1).contiguous(),
    )
    got = solve(inputs, chunk_bytes=400, **way)
    want = solve(flat, **(way | {"backend": "reference"}))
    agree(got, [w.reshape(g.shape) for w, g in zip(want, got, strict=True)])


def test_one_token_needs_no_dimension(problem, solve, agree, way):
    inputs = problem(())
    one = type(inputs)(*(x[None] if i in (0, 1, 4) else x for i, x in enumerate(inputs)))
    got = solve(inputs, **way)
    agree(got, [w.reshape(g.shape) for w, g in zip(solve(one, **way), got, strict=True)])


@pytest.mark.parametrize(
    "dtype, V",
    [(torch.int32, 7), (torch.int8, 300), (torch.uint8, 300), (torch.int16, 40_000)],
    ids=str,
)
def test_targets_of_any_integer_type_mean_the_same(problem, solve, agree, way, dtype, V):
    # V does not fit into the narrow types, nor -100 into uint8, where it would become 156.
    inputs = problem(V=V)._replace(target=torch.tensor([0, 1, 100, 5, 6, 99, 127, 7, 0]) % V)
    agree(solve(inputs._replace(target=inputs.target.to(dtype)), **way), solve(inputs, **way))
    unsigned = problem((1,), V=200)._replace(target=torch.tensor([156], dtype=torch.uint8))
    assert solve(unsigned, **way)[0] > 0


@pytest.mark.parametrize("ignore_index", [-1, 2])
def test_any_index_can_be_the_ignored_one(problem, solve, agree, way, ignore_index):
    inputs, ignored = problem(), torch.arange(9) % 3 == 1
    inputs.target[inputs.target == 2] = 3
    usual = inputs._replace(target=inputs.target.masked_fill(ignored, -100))
    other = inputs._replace(target=inputs.target.masked_fill(ignored, ignore_index))
    got = solve(other, ignore_index=ignore_index, chunk_bytes=400, **way)
    agree(got, solve(usual, **(way | {"backend": "reference"})))


def test_the_token_losses_carry_gradients_only_without_reduction(problem, way):
    context, log_weight, weight, bias, target = problem()
    target[2] = -100
    weight.requires_grad_()
    token_loss, loss, _ = mixture_loss(context, log_weight, weight, target, bias=bias, **way)
    reduction = way["reduction"]
    assert token_loss[2] == 0 and token_loss.requires_grad == (reduction == "none")
    counted = token_loss[target != -100]
    want = token_loss if reduction == "none" else getattr(counted, reduction)()
    torch.testing.assert_close(loss, want)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}], ids=["plain", "general"])
def test_by_products_are_those_of_the_mixture(problem, way, options):
    context, log_weight, weight, bias, target = problem((4, 3))
    target[0, 1] = -100
    also = ("lse", "prediction", "entropy", "log_weight")
    given = {"bias": bias, "also": also, "chunk_bytes": 200, **way, **options}
    found = mixture_loss(context, log_weight, weight, target, **given).by_products
    logits = F.linear(context, weight, bias)
    log_p = (log_weight[..., None] + logits.log_softmax(-1)).logsumexp(-2)
    want = {
        "lse": logits.logsumexp(-1),
        "prediction": log_p.argmax(-1),
        "entropy": -(log_p.exp() * log_p).sum(-1),
    }
    kept = target != -100
    for name, value in want.items():
        torch.testing.assert_close(found[name][kept], value[kept])
        assert found[name].shape == value.shape and not found[name][~kept].any()
    assert found["log_weight"] is log_weight
    nothing = torch.full_like(target, -100)
    found = mixture_loss(context, log_weight, weight, nothing, **given).by_products
    assert not any(found[name].any() or found[name].shape != want[name].shape for name in want)


def test_a_learned_map_is_trained_by_the_reference_alone(problem):
    context, log_weight, weight, bias, target = problem()
    learned, options = PiecewiseLinear(5).double(), {"bias": bias}
    given = (context, log_weight, weight, target)
    loss = mixture_cross_entropy(*given, logit_map=learned, backend="reference", **options)
    loss.backward()
    assert learned.score.grad.any()
    learned.requires_grad_(False)
    torch.testing.assert_close(mixture_cross_entropy(*given, logit_map=learned, **options), loss)
