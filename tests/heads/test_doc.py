"""DOC: the formula, the balance term, and training through lower layers."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from highrank.build import build_batches, build_model
from highrank.config import HeadConfig
from highrank.heads import DirectOutputConnection, MixtureOfSoftmaxes
from highrank.training.trainer import Trainer

D, E, V = 6, 4, 11


def doc(num_components=5, sizes=(2, 4), **options):
    options = {"lower_components": (2,)} | options
    return DirectOutputConnection(D, V, num_components, E, layer_sizes=sizes, **options)


def test_it_is_the_formula_in_values_and_gradients(hidden, generic):
    head = generic(doc())
    lower, last = hidden[:, :2], hidden[:, 2:]
    context = torch.cat((head.lower[0](lower), head.latent(last)), -1).tanh().view(7, 5, E)
    weight = F.linear(last, head.prior.weight).softmax(-1)
    prob = F.linear(context, head.weight, head.bias).softmax(-1)
    got, want = head.log_prob(hidden), (weight[..., None] * prob).sum(1).log()
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    upstream = torch.randn_like(got)
    got, want = (
        torch.autograd.grad((upstream * x).sum(), list(head.parameters())) for x in (got, want)
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_the_balance_term_is_the_squared_coefficient_of_variation(generic):
    head = generic(doc(balance=0.01))
    hidden = torch.randn(5, 3, D).double()
    total = head.mixture(hidden).log_weight.exp().sum(0)  # (B, K)
    mean = total.mean()
    variance = (total - mean).square().sum() / (total.numel() - 1)
    torch.testing.assert_close(head.penalty(hidden), 0.01 * 4 * variance / mean**2)
    first = generic(doc(balance=0.01, batch_first=True))
    first.load_state_dict(head.state_dict())
    torch.testing.assert_close(first.penalty(hidden.transpose(0, 1)), head.penalty(hidden))


def test_equal_weights_are_balanced_and_other_heads_have_no_penalty(hidden, generic):
    head = generic(doc())
    torch.nn.init.zeros_(head.prior.weight)
    torch.testing.assert_close(head.penalty(hidden), torch.zeros(()).double())
    assert doc(balance=0.0).penalty(hidden) == 0.0
    assert MixtureOfSoftmaxes(D, V, 3, E).penalty(hidden) == 0.0


def test_all_components_share_a_dropout_mask_and_biases_start_at_zero():
    head = doc(dropout=0.5)
    assert (head.latent.bias == 0).all() and (head.lower[0].bias == 0).all()
    context = head.mixture(torch.randn(3, 2, D)).context  # (T, B, K, E)
    dropped = context == 0
    assert dropped.any() and not dropped.all()
    assert torch.equal(dropped, dropped[:1, :, :1].expand_as(dropped))


def test_training_adds_the_balance_term_and_reads_the_lower_layer(config, corpus):
    def gradients(balance):
        torch.manual_seed(1)
        train = corpus.split("train")
        head = HeadConfig(kind="doc", num_components=4, dropout=0.0, options={"balance": balance})
        model = build_model(replace(config, head=head), 20)
        loss = Trainer(model, config.train)._backward(next(build_batches(config, train)))
        return loss, [p.grad for p in model.head.lower.parameters()], model.head.prior.weight.grad

    loss, lower, prior = gradients(0.0)
    balanced_loss, _, balanced_prior = gradients(5.0)
    assert loss == balanced_loss and not torch.equal(prior, balanced_prior)
    assert all(gradient.any() for gradient in lower)


def test_without_counts_a_quarter_of_the_components_reads_each_lower_layer():
    head = DirectOutputConnection(D, V, 20, E, layers=(0, 1, -1), layer_sizes=(1, 2, 3))
    assert [layer.out_features // E for layer in (*head.lower, head.latent)] == [5, 5, 10]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layers": (-1, -2)}, r"layers must end with -1, the last one, got \(-1, -2\)"),
        ({"sizes": (2, 3)}, r"layer_sizes must be 2 numbers that add up to 6, got \(2, 3\)"),
        ({"sizes": None}, "layer_sizes must be 2 numbers that add up to 6, got None"),
        ({"lower_components": (5,)}, "lower_components must be 1 numbers from 1 on that leave"),
        ({"balance": -1.0}, "balance must be at least 0 and finite, got -1.0"),
        ({"num_components": 0}, "num_components must be at least 1, got 0"),
    ],
)
def test_a_wrong_argument_is_named(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        doc(**options)


def test_a_layer_that_the_backbone_does_not_have_is_named(config):
    head = HeadConfig(kind="doc", num_components=4, options={"layers": (-5, -1)})
    with pytest.raises(ValueError, match=r"head.layers must be from -3 .* to -1, got -5"):
        build_model(replace(config, head=head), 20)
