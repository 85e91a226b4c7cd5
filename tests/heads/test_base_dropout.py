"""Dropout on the contexts of every head: which mask is shared by whom."""

import pytest
import torch

from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax

T, B, D = 5, 4, 40
HEADS = {
    "softmax": lambda **options: Softmax(D, 11, **options),
    "softmax over a context": lambda **options: Softmax(D, 11, D, **options),
    "moc": lambda **options: MixtureOfContexts(D, 11, 3, D, **options),
    "mos": lambda **options: MixtureOfSoftmaxes(D, 11, 3, D, **options),
}


@pytest.fixture(params=HEADS)
def masks(request):
    """The masks (..., K, D) on the contexts of a head whose contexts are all one."""

    def masks_of(*shape, training=True, **options):
        head = HEADS[request.param](activation="identity", dropout=0.5, **options)
        if head.latent is not None:
            torch.nn.init.zeros_(head.latent.weight)
            torch.nn.init.ones_(head.latent.bias)
        return head.train(training).mixture(torch.ones(*shape, D)).context.detach()

    return masks_of


def num_distinct(masks):
    """How many different rows there are in (..., D)."""
    return len(masks.reshape(-1, D).unique(dim=0))


def test_a_mask_keeps_half_and_doubles_it(masks):
    assert masks(T, B).unique().tolist() == [0, 2]


def test_one_mask_per_sequence_and_component_is_shared_over_time(masks):
    mask = masks(T, B)
    assert (mask == mask[:1]).all()
    assert num_distinct(mask) == B * mask.shape[-2]


def test_batch_first_says_where_time_is(masks):
    mask = masks(B, T, batch_first=True)
    assert (mask == mask[:, :1]).all()
    assert num_distinct(mask) == B * mask.shape[-2]


@pytest.mark.parametrize("batch_first", [False, True])
def test_rows_without_time_have_a_mask_each(masks, batch_first):
    mask = masks(B, batch_first=batch_first)
    assert num_distinct(mask) == B * mask.shape[-2]


def test_every_call_draws_new_masks(masks):
    assert not torch.equal(masks(T, B), masks(T, B))


def test_evaluation_drops_nothing(masks):
    assert (masks(T, B, training=False) == 1).all()


def test_the_loss_is_that_of_the_masked_contexts():
    head = MixtureOfSoftmaxes(6, 11, 3, 4, dropout=0.5)
    hidden, target = torch.randn(T, B, 6), torch.randint(11, (T, B))
    torch.manual_seed(1)
    log_weight, context = head.mixture(hidden)
    torch.manual_seed(1)
    log_p = torch.log_softmax(context @ head.weight.T + head.bias, -1)
    log_p = torch.logsumexp(log_weight[..., None] + log_p, -2)
    want = torch.nn.functional.nll_loss(log_p.flatten(0, 1), target.flatten())
    torch.testing.assert_close(head(hidden, target).loss, want)
    torch.testing.assert_close(log_weight, head.eval().mixture(hidden).log_weight)
