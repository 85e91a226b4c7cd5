"""The ways in which a head can start, and back to a softmax."""

import copy

import pytest
import torch

import highrank
from highrank.heads import COMPOSED, HEADS, LowRankMixture, Pointwise, head_arguments
from highrank.integrations.huggingface.starts import NEAR_ZERO, NOISE, NOT_STORED
from highrank.integrations.huggingface.upgrade import to_softmax


@torch.no_grad()
def log_probs(model, tokens):
    return model(input_ids=tokens).logits.log_softmax(-1)


def head_of(model):
    return model.get_output_embeddings().head


def test_a_folder_has_all_options_of_its_head(make):
    """Also those that nobody has set: a default may be another one tomorrow."""
    options = make.upgraded("llama", dropout=0.1).config.output_head["options"]
    assert set(options) == set(head_arguments("low-rank-mos")) - set(NOT_STORED)
    assert (options["rank"], options["dropout"], options["bias"]) == (32, 0.1, False)
    assert (options["activation"], options["batch_first"]) == ("identity", True)


@pytest.mark.parametrize("start", ["residual", "identity"])
def test_components_differ_a_little_and_have_equal_weights(make, start):
    head = head_of(make.upgraded("llama", start=start))
    log_weight, context = head.mixture(torch.randn(50, 16))
    assert (log_weight == log_weight[0, 0]).all()
    spread = (context - context.mean(-2, keepdim=True)).abs().amax((0, 2))  # (K,)
    assert (spread > 0).all() and (spread < 1e-2).all()


def test_noise_is_smaller_where_logits_are_larger(make):
    """What is asked for, or as much of it as no log-probability feels."""
    found = []
    for scale in (0.05, 10.0):
        model = highrank.upgrade(make.plain("llama", scale), start="identity")
        off = head_of(model).latent.weight[:16].clone().fill_diagonal_(0)
        found.append(off.abs().max().item())
    assert NOISE < found[0] < 10 * NOISE and found[1] < found[0] / 4


@pytest.mark.parametrize("start", ["residual", "identity"])
def test_a_seed_decides_the_noise_and_no_other_random_number(make, start):
    models, heads = [make.plain("llama") for _ in range(3)], []
    torch.manual_seed(3)
    want = torch.rand(3)
    torch.manual_seed(3)
    for model, seed in zip(models, (0, 0, 1), strict=True):
        heads.append(head_of(highrank.upgrade(model, start=start, seed=seed)).state_dict())
    assert torch.equal(torch.rand(3), want)
    name = "up" if start == "residual" else "latent.weight"
    assert torch.equal(heads[0][name], heads[1][name])
    assert not torch.equal(heads[0][name], heads[2][name])


@pytest.mark.parametrize("name", ["llama", "phi", "gemma2", "cohere"])
def test_new_components_have_nearly_no_weight(make, tokens, name):
    model = make.plain(name)
    before = log_probs(model, tokens)
    model = highrank.upgrade(model, start="new", rank=4)
    distance = (log_probs(model, tokens).exp() - before.exp()).abs().sum(-1) / 2
    assert distance.max() <= NEAR_ZERO
    weight = head_of(model).mixture(torch.randn(5, 16)).log_weight.exp()
    torch.testing.assert_close(weight[:, 0], torch.full((5,), 1 - NEAR_ZERO))
    assert (head_of(model).up[0] == 0).all() and head_of(model).up[1:].std() > 0.01


def test_constants_have_nearly_no_weight_and_keep_their_counts(make, tokens, tmp_path):
    counts = list(range(60))
    model = make.plain("gpt2")
    before = log_probs(model, tokens)
    model = highrank.upgrade(model, "mos+constant", token_counts=counts, num_topics=2)
    distance = (log_probs(model, tokens).exp() - before.exp()).abs().sum(-1) / 2
    assert 0 < distance.max() <= NEAR_ZERO
    model.save_pretrained(tmp_path)
    loaded = highrank.load_huggingface(tmp_path)
    assert "token_counts" not in str(loaded.config)
    want = torch.arange(1, 61).log().log_softmax(0)
    torch.testing.assert_close(head_of(loaded).components[0].log_frequency, want)
    assert torch.equal(log_probs(loaded, tokens), log_probs(model, tokens))
    assert loaded.get_output_embeddings().embedding.weight is loaded.get_input_embeddings().weight
    with pytest.raises(ValueError, match="must be a mixture to be resized, got mos.constant"):
        loaded.resize_token_embeddings(64)
    assert loaded.get_input_embeddings().num_embeddings == 60


@pytest.mark.parametrize("name", ["llama", "phi", "gemma2", "cohere"])
def test_a_softmax_is_the_model_with_our_loss(make, tokens, name):
    model = make.plain(name)
    want = model(input_ids=tokens, labels=tokens).loss
    before = log_probs(model, tokens)
    model = highrank.upgrade(model, "softmax")
    torch.testing.assert_close(log_probs(model, tokens), before, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.train()(input_ids=tokens, labels=tokens).loss, want)


REFUSED = {
    "doc": "with several layers",
    "mos+pointer": "with earlier tokens",
    "adaptive-softmax+pointer": "with earlier tokens",
}


@pytest.mark.parametrize("kind", [*HEADS, *COMPOSED])
def test_any_head_of_the_last_state_can_be_trained_from_scratch(make, tokens, kind, tmp_path):
    if kind in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[kind]):
            make.upgraded("gpt2", head=kind, start="random")
        return
    model = make.upgraded("gpt2", head=kind, start="random").train()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    assert loss.isfinite() and model.get_output_embeddings().embedding.weight.grad is not None
    model.eval().save_pretrained(tmp_path)
    other = tokens.clone()
    other[0] = tokens[0].flip(0)
    # No sequence of a batch depends on another one.
    assert torch.equal(log_probs(model, other)[1:], log_probs(model, tokens)[1:])
    loaded = highrank.load_huggingface(tmp_path)
    assert torch.equal(log_probs(loaded, tokens), log_probs(model, tokens))
    assert loaded.get_output_embeddings().embedding.weight is loaded.get_input_embeddings().weight


@pytest.mark.parametrize("kind", ["mos", "moc", "adaptive-mos"])
def test_contexts_that_start_at_random_are_linear(make, kind):
    for activation, options in (("identity", {}), ("tanh", {"activation": "tanh"})):
        head = head_of(make.upgraded("gpt2", head=kind, start="random", **options))
        assert head.activation == activation


def test_a_class_makes_a_model_with_random_weights(make, tokens):
    """From a configuration alone, with the architecture's own start of the embedding."""
    model = make.upgraded("llama")
    fresh = type(model)(copy.deepcopy(model.config)).eval()
    assert fresh.lm_head.embedding.weight.std() < 0.05 and type(head_of(fresh)) is LowRankMixture
    assert fresh(input_ids=tokens).logits.shape == (3, 12, 60)
    assert head_of(fresh).up.std() > 0


@pytest.mark.parametrize("start", ["residual", "identity"])
@pytest.mark.parametrize("name", ["gpt2", "phi", "gemma2", "cohere"])
def test_equal_components_become_a_softmax_again(make, tokens, name, start):
    model = make.plain(name)
    before, fields = log_probs(model, tokens), model.config.to_dict()
    restored = to_softmax(highrank.upgrade(model, start=start, noise=0.0))
    assert type(restored) is type(model)
    torch.testing.assert_close(log_probs(restored, tokens), before, rtol=0, atol=1e-5)
    assert restored.config.to_dict() == fields
    is_tied = restored.get_output_embeddings().weight is restored.get_input_embeddings().weight
    assert is_tied == (name != "phi")


def test_a_linear_context_is_folded_into_the_weight(make, tokens):
    model = make.upgraded("phi", start="identity", num_components=1)
    with torch.no_grad():
        head_of(model).latent.weight.normal_()
        head_of(model).latent.bias.normal_()
    want = log_probs(model, tokens)
    torch.testing.assert_close(log_probs(to_softmax(model), tokens), want, rtol=0, atol=1e-4)


def test_a_mixture_is_not_restored(make):
    with pytest.raises(ValueError, match="exactly one softmax .* got LowRankMixture with 4 comp"):
        to_softmax(make.upgraded("llama"))
    with pytest.raises(ValueError, match="must be an upgraded one, got LlamaForCausalLM"):
        to_softmax(make.plain("llama"))
    model = make.upgraded("llama", start="identity", num_components=1)
    with torch.no_grad():
        head_of(model).latent.bias.normal_()
    with pytest.raises(ValueError, match="no bias where the layer had none"):
        to_softmax(model)


def test_softcaps_need_plain_logits(make):
    with pytest.raises(ValueError, match="softcap of 5.0 must get a mixture .* got Pointwise"):
        make.upgraded("gemma2", head="pointwise", start="random")
    with pytest.raises(ValueError, match="softcap of 5.0 must get a mixture .* got mos.constant"):
        make.upgraded("gemma2", head="mos+constant")
    assert type(head_of(make.upgraded("llama", head="pointwise", start="random"))) is Pointwise
