"""An upgraded Hugging Face model is audited as the mixture it is."""

import warnings

import pytest
import torch

import highrank
from highrank.studies.audit.measure import run_audit
from highrank.studies.audit.model import find_model
from highrank.studies.audit.page import audit_page

with warnings.catch_warnings():
    # What transformers warns of while it is imported is not ours.
    warnings.simplefilter("ignore")
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["<unk>", *(f"w{i}" for i in range(39))]
SMALL = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
CONFIGS = {
    "cohere": lambda: transformers.CohereConfig(**SMALL, logit_scale=0.5),
    "gemma2": lambda: transformers.Gemma2Config(
        **SMALL, head_dim=4, num_key_value_heads=1, final_logit_softcapping=5.0
    ),
}


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
        model = highrank.upgrade(model, num_components=3, rank=2)
        for parameter in model.lm_head.head.parameters():
            parameter.normal_()
    return model


@pytest.fixture
def folder(model, tmp_path):
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(tmp_path / "model")
    known = {word: index for index, word in enumerate(WORDS)}
    inner = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path / "model")
    words = torch.randint(1, 40, (600,))
    (tmp_path / "text.txt").write_text(" ".join(WORDS[i] for i in words))
    return tmp_path


def test_its_layer_is_its_head(name, model, folder):
    loaded = find_model(str(folder / "model"), folder / "text.txt", "cpu").load()
    facts = loaded.layer.facts
    assert loaded.architecture == type(model).__name__
    assert (facts.kind, facts.num_components, facts.is_tied) == ("low-rank-mos", 3, True)
    assert (facts.scale, facts.softcap) == ((0.5, None) if name == "cohere" else (1.0, 5.0))
    assert loaded.layer.bound.value is None and loaded.layer.vectors is None
    tokens = torch.arange(10)[None]
    hidden = loaded.hidden_states(tokens)[0]  # (10, D)
    (found,) = loaded.layer.log_probs(hidden, torch.float64).make_blocks()
    want = model(input_ids=tokens).logits[0]
    torch.testing.assert_close(found.float(), want, rtol=0, atol=1e-4)


def test_an_audit_finds_a_rank_beyond_the_softmax_and_reports_components(name, folder):
    found = find_model(str(folder / "model"), folder / "text.txt", "cpu")
    result = run_audit([found], num_contexts=60, quick=True)
    (audit,) = result.models
    assert audit.rank.bound is None and audit.rank.numerical_rank > 8 + 1
    assert audit.mixture is not None and len(audit.mixture.components) == 3
    assert "low-rank-mos" in audit_page(result)
