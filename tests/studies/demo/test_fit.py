import torch

from highrank.data import senses
from highrank.studies.demo.fit import count_parameters, fit_head, make_head


def test_a_fit_is_a_distribution_in_float64_and_the_same_twice():
    one, two = (fit_head(senses(seed=3), "mos", 4, 8, seed=3, num_steps=5) for _ in range(2))
    assert one.log_prob.dtype == torch.float64
    torch.testing.assert_close(one.log_prob, two.log_prob, rtol=0, atol=0)
    torch.testing.assert_close(one.log_prob.exp().sum(-1), torch.ones(400, dtype=torch.float64))


def test_steps_bring_the_fit_closer_to_the_language():
    language = senses(seed=0)
    few, more = (fit_head(language, "softmax", 8, 1, seed=0, num_steps=n) for n in (1, 50))
    assert language.excess(more.log_prob.numpy()) < language.excess(few.log_prob.numpy()) / 2


def test_the_free_vectors_count_as_parameters():
    head = make_head("softmax", 8, 1, 200, device="meta")
    assert count_parameters(head, 400) - count_parameters(head, 0) == 400 * 64
