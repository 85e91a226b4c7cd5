"""Searches and samples of transformers with mixtures as output layers: what they find is theirs.

B sources, T tokens of a target, K components, V vocabulary.
"""

from itertools import product

import pytest
import torch
import torch.nn.functional as F

EOS, LENGTH = 2, 4
TINY = {"vocab_size": 6, "decoder_vocab_size": 6}


@pytest.fixture(params=["marian", "t5", "bart"])
def model(make, request):
    return make.trained(request.param)


@pytest.fixture
def texts():
    """Sources of several lengths, padded to the right."""
    source = torch.randint(3, 30, (5, 7), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(7) < torch.tensor([7, 3, 5, 4, 6])[:, None]
    return {"input_ids": source * mask, "attention_mask": mask.long()}


def search(model, texts, **options):
    """Token ids of each hypothesis, without padding, and their scores."""
    options = {"num_beams": 4, "max_new_tokens": 12, "do_sample": False, **options}
    found = model.generate(**texts, **options, output_scores=True, return_dict_in_generate=True)
    scores = found.sequences_scores.tolist()
    return [(stripped(row), score) for row, score in zip(found.sequences, scores, strict=True)]


def stripped(row):
    """Tokens after the first one, to the end of the text."""
    tokens = row.tolist()[1:]
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def same(found, want):
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in want]
    scores = ([score for _, score in both] for both in (found, want))
    assert next(scores) == pytest.approx(next(scores), abs=1e-4)


def test_a_batch_is_searched_as_its_texts_one_by_one_in_any_order(model, texts):
    together = search(model, texts, num_return_sequences=2)
    for i in range(5):
        length = int(texts["attention_mask"][i].sum())
        one = {name: value[i : i + 1, :length] for name, value in texts.items()}
        same(search(model, one, num_return_sequences=2), together[2 * i : 2 * i + 2])
    order = [3, 0, 4, 2, 1]
    shuffled = search(model, {name: value[order] for name, value in texts.items()})
    same(shuffled, [together[2 * i] for i in order])


def test_the_best_text_is_the_first_of_several_and_caches_change_nothing(model, texts):
    best, several = search(model, texts), search(model, texts, num_return_sequences=4)
    same(several[::4], best)
    assert all(several[i][1] >= several[i + 1][1] for i in range(len(several) - 1) if (i + 1) % 4)
    same(search(model, texts, use_cache=False), best)


@torch.no_grad()
def sequence_log_probs(model, source, targets):
    """log p of each token of targets (N, T), by the formula of a mixture, in float64."""
    kept = []
    output = model.get_output_embeddings()
    hook = output.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    decoder_inputs = F.pad(targets, (1, -1), value=model.config.decoder_start_token_id)
    model(input_ids=source.expand(len(targets), -1), decoder_input_ids=decoder_inputs)
    hook.remove()
    log_weight, context = output.head.double().mixture(kept[0].double())
    logits = F.linear(context, output.embedding.weight, output.embedding.bias)  # (N, T, K, V)
    output.head.float()
    prob = (log_weight.exp().unsqueeze(-1) * logits.softmax(-1)).sum(-2)  # (N, T, V)
    return prob.log().gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def all_targets():
    """All texts of at most LENGTH tokens; those that are cut do not end."""
    others = [token for token in range(6) if token not in (0, EOS)]
    for length in range(LENGTH):
        yield from ([*head, EOS] for head in product(others, repeat=length))
    yield from (list(text) for text in product(others, repeat=LENGTH))


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("name", ["marian", "t5", "m2m100"])
def test_a_wide_beam_finds_the_best_of_all_texts(make, name, penalty):
    """Σ log p of the mixture over lengthᵖ, where the end of a text counts."""
    fields = TINY if name == "marian" else {"vocab_size": 6}
    model = make.trained(name, fields)
    model.generation_config.forced_eos_token_id = None
    source, texts = torch.tensor([[3, 5, 1, 4]]), list(all_targets())
    padded = torch.tensor([text + [0] * (LENGTH - len(text)) for text in texts])
    log_p = sequence_log_probs(model, source, padded) * (padded != 0)
    lengths = torch.tensor([len(text) for text in texts])
    scores = log_p.sum(-1) / lengths.double() ** penalty
    order = scores.argsort(descending=True)[:10]
    want = [(texts[i], scores[i].item()) for i in order]
    options = {"num_beams": 4**LENGTH, "max_new_tokens": LENGTH, "num_return_sequences": 10}
    options |= {"length_penalty": penalty, "early_stopping": "never", "suppress_tokens": [0]}
    same(search(model, {"input_ids": source}, **options), want)


def test_samples_follow_the_mixture(make):
    """With the temperature that is asked for, on the mixture's probabilities."""
    model = make.trained("marian")
    model.generation_config.forced_eos_token_id = None
    source = torch.tensor([[3, 5, 1, 4]]).expand(4000, 4)
    torch.manual_seed(1)
    options = {"max_new_tokens": 1, "do_sample": True, "temperature": 2.0, "top_k": 0}
    found = model.generate(source, attention_mask=torch.ones_like(source), **options)[:, 1]
    first = torch.zeros(1, 1, dtype=torch.long)
    want = (model(input_ids=source[:1], decoder_input_ids=first).logits[0, 0] / 2).softmax(-1)
    shares = torch.bincount(found, minlength=40) / len(found)
    assert (shares - want).abs().max() < 6 * (0.25 / len(found)) ** 0.5
