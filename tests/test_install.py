"""What works with torch, numpy and safetensors alone, and what the extras add."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from highrank.build import build_model
from highrank.config import HeadConfig, ModelConfig, RunConfig
from highrank.data.corpus import MemoryCorpus
from highrank.data.vocabulary import Vocabulary
from highrank.integrations.huggingface.library import LEAST_VERSION
from highrank.models.weights import save_state
from highrank.run.folder import prepare_folder
from highrank.training.checkpoint import save_model

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "highrank"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = {"torch", "numpy", "safetensors"}
# Classes and kernels that are made of what an extra brings; imported where they are needed.
OF_EXTRAS = {
    "highrank.ops.mixture_cross_entropy.triton_rows",
    "highrank.integrations.huggingface.auto",
    "highrank.integrations.huggingface.card",
    "highrank.integrations.huggingface.export",
    "highrank.integrations.huggingface.model",
    "highrank.integrations.huggingface.run_model",
    "highrank.integrations.huggingface.run_tokenizer",
    "highrank.integrations.lm_eval",
}
# Layers that need the extra `cli`.
COMMAND = {"report", "studies", "cli", "__main__"}
MESSAGE = (
    "highrank: the command needs rich and tyro: pip install '.[cli]' (in highrank's checkout)\n"
)
LIBRARY = """
import sys, torch
from highrank import MixtureOfSoftmaxes, load, mixture_cross_entropy, presets

head = MixtureOfSoftmaxes(hidden_size=6, vocab_size=11, num_components=3, embedding_size=4)
hidden, target = torch.randn(7, 6), torch.randint(11, (7,))
loss = head(hidden, target).loss
log_weight, context = head.mixture(hidden)
torch.testing.assert_close(
    loss, mixture_cross_entropy(context, log_weight, head.weight, target, bias=head.bias)
)
loss.backward()
assert head.weight.grad.abs().sum() > 0

model, vocabulary = load(sys.argv[1])
words = torch.tensor([[0], [1], [2]])
assert model(words, words, model.initial_state(1)).loss.isfinite()
assert len(vocabulary) == 3 and presets.get("ptb-mos").head.num_components == 15
"""


def names(requirements):
    return {re.split(r"[>=\[]", requirement)[0] for requirement in requirements}


EXTRAS = {extra: names(wanted) for extra, wanted in PROJECT["optional-dependencies"].items()}
OPTIONAL = set().union(*EXTRAS.values()) - {"highrank"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder with an untrained model."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    config = RunConfig(
        corpus="tale",
        model=ModelConfig(embedding_size=4, options={"hidden_sizes": (5,)}),
        head=HeadConfig(num_components=2),
    )
    corpus = MemoryCorpus(Vocabulary(("<eos>", "a", "b")), {"train": np.array([0, 1, 2])})
    prepare_folder(folder, config, corpus)
    save_model(folder / "model.safetensors", save_state(build_model(config, vocab_size=3)))
    return folder


def python(code, *arguments, without=()):
    """A fresh interpreter in which some packages cannot be imported."""
    block = f"import sys\nsys.modules.update(dict.fromkeys({sorted(without)}))\n"
    return subprocess.run(
        [sys.executable, "-c", block + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_head_a_loss_and_a_run_need_no_extra(run):
    done = python(LIBRARY, run, without=OPTIONAL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_all_but_the_command_can_be_imported_without_extras():
    paths = [path.relative_to(SOURCE.parent).with_suffix("") for path in SOURCE.rglob("*.py")]
    modules = {".".join(path.parts) for path in paths if path.parts[1] not in COMMAND}
    assert modules > OF_EXTRAS
    modules -= OF_EXTRAS
    done = python(f"for name in {modules}: __import__(name)", without=OPTIONAL)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("missing", ["rich", "tyro"])
def test_the_command_names_its_extra_in_one_line(missing):
    code = "from highrank.__main__ import main\nmain()"
    done = python(code, "--version", without={missing})
    assert (done.returncode, done.stdout, done.stderr) == (2, "", MESSAGE)


def test_a_picture_that_cannot_be_drawn_is_refused_before_any_work():
    code = "from highrank.__main__ import main\nmain()"
    done = python(code, "demo", without={"matplotlib"})
    assert done.returncode == 2
    assert done.stderr == MESSAGE.replace("rich and tyro", "matplotlib")


def test_the_core_is_three_packages():
    assert names(PROJECT["dependencies"]) == CORE


def test_all_is_every_extra_but_those_of_developers_and_the_largest():
    (requirement,) = PROJECT["optional-dependencies"]["all"]
    others = ("all", "dev", "eval", "triton")
    assert requirement == f"highrank[{','.join(e for e in EXTRAS if e not in others)}]"
    assert "highrank[all]" in PROJECT["optional-dependencies"]["dev"]
    assert f"transformers>={LEAST_VERSION}" in PROJECT["optional-dependencies"]["hf"]


def test_messages_hint_at_extras_that_exist_and_at_no_index():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "pip install" not in text or path.name == "environment.py", path
        assert set(re.findall(r"install_hint\([\"'](\w+)", text)) <= EXTRAS.keys(), path


@pytest.mark.slow
def test_an_empty_environment_gets_the_core_and_it_works(run, tmp_path):
    """The real thing: a wheel, a new environment, pip. Packages come from where pip finds them."""
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    subprocess.run([sys.executable, *pip, *build], check=True)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    bin_ = tmp_path / "venv" / "bin"
    (wheel,) = tmp_path.glob("*.whl")
    install = ["install", "--constraint", ROOT / "constraints.txt", wheel]
    subprocess.run([bin_ / "python", *pip, *install], check=True)
    # The environment of the tests may lead to this checkout.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "env": clean}
    done = subprocess.run([bin_ / "python", "-c", LIBRARY, run], **options)
    assert (done.returncode, done.stderr) == (0, "")
    found = subprocess.run([bin_ / "python", *pip, "list", "--format=freeze"], **options).stdout
    # jinja2 comes with torch.
    assert (OPTIONAL - {"jinja2"}).isdisjoint(names(found.lower().split()))
    done = subprocess.run([bin_ / "highrank", "--version"], **options)
    assert (done.returncode, done.stderr) == (2, MESSAGE)
