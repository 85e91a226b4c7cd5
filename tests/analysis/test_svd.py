"""Singular values without the matrix: the same as those of an SVD of it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from highrank.analysis import log_probs as source_module
from highrank.analysis import svd as module
from highrank.analysis.log_probs import LogProbs, head_log_probs, matrix_log_probs, sampled
from highrank.analysis.svd import (
    eliminate,
    head_singular_values,
    linear_singular_values,
    singular_values,
)
from highrank.heads import MixtureOfContexts, MixtureOfSoftmaxes, Softmax

SHAPES = [(90, 40), (41, 40), (40, 40), (25, 40), (1, 40), (90, 1), (200, 33)]


@pytest.fixture(autouse=True)
def small_panels(monkeypatch):
    """So that small matrices have many panels and many folds."""
    monkeypatch.setattr(module, "PANEL", 7)
    monkeypatch.setattr(module, "GRAM_PANEL", 9)
    monkeypatch.setattr(module, "FOLD_ROWS", 16)


def graded(rows, columns, digits=13, seed=0):
    """Rows of log-probability size, with singular values over many orders of magnitude."""
    random = torch.Generator().manual_seed(seed)
    scale = torch.logspace(0, -digits, columns, dtype=torch.float64)
    matrix = torch.randn(rows, columns, generator=random, dtype=torch.float64) * scale
    turn = torch.linalg.qr(torch.randn(columns, columns, generator=random).double()).Q
    return matrix @ turn - 9


def exact(matrix):
    return torch.from_numpy(np.linalg.svd(matrix.double().numpy(), compute_uv=False))


def spectrum_of(matrix, method):
    return singular_values(matrix_log_probs(matrix), method)[-1]


def randomised(head):
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_methods_keep_to_the_error_that_they_state(shape, dtype):
    matrix = graded(*shape).to(dtype)
    want, found, fast = exact(matrix), spectrum_of(matrix, "stable"), spectrum_of(matrix, "fast")
    assert found.values.shape == fast.values.shape == want.shape
    assert (found.values - want).abs().max() <= 1e-12 * want[0]
    assert found.shape == shape and found.precision == dtype
    assert (fast.values.square() - want.square()).abs().max() <= fast.floor**2
    assert fast.floor == pytest.approx(want[0].item() * (max(shape) * 2.2e-16) ** 0.5, rel=0.01)


@pytest.mark.parametrize("rank", [1, 5, 39])
def test_zero_columns_and_repeated_rows_do_no_harm(rank):
    matrix = graded(90, 40)
    matrix[:, ::3] = 0
    matrix[rank:] = matrix[:rank].repeat(90, 1)[: 90 - rank]
    want = exact(matrix)
    assert (spectrum_of(matrix, "stable").values - want).abs().max() <= 1e-12 * want[0]


def test_elimination_leaves_the_triangle_of_a_qr():
    matrix = graded(60, 20, digits=2)
    triangle = torch.linalg.qr(matrix[:30], mode="r").R
    eliminate(triangle, matrix[30:].clone())
    want = torch.linalg.qr(matrix, mode="r").R
    torch.testing.assert_close(triangle.abs(), want.abs(), rtol=0, atol=1e-11)
    assert (triangle.tril(-1) == 0).all()


@pytest.mark.parametrize("size", [3, 64, 65, 130])
def test_rows_of_zeros_change_no_digit_of_the_triangle(size):
    triangle = torch.randn(size, size).double().triu()
    before = triangle.clone()
    eliminate(triangle, torch.zeros(5, size).double())
    assert torch.equal(triangle, before)


@pytest.mark.parametrize("method", ["stable", "fast"])
@given(cuts=st.lists(st.integers(0, 70), max_size=6), counts=st.sets(st.integers(1, 70)))
def test_counts_are_spectra_of_the_first_rows_however_rows_arrive(method, cuts, counts):
    matrix = graded(70, 30, digits=3)
    bounds = [0, *sorted(cuts), 70]
    blocks = [matrix[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    source = LogProbs(
        num_contexts=70, vocab_size=30, precision=torch.float64, make_blocks=lambda: blocks
    )
    before = matrix.clone()
    spectra = singular_values(source, method, counts=sorted(counts))
    assert [s.shape for s in spectra] == [(count, 30) for count in sorted({*counts, 70})]
    for spectrum in spectra:
        want = exact(matrix[: spectrum.shape[0]])
        tolerance = 1e-12 * want[0] if method == "stable" else spectrum.floor
        assert (spectrum.values - want).abs().max() <= tolerance
    assert (matrix == before).all()


@pytest.mark.parametrize("method", ["stable", "fast"])
def test_no_tensor_is_as_large_as_the_matrix(method, monkeypatch, watch):
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 8 * 40 * 10)
    head = randomised(MixtureOfSoftmaxes(6, 40, 3, 4))
    source = head_log_probs(head, torch.randn(500, 6))
    with watch() as seen:
        singular_values(source, method)
    assert max(seen.sizes) <= 40 * 40 < 500 * 40


@pytest.mark.parametrize("method", ["stable", "fast"])
def test_progress_grows_to_one_and_names_what_is_done(method):
    shown = []
    source = matrix_log_probs(graded(300, 100))
    singular_values(
        source, method, counts=(50,), on_progress=lambda share, text: shown.append((share, text))
    )
    shares = [share for share, _ in shown]
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] == 1.0
    assert {"300 of 300 contexts", "singular values of 100"} <= {text for _, text in shown}


@pytest.mark.parametrize("T, V, E", [(90, 60, 8), (5, 60, 8), (90, 5, 8), (1, 60, 8)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_linear_head_needs_only_its_factors(T, V, E, has_bias):
    context, weight = torch.randn(T, E).double(), torch.randn(V, E).double()
    bias = torch.randn(V).double() if has_bias else None
    (found,) = linear_singular_values(context, weight, bias)
    logits = context @ weight.T + (0 if bias is None else bias)
    want = exact(logits.log_softmax(-1))
    assert len(found.values) == min(T, V, E + 1 + has_bias)
    padded = torch.nn.functional.pad(found.values, (0, len(want) - len(found.values)))
    assert (padded - want).abs().max() <= 1e-12 * want[0]


def test_logits_far_from_zero_and_factors_that_trade_sizes_cost_no_digits():
    context, weight = torch.randn(90, 8).double(), torch.randn(60, 8).double()
    bias = torch.randn(60).double()
    (want,) = linear_singular_values(context, weight, bias)
    (far,) = linear_singular_values(context, weight + 2.0**20, bias + 2.0**30)
    (traded,) = linear_singular_values(context * 2.0**-30, weight * 2.0**30, bias)
    for found, tolerance in ((far, 1e-7), (traded, 1e-12)):
        assert (found.values - want.values).abs().max() <= tolerance * want.values[0]
        assert found.floor == pytest.approx(want.floor, rel=1e-6)


@pytest.mark.parametrize("kind", [MixtureOfContexts, Softmax])
def test_a_head_is_recomputed_in_float64_and_left_as_it_is(kind):
    sizes = (6, 40, 4) if kind is Softmax else (6, 40, 3, 4)
    head, hidden = randomised(kind(*sizes, dropout=0.5)).bfloat16(), torch.randn(50, 6).bfloat16()
    spectra = head_singular_values(head, hidden, counts=(3, 20))
    assert head.training and head.weight.dtype == torch.bfloat16
    log_prob = head.eval().double().log_prob(hidden.double()).detach()
    for spectrum, count in zip(spectra, (3, 20, 50), strict=True):
        want = exact(log_prob[:count])[:6]
        assert (spectrum.values - want).abs().max() <= 1e-12 * want[0]
        assert spectrum.shape == (count, 40) and spectrum.precision == torch.float64


def test_a_sample_has_some_columns_of_every_row():
    matrix = torch.arange(12 * 9).view(12, 9).double()
    sample = sampled(matrix_log_probs(matrix), 4, seed=3)
    rows = torch.cat(list(sample.blocks()))
    assert rows.shape == (12, 4) == (sample.num_contexts, sample.vocab_size)
    tokens = (rows[0] % 9).long()
    assert (rows == matrix[:, tokens]).all() and len(set(tokens.tolist())) == 4
    other = torch.cat(list(sampled(matrix_log_probs(matrix), 4, seed=4).blocks()))
    assert not torch.equal(rows, other)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(3, 2), "must have 4 rows in all, got 3"),
        (torch.zeros(5, 2), "must have 4 rows in all, got more"),
        (torch.tensor([[0.0, 0.0], [0.0, -torch.inf]]), "must be finite, got others in row 1"),
        (torch.full((4, 2), torch.nan), "must be finite, got others in row 0"),
    ],
)
def test_sources_keep_to_their_rows_and_are_finite(rows, message):
    options = {"num_contexts": 4, "vocab_size": 2, "precision": torch.float64}
    with pytest.raises(ValueError, match=message):
        singular_values(LogProbs(**options, make_blocks=lambda: [rows]))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: spectrum_of(m, "quick"), "method must be one of"),
        (lambda m: singular_values(matrix_log_probs(m), counts=(91,)), "from 1 to 90, got 91"),
        (lambda m: matrix_log_probs(m[:0]), "matrix must be"),
        (lambda m: sampled(matrix_log_probs(m), 41), "num_tokens must be from 1 to 40"),
        (lambda m: head_log_probs(Softmax(4, 9), m[0]), "hidden must be"),
        (
            lambda m: head_log_probs(Softmax(40, 9), m, torch.bfloat16),
            "precision must be torch.float32 or torch.float64, got torch.bfloat16",
        ),
        (
            lambda m: head_singular_values(MixtureOfSoftmaxes(40, 9, 2, 4), m),
            "the head must have one softmax, got MixtureOfSoftmaxes",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(graded(90, 40))
