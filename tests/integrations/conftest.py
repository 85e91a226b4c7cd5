"""Small models of many architectures, to be upgraded, and a tiny run, to be exported."""

import random
import warnings
from types import SimpleNamespace

import pytest
import torch

import highrank
from highrank.config import BatchConfig, HeadConfig, ModelConfig, RunConfig, StageConfig
from highrank.data.prepare import prepare_text
from highrank.run.loading import load_run
from highrank.training.session import open_session

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoModelForCausalLM

V = 60
WORDS = ["the", "a", "cat", "dog", "saw", "chased", "old", "small", "it", "and", "then", "slept"]
SMALL = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"max_position_embeddings": 96, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
WIDE = {**SMALL, "intermediate_size": 24}
FEW = {**WIDE, "num_key_value_heads": 1, "head_dim": 8}
UNDROPPED = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(**SMALL, **UNDROPPED),
    "llama": lambda: transformers.LlamaConfig(**WIDE),
    "qwen3": lambda: transformers.Qwen3Config(**FEW),
    # Soft-capped.
    "gemma2": lambda: transformers.Gemma2Config(
        **FEW, final_logit_softcapping=5.0, query_pre_attn_scalar=8
    ),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(**WIDE),
    "opt": lambda: transformers.OPTConfig(**SMALL, ffn_dim=24, word_embed_proj_dim=16, dropout=0.0),
    # With a bias.
    "phi": lambda: transformers.PhiConfig(**WIDE),
    # With a factor and a divisor of logits.
    "cohere": lambda: transformers.CohereConfig(**WIDE, logit_scale=0.5),
    "granite": lambda: transformers.GraniteConfig(**WIDE, logits_scaling=8.0),
}


def make_plain(name, scale=0.3):
    """A model with weights in no special position."""
    random = torch.Generator().manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, scale, generator=random)
    return model


def make_upgraded(name="llama", **options):
    return highrank.upgrade(make_plain(name), **options)


def make_trained(name="llama", **options):
    """An upgraded model whose components differ."""
    random = torch.Generator().manual_seed(8)
    model = make_upgraded(name, **options)
    with torch.no_grad():
        for key, parameter in model.get_output_embeddings().head.named_parameters():
            if key.rpartition(".")[0] or key == "up":
                parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.2)
    return model


def save_tokenizer(folder, with_start=False):
    """One of words w0, w1, …; with a special token before each text, if wanted."""
    words = ["<unk>", "<s>", *(f"w{i}" for i in range(30))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if with_start:
        inner.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>"
    )
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def make():
    """Makes models: as transformers has them, upgraded, and upgraded with trained heads."""
    return SimpleNamespace(
        plain=make_plain, upgraded=make_upgraded, trained=make_trained, tokenizer=save_tokenizer
    )


@pytest.fixture
def tokens():
    return torch.randint(2, V, (3, 12), generator=torch.Generator().manual_seed(9))


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


@pytest.fixture(autouse=True)
def silent():
    """Without bars; warnings of transformers go to its log."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(autouse=True, scope="session")
def registered():
    highrank.register()


@pytest.fixture(scope="session")
def tale(tmp_path_factory):
    """A prepared corpus of words."""
    place = tmp_path_factory.mktemp("export")
    rng = random.Random(0)
    lines = (" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(120))
    (place / "tale.txt").write_text("\n".join(lines))
    return prepare_text(place / "tale.txt", cache=place / "cache").corpus


@pytest.fixture(scope="session")
def run_of(tale, tmp_path_factory):
    """A function that trains a run with a head and loads it."""

    def train(kind, **options):
        config = RunConfig(
            corpus=str(tale.path),
            model=ModelConfig(embedding_size=8, options={"hidden_sizes": (10, 8)}),
            head=HeadConfig(kind=kind, num_components=2, options=options),
            batch=BatchConfig(batch_size=8, options={"bptt": 20}),
            train=StageConfig(optimizer="adamw", lr=1e-2, epochs=1, clip=1.0),
            valid_batch_size=2,
        )
        folder = tmp_path_factory.mktemp("runs") / kind
        open_session(config, tale, folder).go()
        return load_run(folder)

    return train


@pytest.fixture(scope="session")
def loaded(run_of):
    return run_of("mos")


@pytest.fixture(scope="session")
def exported(loaded, tmp_path_factory):
    """The folder of the export of `loaded`."""
    from highrank.integrations.huggingface.export import export_run

    return export_run(loaded, tmp_path_factory.mktemp("exports") / "mos").folder
