"""The loss of upgraded models: options, soft labels, penalties, and calls in several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

import highrank
from highrank.integrations.huggingface.output_layer import run

WEIGHT = torch.linspace(0.5, 2.0, 60).double()


def head_of(model):
    return model.get_output_embeddings().head


@pytest.fixture(params=["llama", "gpt2", "gemma2"])
def model(make, request):
    return make.trained(request.param).double()


@pytest.fixture
def labels(tokens):
    labels = tokens.clone()
    labels[0, :5], labels[2, 7:] = -100, -100
    return labels


def log_probs(model, tokens):
    """Of the next tokens (33, 60)."""
    return model(input_ids=tokens).logits[:, :-1].flatten(0, 1).log_softmax(-1)


def z_loss(model, tokens):
    """Σ_k π_k lse_k² of each token."""
    hidden, _ = run(model, tokens, "it")
    head = head_of(model)
    log_weight, context = head.mixture(hidden[:, :-1].flatten(0, 1))
    logits = F.linear(context, head.weight, head.bias)
    logits = logits if head.logit_map is None else head.logit_map(logits)
    return (log_weight.exp() * logits.logsumexp(-1).square()).sum(-1)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", ["label_smoothing", "class_weight", "token_weight", "z_loss"])
def test_options_of_the_loss(model, tokens, labels, name, is_training):
    """As torch's own cross-entropy has them, with the gradients of all weights."""
    model.train(is_training)
    target, log_p = labels[:, 1:].flatten(), log_probs(model, tokens)
    position = torch.rand(3, 12, generator=torch.Generator().manual_seed(0)).double()
    values = {"label_smoothing": 0.2, "class_weight": WEIGHT, "z_loss": 0.1}
    value = position if name == "token_weight" else values[name]
    if name == "token_weight":
        weight = position[:, 1:].flatten() * (target != -100)
        want = (weight * F.cross_entropy(log_p, target, reduction="none")).sum() / weight.sum()
    elif name == "z_loss":
        kept = target != -100
        want = F.cross_entropy(log_p, target) + 0.1 * z_loss(model, tokens)[kept].mean()
    else:
        own = {"label_smoothing": 0.2} if name == "label_smoothing" else {"weight": WEIGHT}
        want = F.cross_entropy(log_p, target, **own)
    output = model(input_ids=tokens, labels=labels, **{name: value})
    torch.testing.assert_close(output.loss, want)
    assert ("logits" in output) != is_training
    if not is_training:
        torch.testing.assert_close(output.logits, model(input_ids=tokens).logits)
    grads = [torch.autograd.grad(x, list(model.parameters())) for x in (output.loss, want)]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_training", [True, False])
def test_soft_labels_are_shifted_as_others(model, tokens, is_training):
    """Ids and probabilities of a teacher's likeliest tokens, as a tuple."""
    model.train(is_training)
    ids = torch.stack([tokens, (tokens + 1) % 60], -1)  # (3, 12, 2)
    amount = torch.tensor([0.75, 0.25]).double().expand(3, 12, 2)
    ids[1, 6] = -100
    log_p = log_probs(model, tokens).unflatten(0, (3, 11))
    found = log_p.gather(-1, ids[:, 1:].clamp_min(0)) * amount[:, 1:]
    want = -found.sum(-1)[ids[:, 1:, 0] != -100].mean()
    torch.testing.assert_close(model(input_ids=tokens, labels=(ids, amount)).loss, want)
    next_ones = ids.roll(-1, 1)
    next_ones[:, -1] = -100
    labels = tokens.new_full((3, 12), -100)
    found = model(tokens, labels=labels, shift_labels=(next_ones, amount.roll(-1, 1)), z_loss=0.0)
    torch.testing.assert_close(found.loss, want)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"label_smooth": 0.1}, "an option of the loss must be one of .* got 'label_smooth'"),
        ({"labels_smoothing": 0.1}, "must be one of class_weight, .* got 'labels_smoothing'"),
        ({"smoothing": 0.1}, "must be one of class_weight, .* got 'smoothing'"),
        ({"weight": torch.ones(60)}, "must be one of class_weight, .* got 'weight'"),
        ({"ignore_idx": 0}, "must be one of class_weight, .* got 'ignore_idx'"),
        ({"reduction": "sum"}, "must be one of class_weight, .* got 'reduction'"),
        ({"logit_scale": 2.0}, "must be one of class_weight, .* got 'logit_scale'"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1, got 1"),
        ({"z_loss": 0.1, "labels": None}, "labels must be given with z_loss, got None"),
    ],
)
def test_other_options_are_refused(make, tokens, options, message):
    """transformers itself ignores arguments that it does not know."""
    with pytest.raises(ValueError, match=message):
        make.upgraded("llama").train()(**{"input_ids": tokens, "labels": tokens, **options})
    model = make.upgraded("llama", head="adaptive-mos", start="random")
    with pytest.raises(ValueError, match="z_loss must be left out for AdaptiveMixture"):
        model(input_ids=tokens, labels=tokens, z_loss=0.1)


def test_labels_must_have_the_shape_of_the_tokens(make, tokens):
    """Or they would be read in another order, or for tokens that `logits_to_keep` has dropped."""
    model = make.upgraded("llama").train()
    with pytest.raises(ValueError, match=r"token_weight must be \(3, 12\), got \(12, 3\)"):
        model(input_ids=tokens, labels=tokens.T)
    with pytest.raises(ValueError, match=r"token_weight must be \(3, 12\), got \(12, 3\)"):
        model(input_ids=tokens, labels=tokens, token_weight=torch.ones(12, 3))
    with pytest.raises(ValueError, match=r"token_weight must be \(3, 1\), got \(3, 12\)"):
        model(input_ids=tokens, labels=tokens, logits_to_keep=1)


def test_the_penalty_of_a_head_is_in_the_loss_of_training(make, tokens):
    """Once, with or without logits, and weighted by targets where gradients are accumulated."""
    model = make.trained("llama", head="sparse-mos", start="random", balance=30.0).double()
    plain = F.nll_loss(log_probs(model, tokens), tokens[:, 1:].flatten())
    hidden, _ = run(model, tokens, "it")
    penalty = head_of(model).penalty(hidden)
    assert penalty > 0.01
    model.train()
    for return_logits in (True, False):
        found = model(input_ids=tokens, labels=tokens, return_logits=return_logits)
        torch.testing.assert_close(found.loss, plain + penalty)
    found = model(input_ids=tokens, labels=tokens, num_items_in_batch=66).loss
    torch.testing.assert_close(found, (plain + penalty) / 2)


def test_threads_do_not_change_each_others_outputs(make, tokens):
    """As in a server that also fine-tunes, or in torch.nn.DataParallel."""
    model = make.trained("llama").train()
    want = model(input_ids=tokens).logits
    loss = model(input_ids=tokens, labels=tokens).loss

    def call(i):
        output = model(input_ids=tokens, labels=tokens if i % 2 else None)
        return output.loss if i % 2 else output.logits

    with ThreadPoolExecutor(8) as pool:
        for i, found in enumerate(pool.map(call, range(200))):
            torch.testing.assert_close(found, loss if i % 2 else want)


def test_code_that_computes_with_the_weight_of_the_output_layer_gets_an_error(make, tokens):
    """As fused losses for linear layers do: they would train and evaluate no mixture."""
    layer, hidden = make.upgraded("llama").lm_head, torch.randn(3, 16)
    bypasses = (lambda: F.linear(hidden, layer.weight), lambda: hidden @ layer.weight.T)
    methods = (lambda: layer.weight[0], lambda: layer.weight.float(), lambda: layer.weight * 2)
    for bypass in (*bypasses, *methods, lambda: np.asarray(layer.weight)):
        with pytest.raises((ValueError, AttributeError), match="would bypass the mixture"):
            bypass()
    config = transformers.MambaConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, state_size=4
    )
    model = highrank.upgrade(transformers.AutoModelForCausalLM.from_config(config))
    # It reads the precision of the weight.
    assert model(input_ids=tokens, labels=tokens).loss.isfinite()
