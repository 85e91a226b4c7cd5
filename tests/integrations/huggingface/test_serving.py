"""Upgraded output layers where highrank is not installed, and the sampling of docs/serving.md."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chisquare
from torch.utils.flop_counter import FlopCounterMode

import highrank
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


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_whole_model_is_exported_to_torch_and_onnx(make, tmp_path):
    """For any number of texts, of any length."""
    model, path = Logits(make.trained("llama").eval()), str(tmp_path / "model.onnx")
    given, tokens = torch.randint(2, 60, (2, 7)), torch.randint(2, 60, (3, 11))
    shapes = ({0: torch.export.Dim("b"), 1: torch.export.Dim("t")},)
    program = torch.export.export(model, (given,), dynamic_shapes=shapes)
    torch.testing.assert_close(program.module()(tokens), model(tokens))
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    torch.onnx.export(program, (), path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(tokens), rtol=1e-4, atol=1e-4)


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


class Llama(torch.nn.Module):
    """What the plugin needs of vLLM's: it takes the weights that are left."""

    def __init__(self, *, vllm_config, prefix):
        super().__init__()

    def load_weights(self, weights):
        self.given = dict(weights)
        return set(self.given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("head", ["mos", "mos+constant"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_the_plugin_of_vllm_loads_a_folder(make, tmp_path, monkeypatch, head, is_tied):
    plain = make.plain("llama")
    if is_tied:
        plain.lm_head.weight, plain.config.tie_word_embeddings = (
            plain.model.embed_tokens.weight,
            True,
        )
    model = highrank.upgrade(plain, head=head).eval()
    model.save_pretrained(tmp_path)
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("llama")
    module.LlamaForCausalLM = Llama
    monkeypatch.setitem(sys.modules, "vllm.model_executor.models.llama", module)
    (block,) = re.findall(r'```python\n("""highrank_vllm.*?)```', DOCS.read_text(), re.DOTALL)
    names = {}
    exec(block, names)
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=model.config),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    served = names["HighRankLlamaForCausalLM"](vllm_config=config)
    loaded = served.load_weights(load_file(tmp_path / "model.safetensors").items())
    assert {f"mixture.head.{key}" for key in served.mixture.head.state_dict()} <= loaded
    assert ("lm_head.weight" in served.given) == (not is_tied)
    hidden = torch.randn(5, 16)
    want = model.get_output_embeddings()(hidden)
    torch.testing.assert_close(served.compute_logits(hidden), want)
