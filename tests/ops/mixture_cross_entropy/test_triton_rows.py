"""The Triton kernels against torch and the reference, on the CPU in Triton's interpreter.

Triton reads TRITON_INTERPRET once, when it is imported: all but two tests run in a process of
their own, which the first one starts.
"""

import math
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from highrank.ops.logit_map import GeneralizedSigsoftmax, Softcap
from highrank.ops.mixture_cross_entropy import mixture_cross_entropy, mixture_loss

if find_spec("triton") is None:
    pytest.skip("triton is not installed (the extra `triton`)", allow_module_level=True)

IS_INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not IS_INTERPRETING, reason="runs in Triton's interpreter")
compiled = pytest.mark.skipif(IS_INTERPRETING, reason="runs outside of Triton's interpreter")
BELOW = {torch.float64: 1e-10, torch.float32: 1e-5}
# Two chunks and more; three blocks of columns, the last one incomplete.
SHAPE, CHUNK_BYTES, BLOCK = {"shape": (13,), "V": 11}, 1000, 4


@compiled
def test_this_file_passes_in_triton_s_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", __file__]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


COMPILE = """
import itertools, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from highrank.ops.mixture_cross_entropy import triton_rows

def compile(kernel, z, thin, **constants):
    types = dict.fromkeys(kernel.arg_names, f"*{thin}")
    types |= {"z": f"*{z}", "target": "*i64", "num_columns": "i32"}
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constants)
    assert triton.compile(source, target=target, options={"num_warps": 8}).asm

targets = GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64)
precisions = ("fp32", "fp32"), ("bf16", "fp32"), ("fp16", "fp32"), ("fp64", "fp64")
for target, precision in itertools.product(targets, precisions):
    compile(triton_rows._row_statistics, *precision, BLOCK=4096)
    for has_map in (False, True):
        compile(triton_rows._row_slope, *precision, HAS_MAP=has_map, BLOCK=4096)
"""


@compiled
def test_the_kernels_compile_for_gpus(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def kernels(monkeypatch):
    """The kernels' module, with small blocks."""
    from highrank.ops.mixture_cross_entropy import triton_rows

    monkeypatch.setattr(triton_rows, "MAX_BLOCK", BLOCK)
    return triton_rows


@pytest.fixture
def taken(kernels, monkeypatch):
    """`stream` takes the kernels as it would on CUDA; how often it did."""
    folder = "mixture_cross_entropy"
    for name in (f"{folder}.reducer.is_static", f"{folder}.stream.runs_triton"):
        monkeypatch.setattr(f"highrank.ops.{name}", lambda tensor: True)
    monkeypatch.setattr("highrank.ops.loss.targets.is_static", lambda tensor: True)
    calls, row_slope = [], kernels.row_slope
    monkeypatch.setattr(kernels, "row_slope", lambda *a: calls.append(1) or row_slope(*a))
    return calls


def table(dtype=torch.float64):
    """Logits with -inf: in the first blocks of a row, in a whole column, at a target."""
    z = 10 * torch.randn(5, 11, generator=torch.manual_seed(0), dtype=torch.float64)
    z[0, :9], z[:, 3] = -torch.inf, -torch.inf
    return z.to(dtype), torch.tensor([[10], [1], [2], [3], [0]])


def in_dtype(inputs, dtype):
    return type(inputs)(*(t.to(dtype) for t in inputs[:4]), inputs.target)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_statistics_are_torch_s_and_leave_the_logits_alone(kernels, agree, dtype):
    z, target = table(dtype)
    before = z.clone()
    lse, logit = kernels.row_statistics(z, target)
    exact = z.to(lse.dtype)
    agree((lse,), (exact.logsumexp(-1, keepdim=True),), BELOW[lse.dtype])
    assert torch.equal(logit, exact.gather(1, target)) and torch.equal(z, before)


@interpreted
@pytest.mark.parametrize("has_map", [False, True], ids=["", "map"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_slope_takes_the_place_of_the_logits(kernels, agree, dtype, has_map):
    z, target = table(dtype)
    lse, _ = kernels.row_statistics(z, target)
    factor, amount = torch.rand(2, 5, 1).to(lse)
    map_slope = torch.rand(5, 11).to(lse) if has_map else None
    want = (factor * z.to(lse.dtype).softmax(-1)).scatter_add(1, target, -amount)
    want = want if map_slope is None else want * map_slope
    got = kernels.row_slope(z, lse, factor, target, amount, map_slope)
    assert got.data_ptr() == z.data_ptr() and got.dtype == dtype
    agree((got.to(lse.dtype),), (want,), 2**-8 if dtype == torch.bfloat16 else BELOW[dtype])


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_row_of_inf_or_nan_has_the_log_probability_of_the_reference(kernels):
    z, target = table()
    z[0], z[1, 6], z[2, 6] = -torch.inf, torch.nan, torch.inf
    lse, logit = kernels.row_statistics(z, target)
    want = z.log_softmax(-1).gather(1, target)
    torch.testing.assert_close(logit - lse, want, equal_nan=True)
    assert (logit - lse)[:3].isnan().all()


OPTIONS = {
    "plain": {},
    "softcap": {"logit_map": Softcap(3.0)},
    "sigsoftmax": {"logit_map": GeneralizedSigsoftmax()},
    "z-loss": {"z_loss": 0.1},
    "token weight": {"token_weight": torch.arange(13.0)},
    "class weight": {"class_weight": torch.arange(11.0)},
    "scale": {"logit_scale": 3.0},
}


@interpreted
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_loss_and_gradients_are_the_reference_s(
    problem, solve, agree, taken, reduction, dtype, name
):
    inputs, options = problem(**SHAPE), {"reduction": reduction, **OPTIONS[name]}
    want = solve(inputs, backend="reference", **options)
    got = solve(in_dtype(inputs, dtype), chunk_bytes=CHUNK_BYTES, **options)
    agree([g.double() for g in got], want, BELOW[dtype])
    assert len(taken) >= 2


@interpreted
@pytest.mark.parametrize("name", ["plain", "softcap"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_impossible_and_ignored_targets_are_the_reference_s(
    problem, solve, agree, taken, reduction, name
):
    inputs, options = problem(**SHAPE), {"reduction": reduction, **OPTIONS[name]}
    inputs.bias[6:8] = -torch.inf
    inputs.target[:] = torch.tensor([0, 6, 2, -100, 5, 7, 6, 3, -100, 10, 9, 8, 1])
    inputs.log_weight[2] = -torch.inf
    want = solve(inputs, backend="reference", **options)
    agree(solve(inputs, chunk_bytes=CHUNK_BYTES, **options), want)
    assert taken and want[0].isinf().any() and all(x.isfinite().all() for x in want[1:])


@interpreted
def test_extra_terms_are_the_reference_s(problem, agree, taken):
    context, log_weight, weight, _, target = problem(**SHAPE)
    log_prob = problem(**SHAPE, seed=1).log_weight
    found = []
    for backend in ("reference", "fused"):
        half = log_weight - math.log(2.0)
        leaves = context.clone().requires_grad_(), half.clone().requires_grad_()
        extra = leaves[1], log_prob
        loss = mixture_cross_entropy(leaves[0], half, weight, target, extra=extra, backend=backend)
        found.append((loss.detach(), *torch.autograd.grad(loss, leaves)))
    agree(found[1], found[0])
    assert taken


@interpreted
@pytest.mark.parametrize("name", ["plain", "softcap", "sigsoftmax"])
def test_bfloat16_is_no_worse_than_the_reference_in_bfloat16(problem, solve, taken, name):
    half, options = in_dtype(problem((30,), E=16, V=50), torch.bfloat16), OPTIONS[name]
    # The truth is that of the rounded inputs.
    truth = solve(in_dtype(half, torch.float64), backend="reference", **options)
    reference = solve(half, backend="reference", **options)
    got = solve(half, chunk_bytes=10_000, **options)
    for mine, its, true in zip(got, reference, truth, strict=True):
        error, its_error = ((x.double() - true).abs().max() for x in (mine, its))
        assert error <= its_error + 2**-8 * true.abs().max() and mine.dtype == its.dtype
    assert taken


@interpreted
def test_log_sum_exps_come_along_and_what_needs_all_probabilities_takes_torch(
    problem, agree, taken
):
    inputs = problem(**SHAPE)._asdict()
    for also, is_taken in ((["lse"], True), (["lse", "entropy", "prediction"], False)):
        taken.clear()
        found = [mixture_loss(**inputs, also=also, backend=b) for b in ("fused", "reference")]
        agree(*([x.by_products[name].double() for name in also] for x in found))
        assert bool(taken) == is_taken
    taken.clear()
    mixture_cross_entropy(**inputs, label_smoothing=0.1)
    inputs["target"] = inputs["target"][:, None].expand(13, 2), torch.full((13, 2), 0.5)
    mixture_cross_entropy(**inputs)
    assert not taken


@interpreted
def test_a_cpu_does_not_take_them(problem, solve, kernels, monkeypatch):
    monkeypatch.setattr(kernels, "row_statistics", None)
    assert all(x.isfinite().all() for x in solve(problem()))
