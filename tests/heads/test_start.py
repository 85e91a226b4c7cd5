"""Contexts that start nearly equal: one softmax at first, plus noise that sums to zero."""

import pytest
import torch
from contract import NAMES, D, V, new_head

from highrank.heads import (
    HEADS,
    AdaptiveSoftmax,
    DirectOutputConnection,
    LowRankMixture,
    Mixtape,
    MixtureOfContexts,
    MixtureOfSoftmaxes,
    MultiFacetSoftmax,
    Pointwise,
    Softmax,
    SparseMixtureOfSoftmaxes,
    head_arguments,
)
from highrank.heads.bases.start import PRIOR_SCALE

KINDS = pytest.mark.parametrize(
    "kind", [MixtureOfContexts, MixtureOfSoftmaxes, SparseMixtureOfSoftmaxes, Pointwise, Mixtape]
)


def test_it_is_an_option_of_every_mixture():
    mixtures = [kind for kind in HEADS if "num_components" in head_arguments(kind)]
    assert all("start_noise" in head_arguments(kind) for kind in mixtures)


def contexts_of(head):
    """The weights of the contexts, (K, E, D)."""
    return head.latent.weight.detach().unflatten(0, (head.num_components, -1))


def loss_of(head, hidden, target):
    return head(hidden, target).loss.item()


@KINDS
def test_without_noise_a_mixture_starts_as_one_softmax(kind, hidden, target):
    options = {"logit_map": "gss:0,1"} if kind is Pointwise else {}
    head = kind(6, 11, 4, 4, start_noise=0.0, **options).double()
    softmax = Softmax(6, 11, 4).double()
    with torch.no_grad():
        softmax.weight.copy_(head.weight)
        softmax.latent.weight.copy_(contexts_of(head)[0])
        softmax.latent.bias.copy_(head.latent.bias[:4])
    torch.testing.assert_close(head.log_prob(hidden), softmax.log_prob(hidden), rtol=0, atol=1e-10)


@KINDS
def test_the_noise_sums_to_zero_and_has_the_fraction_that_was_asked_for(kind):
    head = kind(64, 11, 4, 32, start_noise=0.2, dtype=torch.float64)
    weight = contexts_of(head)
    common = weight.mean(0)
    size = (weight - common).std().item() / (1 - 1 / 4) ** 0.5
    assert size == pytest.approx(0.2 * common.std().item(), rel=0.03)
    # nn.Linear's own initial values are what the contexts have in common.
    assert 0.99 * 64**-0.5 < common.abs().max() <= 64**-0.5
    bias = head.latent.bias.detach().unflatten(0, (4, -1))
    assert (bias == bias[0]).all() and bias.any()


def test_the_change_is_of_second_order(hidden, target):
    losses = []
    for noise in (0.0, 1e-2, 1e-3):
        torch.manual_seed(0)
        head = MixtureOfSoftmaxes(6, 11, 4, 4, start_noise=noise, dtype=torch.float64)
        torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
        torch.nn.init.zeros_(head.prior.weight)
        losses.append(loss_of(head, hidden, target))
    changes = [abs(loss - losses[0]) for loss in losses[1:]]
    # A tenth of the noise, a hundredth of the change.
    assert changes[1] == pytest.approx(changes[0] / 100, rel=0.2)


@KINDS
def test_the_prior_starts_a_tenth_as_wide(kind):
    torch.manual_seed(1)
    usual = kind(6, 11, 4, 4)
    torch.manual_seed(1)
    near = kind(6, 11, 4, 4, start_noise=0.2)
    name = "shared_gate.weight" if kind is Mixtape else "prior.weight"
    before, after = (head.get_parameter(name) for head in (usual, near))
    torch.testing.assert_close(after, PRIOR_SCALE * before)
    assert torch.equal(near.weight, usual.weight)


@KINDS
def test_resetting_starts_nearly_equal_again(kind):
    head = kind(6, 11, 4, 4, start_noise=0.0)
    torch.nn.init.normal_(head.latent.weight)
    head.reset_parameters()
    weight = contexts_of(head)
    prior = head.shared_gate if kind is Mixtape else head.prior
    assert (weight == weight[0]).all() and prior.weight.abs().max() <= PRIOR_SCALE * 6**-0.5


def test_the_contexts_of_each_layer_start_nearly_equal():
    head = DirectOutputConnection(6, 11, 5, 4, layer_sizes=(2, 4), start_noise=0.0)
    assert [len(layer.weight) for layer in (*head.lower, head.latent)] == [4, 16]
    contexts = head.latent.weight.unflatten(0, (4, -1))
    assert (contexts == contexts[0]).all() and head.prior.weight.abs().max() <= PRIOR_SCALE / 2
    context = head.mixture(torch.randn(7, 6)).context
    torch.testing.assert_close(context[:, 1], context[:, 4])
    assert not torch.equal(context[:, 0], context[:, 1])


@pytest.mark.parametrize("size", [4, 6])
def test_the_facets_start_nearly_equal_around_the_identity_where_sizes_allow_it(size):
    head = MultiFacetSoftmax(6, 11, 3, size, start_noise=0.1)
    facets = head.latent.weight.detach().unflatten(0, (6, -1))  # (P + K - 1, E, 2 · D)
    assert 0 < (facets - facets.mean(0)).std() < 0.2 * facets.mean(0).std()
    if size == 6:
        torch.testing.assert_close(facets.mean(0)[:, :6], torch.eye(6), rtol=0, atol=1e-4)


def test_residuals_start_with_noise_that_sums_to_zero(hidden):
    head = LowRankMixture(6, 11, 3, 4, rank=50, start_noise=0.3).double()
    down = head.down.weight.unflatten(0, (3, -1))
    assert (down == down[0]).all()
    torch.testing.assert_close(head.up.sum(0), torch.zeros(50, 4).double(), rtol=0, atol=1e-6)
    assert head.up.std().item() == pytest.approx(0.3 * (2 / 3) ** 0.5, rel=0.1)
    # The mean context is the common one.
    want = head.latent(hidden).tanh()
    torch.testing.assert_close(head.mixture(hidden).context.mean(-2), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("noise", [-0.1, float("inf"), float("nan")])
@pytest.mark.parametrize("kind", [MixtureOfSoftmaxes, LowRankMixture, Mixtape, MultiFacetSoftmax])
def test_a_wrong_noise_is_named(kind, noise):
    with pytest.raises(ValueError, match="start_noise must be finite and at least 0, got"):
        kind(6, 11, 4, 4, start_noise=noise)


# Pointers and constant components add to the softmaxes; a map bends the bias.
OTHERS = ("plain", "pointwise")
FREQUENCIES = [n for n in NAMES if n.split(",")[0] not in OTHERS and "+" not in n]


@pytest.mark.parametrize("name", FREQUENCIES)
def test_without_contexts_a_unigram_start_predicts_frequencies(name):
    head, counts = new_head(name, dtype=torch.float64).eval(), [3 * t % V for t in range(V)]
    with torch.no_grad():
        for key, parameter in head.named_parameters():
            if "sense_bias" not in key and not (key.endswith("bias") and len(parameter) == V):
                parameter.zero_()
    if not any(key.endswith("bias") and len(p) == V for key, p in head.named_parameters()):
        pytest.skip("the head has no bias")
    head.start_at_unigram(counts)
    past, hidden = {}, torch.randn(2, 3, D, dtype=torch.float64)
    if head.is_stateful:
        past = {"tokens": torch.zeros(2, 3, dtype=torch.long), "state": head.initial_state(3)}
    got = head.log_prob(hidden, **past).exp().detach()
    want = (torch.tensor(counts) + 1).double() / (sum(counts) + V)
    torch.testing.assert_close(got, want.expand_as(got))


@pytest.mark.parametrize("name", ["mos", "mixtape", "mos+pointer", "adaptive-mos, mixed tail"])
def test_only_the_output_embedding_is_scaled(name):
    head = new_head(name)
    before = {key: value.clone() for key, value in head.state_dict().items()}
    head.scale_embedding(3.0)
    changed = [key for key, value in head.state_dict().items() if not value.equal(before[key])]
    assert changed and all("weight" in key for key in changed)
    assert sum(len(before[key]) for key in changed) == V
    assert all(head.state_dict()[key].equal(3 * before[key]) for key in changed)


def test_a_tail_starts_with_the_fraction_of_tokens_that_are_in_it():
    """Not with 1 / (R + 1), as one class beside R tokens would."""
    counts = [160, 160, 160, 160, 160, *[10] * 20]
    head = AdaptiveSoftmax(D, 25, 4, frequent=5, token_counts=counts).double()
    head.start_at_unigram([count - 1 for count in counts])
    tail = head.log_prob(torch.randn(200, D).double()).exp()[:, 5:].sum(-1)  # (N,)
    assert tail.mean().item() == pytest.approx(0.2, abs=0.01) and (tail - 0.2).abs().max() < 0.05


def test_counts_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="token_counts must have 11 numbers, got 3"):
        new_head("mos").start_at_unigram([1, 2, 3])
