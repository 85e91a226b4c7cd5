"""`head_kl` for every head, on both sides, and its options; random mixtures are in `invariants`."""

import contract
import pytest
import torch
from contract import V, make_head, make_window
from torch import nn

from highrank import MixtureOfSoftmaxes, Softmax, head_kl
from highrank.heads.linear import LinearHead
from highrank.integrations.huggingface.output_layer import HeadOutputLayer
from highrank.ops import mixture_log_prob as log_prob_module
from highrank.ops.divergence import DIRECTIONS, divergence, sides
from highrank.ops.logit_map import Softcap


def gradients_of(loss, head, hidden):
    leaves = [hidden, *head.parameters()]
    found = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def assert_close(found, want):
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.fixture
def pair():
    """A mixture and a softmax with hidden states: student, its states, teacher, its states."""
    student, teacher = make_head("mos"), make_head("softmax")
    hidden = torch.randn(2, 4, 3, 6, dtype=torch.float64).requires_grad_()
    return student, hidden[0], teacher, hidden[1]


@pytest.mark.parametrize("name", contract.NAMES)
def test_every_head_is_a_student_and_a_teacher(name):
    head, softmax = make_head(name), make_head("softmax, context")
    hidden, _, past = make_window(head)
    states = torch.randn(*hidden.shape[:-1], 6, dtype=torch.float64)
    hidden.requires_grad_(), states.requires_grad_()
    for direction in DIRECTIONS:
        log_p, log_q = head.log_prob(hidden, **past), softmax.log_prob(states)
        found = head_kl(head, hidden, softmax, states, direction, 1.5, student_past=past)
        want = divergence(log_p, log_q.detach(), direction, 1.5).mean()
        assert_close([found], [want])
        assert_close(gradients_of(found, head, hidden), gradients_of(want, head, hidden))
        found = head_kl(softmax, states, head, hidden, direction, 1.5, teacher_past=past)
        want = divergence(log_q, head.log_prob(hidden, **past).detach(), direction, 1.5).mean()
        assert_close([found], [want])
        assert_close(gradients_of(found, softmax, states), gradients_of(want, softmax, states))


@pytest.mark.parametrize("backend", ["auto", "dense"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_table_has_all_tokens_and_all_of_the_vocabulary(watch, monkeypatch, backend, direction):
    """Neither in the forward pass nor in the backward pass, and no smaller one by components."""
    N, size, memory = 60, 800, 8 * 3 * 800
    monkeypatch.setattr(sides, "CHUNK_BYTES", memory)
    monkeypatch.setattr(sides, "BLOCK_NUMBERS", 2**13)
    for name, value in (("CHUNK_BYTES", memory), ("MOST_BYTES", 1)):
        monkeypatch.setattr(log_prob_module, name, value)
    student, teacher = MixtureOfSoftmaxes(6, size, 3, 4).double(), Softmax(6, size).double()
    hidden = torch.randn(N, 6).double().requires_grad_()
    for options in ({}, {"trains_teacher": True}):
        with watch() as seen:
            head_kl(
                student, hidden, teacher, hidden, direction, backend=backend, **options
            ).backward()
        assert max(seen.sizes) < N * size / 2


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_logits_that_are_kept_change_nothing(direction, monkeypatch):
    """Those of several chunks, in as much memory as the gradient of the weight."""
    torch.manual_seed(0)
    N, V, E = 30, 50, 12
    student, teacher = Softmax(E, V).double(), Softmax(E, V).double()
    hidden, other = torch.randn(2, N, E, dtype=torch.float64, requires_grad=True)
    for name, value in (("CHUNK_BYTES", 8 * V), ("LEAST_TOKENS", 5), ("BLOCK_NUMBERS", 200)):
        monkeypatch.setattr(sides, name, value)
    source = sides.Softmaxes(hidden[:, None], hidden.new_zeros(N, 1), student.weight, None, None)
    sizes = sides.Sizes.of(source, source, torch.float64, None, True)
    assert sizes.keeps and sizes.tokens == 5 and 2 * sizes.tokens < E
    found = head_kl(student, hidden, teacher, other, direction)
    want = head_kl(student, hidden, teacher, other, direction, chunk_bytes=1)
    assert_close([found], [want])
    assert_close(gradients_of(found, student, hidden), gradients_of(want, student, hidden))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("backend", ["auto", "dense"])
def test_gradients_are_those_of_differences(pair, direction, backend):
    student, hidden, teacher, other = pair
    other, options = other.detach(), {"direction": direction, "temperature": 0.6}

    def losses(hidden, *_):
        return head_kl(
            student, hidden, teacher, other, reduction="none", backend=backend, **options
        )

    inputs = [hidden.detach().requires_grad_(), *student.parameters()]
    assert torch.autograd.gradcheck(losses, inputs)


@pytest.mark.parametrize("backend", ["auto", "dense"])
def test_reductions_and_positions_that_do_not_count(pair, backend):
    mask = torch.rand(4, 3) < 0.6
    mask[0, 0], target = True, torch.randint(V, (4, 3))
    target[mask] = -100
    each = head_kl(*pair, reduction="none", backend=backend)
    assert each.shape == (4, 3) and (each > 0).all()
    for options, kept in (({"mask": mask}, mask), ({"target": target}, ~mask)):
        for reduction, want in {
            "none": each * kept, "sum": each[kept].sum(), "mean": each[kept].mean()
        }.items():  # fmt: skip
            found = head_kl(*pair, reduction=reduction, backend=backend, **options)
            assert_close([found], [want])
    both = head_kl(*pair, reduction="sum", mask=mask, target=target, backend=backend)
    assert both == 0 and not gradients_of(both, pair[0], pair[1])[1].any()


@pytest.mark.parametrize("backend", ["auto", "dense"])
def test_nothing_to_compare_is_nan_with_gradients_of_zero(pair, backend):
    student, hidden, teacher, other = (x[:0] if isinstance(x, torch.Tensor) else x for x in pair)
    loss = head_kl(student, hidden, teacher, other, backend=backend)
    assert loss.isnan()
    for parameter, gradient in zip(
        student.parameters(), torch.autograd.grad(loss, student.parameters()), strict=True
    ):
        assert gradient.shape == parameter.shape and not gradient.any()


def test_the_teacher_learns_only_if_it_is_asked_for(pair):
    student, hidden, teacher, other = pair
    found = head_kl(*pair, "js", trains_teacher=True)
    want = divergence(student.log_prob(hidden), teacher.log_prob(other), "js").mean()
    assert_close(gradients_of(found, teacher, other), gradients_of(want, teacher, other))
    assert_close(gradients_of(found, student, hidden), gradients_of(want, student, hidden))
    for backend in ("auto", "dense"):
        loss = head_kl(*pair, backend=backend)
        assert not any(g.any() for g in gradients_of(loss, teacher, other))


def test_linear_layers_and_output_layers_of_upgraded_models_are_heads(pair):
    student, hidden, teacher, other = pair
    layer = nn.Linear(6, V).double()
    layer.weight, layer.bias = teacher.weight, teacher.bias
    want = head_kl(student, hidden, teacher, other)
    assert_close([head_kl(student, hidden, layer, other)], [want])
    assert_close(
        [head_kl(layer, other, student, hidden)], [head_kl(teacher, other, student, hidden)]
    )
    scaled = HeadOutputLayer(student, scale=0.5)
    assert_close([head_kl(scaled, hidden * 2, layer, other)], [want])
    stored = LinearHead(layer.weight, layer.bias, scale=0.5, softcap=2.0)
    capped = Softmax(6, V).double()
    capped.weight, capped.bias = layer.weight, nn.Parameter(layer.bias.detach() / 2)
    capped.logit_map = Softcap(2.0)
    found = head_kl(student, hidden, stored, other)
    assert_close([found], [head_kl(student, hidden, capped, other / 2)])


@pytest.mark.parametrize("backend", ["auto", "dense"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tokens_that_are_ruled_out(pair, backend, direction):
    student, hidden, teacher, other = pair
    leaves = [hidden, *student.parameters()]
    with torch.no_grad():
        student.bias[:3] = teacher.bias[:3] = -torch.inf
    found = head_kl(*pair, direction, backend=backend)
    kept = torch.cat((student.log_prob(hidden), teacher.log_prob(other))).detach()[..., 3:]
    want = divergence(*kept.view(2, 4, 3, V - 3), direction).mean()
    assert_close([found], [want])
    assert all(g.isfinite().all() for g in torch.autograd.grad(found, leaves))
    # One of them is possible for the first distribution alone.
    first = teacher if direction == "forward" else student
    with torch.no_grad():
        first.bias[1] = 0.5
    found = head_kl(*pair, direction, backend=backend)
    assert found.isfinite() if direction == "js" else found == torch.inf
    gradients = torch.autograd.grad(found, leaves)
    assert all(g.isfinite().all() for g in gradients)
    assert direction == "js" or not any(g.any() for g in gradients)


@pytest.mark.parametrize("components", [1, 3])
def test_logits_that_no_exponent_can_hold(components):
    student, teacher = Softmax(4, 300), MixtureOfSoftmaxes(4, 300, components, 4)
    hidden = torch.randn(5, 4)
    with torch.no_grad():
        # The largest come last; blocks are smaller than the vocabulary.
        student.bias[:], teacher.bias[:] = (
            torch.linspace(-900, 0, 300),
            torch.linspace(-800, 5, 300),
        )
    options = {"reduction": "none", "chunk_bytes": 1}
    for direction in DIRECTIONS:
        found = head_kl(student, hidden, teacher, hidden, direction, **options)
        want = divergence(student.log_prob(hidden), teacher.log_prob(hidden), direction)
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_autocast", [False, True])
def test_half_precision_is_summed_in_float32(is_autocast):
    torch.manual_seed(0)
    student, teacher = Softmax(16, 3000), MixtureOfSoftmaxes(16, 3000, 3, 16)
    for head in (student, teacher):
        nn.init.normal_(head.weight)
    hidden = torch.randn(40, 16)
    leaves = [student.weight, student.bias]
    want = head_kl(student, hidden, teacher, hidden)
    wanted = torch.autograd.grad(want, leaves)
    if not is_autocast:
        student, teacher, hidden = student.bfloat16(), teacher.bfloat16(), hidden.bfloat16()
        leaves = [student.weight, student.bias]
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        loss = head_kl(student, hidden, teacher, hidden)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, want, rtol=0.01, atol=0.0)
    for found, gradient, leaf in zip(
        torch.autograd.grad(loss, leaves), wanted, leaves, strict=True
    ):
        assert found.dtype == leaf.dtype
        assert (found - gradient).norm() < 0.02 * gradient.norm()


def test_a_second_backward_pass_has_the_same_gradients_and_second_derivatives_are_refused(pair):
    student, hidden, *_ = pair
    loss = head_kl(*pair)
    first, second = (torch.autograd.grad(loss, [hidden], retain_graph=True)[0] for _ in range(2))
    assert_close([first], [second])
    (gradient,) = torch.autograd.grad(loss, [student.weight], create_graph=True)
    with pytest.raises(RuntimeError, match="Second derivatives of a streamed divergence"):
        gradient.sum().backward()


def test_torch_func_goes_through_tables():
    student, teacher = (nn.Linear(6, V).double() for _ in range(2))
    hidden = torch.randn(5, 6).double()
    found = torch.func.grad(lambda h: head_kl(student, h, teacher, hidden))(hidden)
    own = hidden.clone().requires_grad_()
    want = torch.autograd.grad(head_kl(student, own, teacher, hidden), [own])
    assert_close([found], want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"direction": "both"}, "direction must be one of .*, got 'both'"),
        ({"temperature": 0.0}, "temperature must be positive and finite, got 0.0"),
        ({"reduction": "max"}, "reduction must be one of"),
        ({"backend": "fused"}, "backend must be one of .*, got 'fused'"),
        ({"chunk_bytes": 0}, "chunk_bytes must be at least 1, got 0"),
        ({"mask": torch.ones(4, 3)}, "mask must be bool, got torch.float32"),
        ({"mask": torch.ones(4).bool()}, r"mask must be \(4, 3\), got \(4,\)"),
        ({"teacher": Softmax(6, 9).double()}, "the student's vocabulary of 11, got 9"),
        ({"teacher_hidden": torch.zeros(4, 6).double()}, r"positions \(4, 3\), got \(4,\)"),
        ({"student_past": {"tokens": torch.zeros(4, 3)}}, "tokens must be left out for"),
        ({"teacher_past": {"state": torch.zeros(4, 3)}}, "state must be left out for"),
    ],
)
def test_wrong_arguments_are_named(pair, change, message):
    names = ("student", "student_hidden", "teacher", "teacher_hidden")
    with pytest.raises(ValueError, match=message):
        head_kl(**dict(zip(names, pair, strict=True)) | change)


def test_other_modules_and_options_are_type_errors(pair):
    with pytest.raises(TypeError, match="must be heads or nn.Linear, got Tanh"):
        head_kl(nn.Tanh(), *pair[1:])
    with pytest.raises(TypeError, match="got \\['tau'\\]"):
        head_kl(*pair, tau=2.0)
