"""Training of upgraded encoder–decoders: labels and options of the loss, and Seq2SeqTrainer."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, models
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

import highrank
from highrank.integrations.huggingface.upgrade import train_head_and_last_block

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["marian", "mbart", "t5", "m2m100"])
def model(make, request):
    return make.trained(request.param).double().train()


def reference(model, pairs, reduction="mean", **options):
    """Cross-entropy of the logits at each label, which is not shifted any more."""
    inputs = {name: pairs[name] for name in ("input_ids", "attention_mask")}
    decoder_inputs = model.prepare_decoder_input_ids_from_labels(pairs["labels"])
    logits = model(**inputs, decoder_input_ids=decoder_inputs).logits.flatten(0, 1)
    return F.cross_entropy(logits, pairs["labels"].flatten(), reduction=reduction, **options)


def test_labels_are_ignored_where_they_are_minus_100_and_items_are_counted(model, pairs):
    want, total = reference(model, pairs), reference(model, pairs, "sum")
    torch.testing.assert_close(model(**pairs).loss, want)
    for is_training in (True, False):
        found = model.train(is_training)(**pairs, num_items_in_batch=torch.tensor(50)).loss
        torch.testing.assert_close(found, total / 50)
    given = model.prepare_decoder_input_ids_from_labels(pairs["labels"])
    torch.testing.assert_close(model(**pairs, decoder_input_ids=given).loss, want)


@pytest.mark.parametrize("is_training", [True, False])
def test_options_of_the_loss_are_those_of_the_mixture(model, pairs, is_training):
    """As torch's own cross-entropy has them, with the gradients of all weights."""
    model.train(is_training)
    want = reference(model, pairs, label_smoothing=0.1)
    output = model(**pairs, label_smoothing=0.1)
    torch.testing.assert_close(output.loss, want)
    assert ("logits" in output) != is_training
    parameters = [p for n, p in model.named_parameters() if "embed_positions" not in n]
    grads = [torch.autograd.grad(loss, parameters) for loss in (output.loss, want)]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-6)
    weight = torch.rand(3, 8).double()
    each = reference(model, pairs, "none")
    used = weight.flatten() * (pairs["labels"].flatten() != -100)
    found = model(**pairs, token_weight=weight).loss
    torch.testing.assert_close(found, (used * each).sum() / used.sum())


def test_soft_labels_need_the_inputs_of_the_decoder(model, pairs):
    labels = pairs.pop("labels")
    ids = torch.stack([labels, (labels + 1) % 40], -1)  # (3, 8, 2)
    ids[labels == -100] = -100
    amount = torch.tensor([0.75, 0.25]).double().expand(3, 8, 2)
    with pytest.raises(ValueError, match="decoder_input_ids must be given with soft labels"):
        model(**pairs, labels=(ids, amount))
    pairs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    log_p = model(**pairs).logits.log_softmax(-1)
    want = -(log_p.gather(-1, ids.clamp_min(0)) * amount).sum(-1)[labels != -100].mean()
    torch.testing.assert_close(model(**pairs, labels=(ids, amount)).loss, want)


def test_a_tuple_has_no_logits_either(model, pairs):
    loss, *rest = model(**pairs, return_dict=False)
    torch.testing.assert_close(loss, model(**pairs).loss)
    assert [part.shape for part in rest] == [(3, 6, 12)]
    both = model(**pairs, return_dict=False, return_logits=True)
    assert both[1].shape == (3, 8, 40)


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_no_logits_are_made_in_training(make, name, watch):
    """Neither in the forward pass nor in the backward pass, with smoothed labels as without."""
    model = make.trained(name).train()
    model.resize_token_embeddings(4000)
    source = torch.randint(3, 30, (16, 6))
    labels = torch.randint(3, 4000, (16, 40))
    for smoothing in (0.0, 0.1):
        with watch() as seen:
            model(input_ids=source, labels=labels, label_smoothing=smoothing).loss.backward()
        assert max(seen.sizes) < 16 * 40 * 4000
    with watch() as seen:
        model.eval()(input_ids=source, labels=labels)
    assert max(seen.sizes) >= 16 * 40 * 4000


def test_a_bias_that_was_not_trained_is_not_trained(make, pairs):
    """It is a part of each softmax, but no parameter, as in transformers."""
    model = make.trained("marian").train()
    bias = model.get_output_embeddings().embedding.bias.clone()
    assert not any("bias" in n for n, _ in model.get_output_embeddings().named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(**pairs).loss.backward()
    optimizer.step()
    assert bias.any() and torch.equal(model.get_output_embeddings().embedding.bias, bias)


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_parts_are_frozen(make, name, pairs):
    model = highrank.upgrade(make.plain(name)).train()
    train_head_and_last_block(model)
    model(**pairs).loss.backward()
    names = [n for n, p in model.named_parameters() if p.grad is not None]
    assert any("lm_head.head.up" in n for n in names)
    assert all("lm_head" in n or "decoder" in n for n in names) and len(names) > 10


def test_a_loss_that_would_not_be_called_is_refused(make):
    with pytest.raises(ValueError, match="loss_function, which transformers would not call"):
        make.trained("t5").loss_function = lambda logits, labels, **_: logits.sum()


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_bfloat16_has_nearly_the_same_loss(make, name, pairs):
    model = make.trained(name).train()
    want = model(**pairs).loss
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(**pairs).loss, want, rtol=0.02, atol=0.02)
    model.to(torch.bfloat16)(**pairs).loss.backward()
    assert abs(model(**pairs).loss.item() - want.item()) < 0.2


@pytest.fixture
def collator(make):
    """What transformers makes batches of pairs with; for a model of its own it shifts labels."""
    words = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(37))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>"
    )
    return lambda model: DataCollatorForSeq2Seq(tokenizer, model=model)


def trainer_of(model, collator, folder, **options):
    options = {"report_to": [], "use_cpu": True, "per_device_train_batch_size": 2, **options}
    arguments = Seq2SeqTrainingArguments(folder, **options)
    random = torch.Generator().manual_seed(4)
    lengths = ((5, 7), (3, 4), (6, 5), (4, 6))
    rows = [
        [torch.randint(3, 40, (n,), generator=random).tolist() for n in both] for both in lengths
    ]
    data = [{"input_ids": source, "labels": [*target, 2]} for source, target in rows]
    gather = collator(model)
    return Seq2SeqTrainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data,
        data_collator=gather,
        processing_class=gather.tokenizer,
        compute_metrics=lambda found: {"length": found.predictions.shape[1]},
    )


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_a_trainer_trains_evaluates_generates_and_resumes(make, name, collator, tmp_path):
    """With accumulated gradients; a resumed run ends where the other one does."""
    options = {"gradient_accumulation_steps": 2, "max_steps": 4, "save_steps": 2}
    options |= {"learning_rate": 1e-2, "predict_with_generate": True}
    options |= {"generation_num_beams": 2}
    trainers = [
        trainer_of(highrank.upgrade(make.plain(name)), collator, tmp_path, **options)
        for _ in range(2)
    ]
    before = trainers[0].evaluate()
    trainers[0].train()
    after = trainers[0].evaluate()
    assert after["eval_loss"] < before["eval_loss"] and after["eval_length"] == 20
    trainers[1].train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    both = (trainer.model.parameters() for trainer in trainers)
    assert all(torch.equal(got, want) for got, want in zip(*both, strict=True))


def test_accumulated_gradients_are_those_of_one_batch(make, collator, tmp_path):
    """Of targets of different lengths, each token with the same weight."""
    found = []
    for size, steps in ((4, 1), (1, 4)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        options |= {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0}
        model = make.trained("marian")
        trainer_of(model, collator, tmp_path, lr_scheduler_type="constant", **options).train()
        found.append(dict(model.named_parameters()))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["marian", "m2m100"])
def test_a_trainer_smooths_labels_without_a_shift(make, name, pairs, collator, tmp_path):
    """It makes all logits, of which the smoothed loss is that of the mixture, too."""
    model = make.trained(name)
    trainer = trainer_of(model, collator, tmp_path, label_smoothing_factor=0.1)
    given = model.prepare_decoder_input_ids_from_labels(pairs["labels"])
    found = trainer.compute_loss(model.train(), {**pairs, "decoder_input_ids": given})
    torch.testing.assert_close(found, reference(model, pairs, label_smoothing=0.1))
    torch.testing.assert_close(found, model(**pairs, label_smoothing=0.1).loss)
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] > 0
