"""Adaptive input embeddings: a table of narrow rows, shared with the bands of an adaptive head."""

import copy

import pytest
import torch
from torch import nn

from highrank.heads import AdaptiveSoftmax, Softmax
from highrank.models import AWDLSTM, LanguageModel
from highrank.models.adaptive_embedding import AdaptiveEmbedding
from highrank.models.weights import load_state, save_state

V, E, SIZES, WIDTHS = 23, 8, (5, 9, 9), (8, 4, 2)
COUNTS = [(7 * token) % V for token in range(V)]


def embedding_of(**options):
    order = torch.tensor(COUNTS).argsort(descending=True)
    return AdaptiveEmbedding(E, order, SIZES, WIDTHS, dtype=torch.float64, **options)


def table_of(embedding):
    """(V, E), row by row."""
    rows = []
    for token in range(V):
        place = embedding.rank[token].item()
        band = sum(place >= edge for edge in (5, 14))
        row = embedding.bands[band][place - (0, 5, 14)[band]]
        rows.append(embedding.projections[band](row))
    return torch.stack(rows)


def tied_model():
    """An LSTM and an adaptive softmax that share narrow bands."""
    head = AdaptiveSoftmax(7, V, E, frequent=5, cutoffs=(14,), div_value=2, token_counts=COUNTS)
    backbone = AWDLSTM(V, E, (7,), embedding_dropout=0.1)
    backbone.embedding = AdaptiveEmbedding(E, head.order, head.sizes, head.widths)
    return LanguageModel(backbone, head)


@pytest.mark.parametrize("shape", [(), (4,), (5, 3), (0,)], ids=str)
def test_a_token_has_its_bands_row_brought_to_full_width(shape):
    embedding, tokens = embedding_of(), torch.randint(V, shape)
    torch.testing.assert_close(embedding(tokens), table_of(embedding)[tokens])


def test_gradients_are_those_of_the_table():
    embedding, tokens = embedding_of(), torch.randint(V, (40,))
    upstream = torch.randn(40, E).double()
    leaves = list(embedding.parameters())
    got = torch.autograd.grad((upstream * embedding(tokens)).sum(), leaves)
    want = torch.autograd.grad((upstream * table_of(embedding)[tokens]).sum(), leaves)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_one_band_of_full_width_is_an_embedding():
    embedding = AdaptiveEmbedding(E, torch.randperm(V), (V,), (E,))
    plain = nn.Embedding(V, E, _weight=embedding.bands[0][embedding.rank].detach())
    tokens = torch.randint(V, (6, 2))
    assert torch.equal(embedding(tokens), plain(tokens))
    assert sum(p.numel() for p in embedding.parameters()) == V * E


def test_embeddings_start_in_their_range():
    embedding = embedding_of(embedding_range=0.5)
    assert all(0.3 < band.abs().max() <= 0.5 for band in embedding.bands)


def test_bands_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"of 23 tokens in all, got \[5, 9\] and \[8, 4\]"):
        AdaptiveEmbedding(E, torch.arange(V), (5, 9), (8, 4))


def test_a_model_shares_the_bands_and_trains_them_from_both_sides():
    model = tied_model()
    assert all(
        a is b for a, b in zip(model.head.weights, model.backbone.embedding.bands, strict=True)
    )
    tokens = torch.arange(V + 1)[:, None] % V
    model(tokens[:-1], tokens[1:], model.initial_state(1)).loss.backward()
    assert all(band.grad.abs().sum(1).all() for band in model.head.weights)


def test_shared_bands_are_saved_once():
    model, other = tied_model(), tied_model()
    state = save_state(model)
    assert not any(name.startswith("head.weights") for name in state)
    load_state(other, copy.deepcopy(state))
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert other.head.weights[1] is other.backbone.embedding.bands[1]


def test_a_head_without_bands_is_refused():
    backbone = AWDLSTM(V, E, (8,))
    backbone.embedding = AdaptiveEmbedding(E, torch.arange(V), SIZES, WIDTHS)
    with pytest.raises(ValueError, match="adaptive to share an AdaptiveEmbedding, got Softmax"):
        LanguageModel(backbone, Softmax(8, V))
