"""Upgraded output layers where highrank is not installed, and the sampling of docs/serving.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare
from torch.utils.flop_counter import FlopCounterMode

from highrank.heads import LowRankMixture
from highrank.integrations.huggingface.output_layer import HeadOutputLayer

DOCS = Path(__file__).parents[3] / "docs" / "serving.md"
RUN = """
import sys, torch
sys.modules["highrank"] = None
kind, path, data = sys.argv[1:]
hidden, want = torch.load(data)
aoti = torch._inductor.aoti_load_package
layer = aoti(path) if kind == "aoti" else torch.export.load(path).module()
torch.testing.assert_close(layer(hidden), want)
"""


@pytest.fixture(params=["gpt2", "gemma2", "cohere"])
def layer(make, request):
    """With a softcap and a scale, too."""
    return make.trained(request.param).get_output_embeddings().eval()


@pytest.fixture
def program(layer):
    shapes = ({0: torch.export.Dim("n")},)
    return torch.export.export(layer, (torch.randn(4, 16),), dynamic_shapes=shapes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["export", pytest.param("aoti", marks=pytest.mark.slow)])
def test_an_exported_layer_needs_no_highrank(layer, program, tmp_path, kind):
    path, hidden = str(tmp_path / "head.pt2"), torch.randn(9, 16)
    if kind == "aoti":
        torch._inductor.aoti_compile_and_package(program, package_path=path)
    else:
        torch.export.save(program, path)
    torch.save((hidden, layer(hidden).detach()), tmp_path / "data.pt")
    command = [sys.executable, "-c", RUN, kind, path, str(tmp_path / "data.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore")
def test_onnx_has_the_same_logits(layer, program, tmp_path):
    pytest.importorskip("onnxscript")
    runtime, path = pytest.importorskip("onnxruntime"), str(tmp_path / "head.onnx")
    torch.onnx.export(program, (), path, dynamo=True, verbose=False)
    session, hidden = runtime.InferenceSession(path), torch.randn(9, 16)
    (found,) = session.run(None, {session.get_inputs()[0].name: hidden.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(hidden), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("K, costs", [(2, "2.00 1.00"), (4, "4.01 1.01")])
def test_the_cost_at_one_token_is_that_of_the_page(K, costs):
    head, hidden = LowRankMixture(768, 50_257, K, None, bias=False).eval(), torch.randn(1, 768)
    found = []
    for call in (HeadOutputLayer(head), head.sample):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            call(hidden)
        found.append(counter.get_total_flops() / (2 * 768 * 50_257))
    assert " ".join(f"{ratio:.2f}" for ratio in found) == costs
    for ratio in costs.split():
        assert f"| {ratio} |" in DOCS.read_text()


def test_a_token_through_one_component_is_one_of_the_mixture(make):
    (block,) = re.findall(r"```python\n(def sample.*?)```", DOCS.read_text(), re.DOTALL)
    names = {"torch": torch}
    exec(block, names)
    head = make.trained("phi").get_output_embeddings().head
    torch.manual_seed(0)
    hidden = torch.randn(1, 16)
    counts = names["sample"](head, hidden.expand(20_000, 16)).flatten().bincount(minlength=60)
    want = head.log_prob(hidden)[0].detach().exp().double()
    assert chisquare(counts, 20_000 * want / want.sum()).pvalue > 1e-3
