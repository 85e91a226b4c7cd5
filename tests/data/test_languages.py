"""Exact languages against NumPy's rank, SciPy's graphs, solvers and statistics, and counting."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.csgraph
import scipy.special
import scipy.stats

from highrank.data import Language, factorised, senses
from highrank.data.languages import sample_corpus

HALF = np.log(np.full((2, 2), 0.5))
SWAP = np.array([[0, 1], [1, 0]])
FAMILIES = pytest.mark.parametrize("family", [factorised, senses])


def from_prob(prob, next_context):
    with np.errstate(divide="ignore"):
        return Language(np.log(prob, dtype=np.float64), np.array(next_context))


def transition_matrix(prob, next_context):
    matrix = np.zeros((len(prob), len(prob)))
    np.add.at(matrix, (np.arange(len(prob))[:, None], next_context), prob)
    return matrix


def random_tables():
    """Tables with some impossible tokens, and whether SciPy finds them connected."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        prob = rng.dirichlet(np.ones(3), size=4)
        prob[rng.random(prob.shape) < 1 / 3] = 0
        prob[:, 0] += 1 - prob.sum(1)
        next_context = rng.integers(4, size=prob.shape)
        edges = transition_matrix(prob, next_context) > 0
        count, _ = scipy.sparse.csgraph.connected_components(edges, connection="strong")
        yield prob, next_context, count == 1


def random_languages():
    return [from_prob(*tables) for *tables, is_connected in random_tables() if is_connected]


def random_model(language):
    logits = np.random.default_rng(0).standard_normal(language.log_prob.shape)
    return scipy.special.log_softmax(logits, axis=1)


def standard_error(chain_means):
    return chain_means.std(axis=0, ddof=1) / np.sqrt(len(chain_means))


@pytest.mark.parametrize("rank", [2, 10, 64, 200])
def test_a_softmax_one_smaller_than_the_rank_is_exact_and_none_below_even_with_a_bias(rank):
    # A softmax is free to shift each context, a bias each token: centring removes both.
    log_prob = factorised(rank=rank).log_prob
    assert np.linalg.matrix_rank(log_prob) == rank
    logits = log_prob - log_prob.mean(1, keepdims=True)
    assert np.linalg.matrix_rank(logits) == rank - 1
    assert np.linalg.matrix_rank(logits - logits.mean(0)) == rank - 1


def test_senses_have_few_dimensions_in_probability_and_all_in_log_probability():
    language = senses()
    assert np.linalg.matrix_rank(np.exp(language.log_prob)) == 60
    assert np.linalg.matrix_rank(language.log_prob) == 200


def test_scale_is_the_standard_deviation_of_the_logits():
    log_prob = factorised(scale=0.7).log_prob
    assert (log_prob - log_prob.mean(1, keepdims=True)).std() == pytest.approx(0.7, rel=0.1)


@pytest.mark.parametrize("num_groups, order", [(12, 1), (3, 1), (3, 2), (12, 2), (2, 5)])
def test_a_context_is_the_groups_of_the_last_tokens(num_groups, order):
    language = senses(vocab_size=12, num_contexts=num_groups**order, order=order)
    tokens, contexts = language.sample(2_000, seed=0, num_chains=10)
    group = language.next_context[0, tokens]
    for t in range(order, tokens.shape[1]):
        last = np.ravel_multi_index(group[:, t - order : t].T, (num_groups,) * order)
        np.testing.assert_array_equal(contexts[:, t], last)


@pytest.mark.parametrize("num_groups", [1, 5, 12])
def test_groups_are_balanced_and_shuffled(num_groups):
    group = senses(vocab_size=12, num_contexts=num_groups**2).next_context[0]
    count = np.bincount(group)
    assert len(count) == num_groups and count.max() - count.min() <= 1
    assert num_groups == 1 or (np.diff(group) < 0).sum() > 1


def test_a_language_is_accepted_exactly_when_scipy_finds_it_strongly_connected():
    for prob, next_context, is_connected in random_tables():
        with nullcontext() if is_connected else pytest.raises(ValueError, match="every context"):
            from_prob(prob, next_context)
    assert 10 < len(random_languages()) < 90


def test_stationary_agrees_with_the_null_space_of_the_transition_matrix():
    for random in random_languages():
        matrix = transition_matrix(random.prob, random.next_context)
        kernel = scipy.linalg.null_space(matrix.T - np.eye(4))[:, 0]
        np.testing.assert_allclose(random.stationary, kernel / kernel.sum(), atol=1e-12)


def test_a_periodic_language_has_a_stationary_distribution():
    # 0 or 1, then always 2, then 0 or 1 again: period two, from any start.
    periodic = from_prob([[1.0, 0.0], [0.5, 0.5], [0.3, 0.7]], [[2, 0], [2, 2], [0, 1]])
    np.testing.assert_allclose(periodic.stationary, [0.15, 0.35, 0.5], atol=1e-14)


def test_contexts_that_hardly_mix_raise_instead_of_giving_a_wrong_answer():
    leak = 1e-9
    sticky = from_prob([[1 - leak, leak], [1 - 2 * leak, 2 * leak]], [[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="contexts must mix in .* steps, got a last change of"):
        _ = sticky.stationary


@FAMILIES
def test_stationary_entropy_and_excess_agree_with_scipy_and_the_truth_has_no_excess(family):
    language = family()
    assert language.prob.min() > 0
    moved = language.stationary @ transition_matrix(language.prob, language.next_context)
    assert np.abs(moved - language.stationary).sum() < 1e-12
    model = random_model(language)
    entropy = scipy.stats.entropy(language.prob, axis=1)
    excess = scipy.stats.entropy(language.prob, np.exp(model), axis=1)
    assert language.entropy == pytest.approx(language.stationary @ entropy, abs=1e-13)
    assert language.excess(model) == pytest.approx(language.stationary @ excess, abs=1e-13)
    cross_entropy = -language.stationary @ (language.prob * model).sum(1)
    assert language.excess(model) == pytest.approx(cross_entropy - language.entropy, abs=1e-13)
    assert language.excess(language.log_prob) == 0
    near = scipy.special.log_softmax(language.log_prob + 1e-6 * model, axis=1)
    assert 0 < language.excess(near) < 1e-11


def test_impossible_tokens_cost_nothing_and_impossible_models_everything():
    coin = from_prob([[0.5, 0.5, 0.0]], [[0, 0, 0]])
    assert coin.entropy == pytest.approx(np.log(2))
    assert coin.excess(coin.log_prob) == 0
    assert coin.excess(np.log([[0.25, 0.25, 0.5]])) == pytest.approx(np.log(2))
    assert coin.excess(np.array([[0.0, -np.inf, -np.inf]])) == np.inf


@FAMILIES
def test_samples_have_the_entropy_and_the_stationary_distribution(family):
    language = family(num_contexts=100)
    tokens, contexts = language.sample(500_000, seed=0)
    chain_means = -language.log_prob[contexts, tokens].mean(axis=1)
    assert standard_error(chain_means) < 0.004
    assert abs(chain_means.mean() - language.entropy) < 4 * standard_error(chain_means)
    frequency = np.stack([np.bincount(row, minlength=100) / row.size for row in contexts])
    z = (frequency.mean(0) - language.stationary) / standard_error(frequency)
    assert np.abs(z).max() < 4.5


def test_chains_start_from_the_stationary_distribution():
    language = senses(num_contexts=100)
    contexts = language.sample(50_000, seed=0, num_chains=50_000).contexts
    count = np.bincount(contexts[:, 0])
    assert scipy.stats.chisquare(count, 50_000 * language.stationary).pvalue > 1e-3


def many_contexts():
    """Tokens 1 (0.3) and 2 (0.7), the last 15 of them the context; 0 and 3 are impossible."""
    prob = np.tile([0.0, 0.3, 0.7, 0.0], (2**15, 1))
    return from_prob(prob, (2 * np.arange(2**15)[:, None] + [0, 0, 1, 1]) % 2**15)


def test_tens_of_thousands_of_contexts_are_no_trouble():
    language = many_contexts()
    ones = np.array([context.bit_count() for context in range(2**15)])
    np.testing.assert_allclose(language.stationary, 0.7**ones * 0.3 ** (15 - ones), rtol=1e-9)
    tokens, contexts = language.sample(1_000_000, seed=0)
    assert abs((tokens == 2).mean() - 0.7) < 4 * np.sqrt(0.21 / tokens.size)
    np.testing.assert_array_equal((2 * contexts + tokens - 1)[:, :-1] % 2**15, contexts[:, 1:])


@pytest.mark.parametrize("draw", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_random_numbers_draw_possible_tokens_of_their_own_context(draw, monkeypatch):
    languages = [many_contexts(), senses(num_contexts=9), *random_languages()]
    rng = SimpleNamespace(
        choice=lambda contexts, size, p: np.arange(contexts - size, contexts) % contexts,
        random=lambda size: np.full(size, draw),
    )
    monkeypatch.setattr("highrank.data.languages.default_rng", lambda seed: rng)
    for language in languages:
        tokens, contexts = language.sample(256, seed=0)
        np.testing.assert_array_equal(contexts[:, 0], rng.choice(language.num_contexts, 256, None))
        assert (language.log_prob[contexts, tokens] > -np.inf).all()


def test_the_same_seed_gives_the_same_language_and_the_same_stream():
    one, two = senses(seed=3), senses(seed=3)
    np.testing.assert_array_equal(one.log_prob, two.log_prob)
    np.testing.assert_array_equal(one.sample(1_000, seed=5), two.sample(1_000, seed=5))
    assert (one.log_prob != senses(seed=4).log_prob).any()
    assert (one.sample(1_000, seed=5).tokens != one.sample(1_000, seed=6).tokens).any()


@pytest.mark.parametrize("num_tokens, shape", [(100, (10, 10)), (101, (10, 11)), (7, (1, 7))])
def test_chains_are_equally_long_and_hold_the_tokens_asked_for(num_tokens, shape):
    for array in senses().sample(num_tokens, seed=0, num_chains=shape[0]):
        assert array.shape == shape and array.dtype == np.int64


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rank": 1}, r"rank must be from 2 to 200 \(vocab_size, num_contexts\), got 1"),
        ({"rank": 26, "num_contexts": 25}, "rank must be from 2 to 25 .*, got 26"),
        ({"scale": 0.0}, "scale must be positive, got 0.0"),
        ({"num_senses": 0}, "num_senses must be positive, got 0"),
        ({"senses_per_context": 61}, r"must be at most 60 \(num_senses\), got 61"),
        ({"vocab_size": 0}, "vocab_size must be positive, got 0"),
        ({"order": -1}, "order must be positive, got -1"),
        ({"num_contexts": 401}, r"num_contexts must be G\*\*2 .*, got 401; nearest: 400 or 441"),
        ({"num_contexts": 40_001}, "from 1 to 200 .*, got 40001; nearest: 40000"),
    ],
)
def test_bad_arguments_of_a_family_are_refused(arguments, message):
    family = factorised if {"rank", "scale"} & set(arguments) else senses
    with pytest.raises(ValueError, match=message):
        family(**arguments)


@pytest.mark.parametrize(
    "log_prob, next_context, message",
    [
        (HALF[0], SWAP[0], r"log_prob must be \(contexts, tokens\), got \(2,\)"),
        (HALF.astype(np.float32), SWAP, "log_prob must be float64, got float32"),
        (HALF * np.nan, SWAP, "log_prob must be at most 0 everywhere, got nan"),
        (HALF + 1, SWAP, "log_prob must be at most 0 everywhere, got 0.3"),
        (HALF - 1, SWAP, "probabilities must sum to 1, got 0.36.* in context 0"),
        (HALF, SWAP[:, :1], r"next_context must be \(2, 2\) as log_prob, got \(2, 1\)"),
        (HALF, SWAP / 1, "next_context must hold integers, got float64"),
        (HALF, SWAP + 1, "next_context must be from 0 to 1, got 1 to 2"),
        (HALF, SWAP * 0, "reachable from context 0 .*, got 1 that are not, such as context 1"),
        (HALF, SWAP | [[0], [1]], "able to reach context 0 .*, got 1 that are not, such as"),
    ],
)
def test_bad_tables_are_refused(log_prob, next_context, message):
    with pytest.raises(ValueError, match=message):
        Language(log_prob, next_context)


def test_bad_models_and_sample_sizes_are_refused():
    coin = Language(HALF, SWAP.astype(np.uint8))
    with pytest.raises(ValueError, match=r"log_prob must be \(2, 2\), got \(1, 2\)"):
        coin.excess(HALF[:1])
    with pytest.raises(ValueError, match="probabilities must sum to 1, got 0.36"):
        coin.excess(HALF - 1)
    with pytest.raises(ValueError, match="num_tokens must be positive, got 0"):
        coin.sample(0, seed=0)
    with pytest.raises(ValueError, match="num_chains must be positive, got -1"):
        coin.sample(10, seed=0, num_chains=-1)


def test_the_floor_is_the_entropy_of_the_language():
    language = factorised(vocab_size=30, num_contexts=16, rank=6, seed=2)
    corpus = sample_corpus(language, {"train": 100, "valid": 100, "test": 200_000})
    assert corpus.floor == pytest.approx(language.entropy, abs=0.02)
    assert len(corpus.split("test")) == 200_000 and len(corpus.vocabulary) == 30
    # Contexts are the groups of the last two tokens, whatever came before: the text is one chain.
    counts = np.bincount(corpus.split("test"), minlength=30) / 200_000
    np.testing.assert_allclose(counts, language.stationary @ language.prob, atol=0.01)
