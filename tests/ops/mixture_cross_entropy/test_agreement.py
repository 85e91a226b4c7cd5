"""Every backend against the reference, in value and in all four gradients, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank.ops.logit_map import Softcap

SEVERAL_CHUNKS = (
    400  # two tokens of K = 3, V = 7 in float64, so that nine tokens end in half a chunk
)


@st.composite
def cases(draw):
    """Sizes, options, and which words, components and targets are out of play."""
    N, K, V = draw(st.integers(0, 9)), draw(st.integers(1, 4)), draw(st.integers(1, 12))
    sizes = {
        "shape": (N,),
        "K": K,
        "E": draw(st.integers(1, 5)),
        "V": V,
        "bias": draw(st.booleans()),
        "scale": draw(st.sampled_from([0.1, 1.0, 30.0, 3000.0])),
        "seed": draw(st.integers(0, 2**32)),
    }
    options = {
        "logit_map": draw(st.none() | st.builds(Softcap, st.floats(0.5, 50.0))),
        "chunk_bytes": draw(st.integers(1, 8 * 3 * K * V)),
    }
    silent_words = draw(st.sets(st.integers(0, V - 1), max_size=V - 1))
    idle_components = draw(st.sets(st.integers(0, K - 1), max_size=K - 1))
    ignored_targets = draw(st.sets(st.integers(0, max(0, N - 1)), max_size=N))
    return sizes, options, silent_words, idle_components, ignored_targets


@settings(max_examples=200)
@given(case=cases())
def test_agrees_with_the_reference_on_anything(problem, solve, agree, fast_way, case):
    sizes, options, silent_words, idle_components, ignored_targets = case
    inputs = problem(**sizes)
    if inputs.bias is not None:
        inputs.bias[list(silent_words)] = -torch.inf
    inputs.log_weight[:, list(idle_components)] = -torch.inf
    inputs.target[list(ignored_targets)] = -100
    want = solve(inputs, **options, **(fast_way | {"backend": "reference"}))
    agree(solve(inputs, **options, **fast_way), want)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (2, 3, 2), (2, 0, 3)], ids=str)
def test_leading_dimensions_are_tokens(problem, solve, agree, way, shape):
    inputs = problem(shape)
    flat = inputs._replace(
        context=inputs.context.reshape(-1, 3, 4),
        log_weight=inputs.log_weight.reshape(-1, 3),
        target=inputs.target.reshape(-1),
    )
    got = solve(inputs, chunk_bytes=SEVERAL_CHUNKS, **way)
    want = solve(flat, **(way | {"backend": "reference"}))
    agree(got, [w.reshape(g.shape) for w, g in zip(want, got, strict=True)])


def test_memory_layout_does_not_matter(problem, solve, agree, way):
    inputs = problem((4, 9))
    strided = inputs._replace(
        context=inputs.context.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1),
        log_weight=inputs.log_weight.mT.contiguous().mT,
        weight=inputs.weight.T.contiguous().T,
        bias=torch.stack([inputs.bias, inputs.bias], -1)[:, 0],
        target=inputs.target.T.contiguous().T,
    )
    assert not any(t.is_contiguous() for t in strided)
    agree(solve(strided, **way, chunk_bytes=500), solve(inputs, **way, chunk_bytes=500))


def test_expanded_inputs_are_the_same_as_copies(problem, solve, agree, way):
    one = problem((1,))
    expanded = one._replace(
        context=one.context.expand(9, 3, 4),
        log_weight=one.log_weight.expand(9, 3),
        target=one.target.expand(9),
    )
    copies = type(one)(*(t.contiguous() for t in expanded))
    agree(solve(expanded, **way, chunk_bytes=SEVERAL_CHUNKS), solve(copies, **way))


@pytest.mark.parametrize(
    "dtype, V",
    [(torch.int32, 7), (torch.int8, 300), (torch.uint8, 300), (torch.int16, 40_000)],
    ids=str,
)
def test_targets_of_any_integer_type_mean_the_same(problem, solve, agree, way, dtype, V):
    # V does not fit into the narrow types, nor -100 into uint8, where it would become 156.
    inputs = problem(V=V)._replace(target=torch.tensor([0, 1, 100, 5, 6, 99, 127, 7, 0]) % V)
    agree(solve(inputs._replace(target=inputs.target.to(dtype)), **way), solve(inputs, **way))


def test_an_unsigned_target_is_not_mistaken_for_an_ignored_one(problem, solve):
    inputs = problem((1,), V=200)._replace(target=torch.tensor([156], dtype=torch.uint8))
    assert solve(inputs)[0] > 0


@pytest.mark.parametrize("ignore_index", [-1, 2])
def test_any_index_can_be_the_ignored_one(problem, solve, agree, way, ignore_index):
    inputs = problem()
    ignored = torch.arange(9) % 3 == 1
    inputs.target[inputs.target == 2] = 3
    usual = inputs._replace(target=inputs.target.masked_fill(ignored, -100))
    other = inputs._replace(target=inputs.target.masked_fill(ignored, ignore_index))
    got = solve(other, ignore_index=ignore_index, chunk_bytes=SEVERAL_CHUNKS, **way)
    agree(got, solve(usual, **(way | {"backend": "reference"})))


@pytest.mark.parametrize("chunk_bytes", [1, 168, 336, 1000, 10**9, None])
def test_the_size_of_chunks_changes_nothing(problem, solve, agree, fast_way, chunk_bytes):
    inputs = problem(scale=30.0)
    want = solve(inputs, **fast_way, chunk_bytes=504)
    agree(solve(inputs, **fast_way, chunk_bytes=chunk_bytes), want, tolerance=1e-12)
