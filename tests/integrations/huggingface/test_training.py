"""Training of upgraded models: labels, accumulation, precision, trainers, adapters."""

import pytest
import torch
import torch.nn.functional as F
import transformers

import highrank
from highrank.integrations.huggingface.upgrade import train_head, train_head_and_last_block

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["llama", "gpt2"])
def model(make, request):
    return make.trained(request.param).train()


def loss_of(model, tokens, labels, **options):
    return model(input_ids=tokens, labels=labels, **options).loss


def reference(model, tokens, labels, reduction="mean"):
    """Position t predicts the label at t + 1."""
    logits = model(input_ids=tokens).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction=reduction)


def test_labels_are_shifted_once_and_ignored_where_they_are_minus_100(model, tokens):
    labels = tokens.clone()
    labels[0, :5], labels[2, 7:] = -100, -100
    want, total = (reference(model, tokens, labels, by) for by in ("mean", "sum"))
    torch.testing.assert_close(loss_of(model, tokens, labels), want)
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(loss_of(model, tokens, labels, shift_labels=shifted), want)
    for count in (50, torch.tensor(50)):
        found = loss_of(model, tokens, labels, num_items_in_batch=count)
        torch.testing.assert_close(found, total / 50)
    torch.testing.assert_close(loss_of(model.eval(), tokens, labels), want)


def test_no_logits_are_made_in_training(make, watch):
    """Neither in the forward pass nor in the backward pass; in evaluation they are."""
    model = make.trained("llama").train()
    model.resize_token_embeddings(4000)
    tokens = torch.randint(2, 60, (8, 64))
    with watch() as seen:
        loss_of(model, tokens, tokens).backward()
    assert max(seen.sizes) < 8 * 64 * 4000
    with watch() as seen:
        loss_of(model.eval(), tokens, tokens)
    assert max(seen.sizes) >= 8 * 64 * 4000


def test_a_tuple_has_no_logits_either(model, tokens):
    loss, *rest = model(input_ids=tokens, labels=tokens, return_dict=False, use_cache=False)
    torch.testing.assert_close(loss, loss_of(model, tokens, tokens))
    assert not rest
    both = model(input_ids=tokens, labels=tokens, return_dict=False, return_logits=True)
    assert both[1].shape == (3, 12, 60)


def test_a_loss_of_the_caller_gets_logits(model, tokens):
    model.loss_function = lambda logits, labels, **_: logits[..., 0].sum()
    want = model(input_ids=tokens).logits[..., 0].sum()
    torch.testing.assert_close(loss_of(model, tokens, tokens), want)


@pytest.mark.parametrize("start", ["residual", "identity"])
def test_components_separate_in_training(make, tokens, start):
    """Equal at first, they differ after some steps: the noise has broken their symmetry."""
    model = make.upgraded("llama", start=start).train()
    head = model.get_output_embeddings().head
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, spreads = [], []
    for _ in range(20):
        hidden = model.model(input_ids=tokens).last_hidden_state
        log_weight, context = head.mixture(hidden.detach())
        spreads.append(context.std(-2).mean().item() / context.std().item())
        loss = loss_of(model, tokens, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert spreads[0] < 1e-3 < 1e-2 < spreads[-1]
    assert log_weight.std() > 0


def test_bfloat16_is_kept_and_loses_only_its_own_digits(make, tokens):
    """An upgrade does not round more than the plain model does."""
    want = make.plain("gpt2")(input_ids=tokens).logits.log_softmax(-1)
    plain = make.plain("gpt2").to(torch.bfloat16)
    theirs = plain(input_ids=tokens).logits.float().log_softmax(-1)
    model = highrank.upgrade(plain).train()
    found = model(input_ids=tokens).logits.log_softmax(-1)
    assert found.dtype == torch.float32 and model.dtype == torch.bfloat16
    assert (found - want).abs().max() <= 1.5 * (theirs - want).abs().max()
    loss_of(model, tokens, tokens).backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters())


def test_autocast_trains_float32_weights(model, tokens):
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, tokens, tokens)
    loss.backward()
    assert abs(loss.item() - loss_of(model, tokens, tokens).item()) < 0.1
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_torch_compile_changes_nothing(make, tokens):
    model = make.trained("llama").train()
    compiled = torch.compile(model, backend="eager")
    want, found = loss_of(model, tokens, tokens), loss_of(compiled, tokens, tokens)
    torch.testing.assert_close(found, want)
    grads = [torch.autograd.grad(loss, list(model.parameters())) for loss in (want, found)]
    torch.testing.assert_close(grads[1], grads[0])


def test_parts_are_frozen(make, tokens):
    model = make.upgraded("gpt2").train()
    train_head(model)
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    head = {"lm_head.head.prior.weight", "lm_head.head.down.weight", "lm_head.head.up"}
    assert names == head
    loss_of(model, tokens, tokens).backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} == head
    train_head_and_last_block(model)
    more = {name for name, p in model.named_parameters() if p.requires_grad} - head
    assert more and all(name.startswith("transformer.h.1.") for name in more)


def test_a_trainer_trains_evaluates_saves_and_resumes(make, tokens, tmp_path):
    """With accumulated gradients; a resumed run ends where the other one does."""
    data = [{"input_ids": row, "labels": row} for row in tokens.repeat(4, 1)]
    options = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "max_steps": 4}
    arguments = transformers.TrainingArguments(
        tmp_path, save_steps=2, report_to=[], use_cpu=True, learning_rate=1e-2, **options
    )
    first = transformers.Trainer(make.upgraded("gpt2"), arguments, train_dataset=data)
    first.train()
    before = loss_of(make.upgraded("gpt2"), tokens, tokens).item()
    assert first.evaluate(data)["eval_loss"] < before
    second = transformers.Trainer(make.upgraded("gpt2"), arguments, train_dataset=data)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for got, want in zip(second.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("kind", ["upgraded", "adapter", "run"])
def test_a_trainer_smooths_the_labels_of_the_next_tokens(make, tokens, exported, tmp_path, kind):
    """It decides by the name of the class whether labels are shifted."""
    model = make.trained("llama")
    if kind == "run":
        model, tokens = highrank.load_huggingface(exported), tokens % 10
    if kind == "adapter":
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    labels = tokens.clone()
    labels[0, :5] = -100
    log_p = model.eval()(input_ids=tokens).logits.double().log_softmax(-1)[:, :-1]
    target = labels[:, 1:].flatten()
    want = F.cross_entropy(log_p.flatten(0, 1), target, label_smoothing=0.1)
    arguments = transformers.TrainingArguments(
        tmp_path, label_smoothing_factor=0.1, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(model, arguments)
    found = trainer.compute_loss(model, {"input_ids": tokens, "labels": labels})
    torch.testing.assert_close(found.double(), want)


@pytest.mark.parametrize("saved", [None, ["lm_head"]])
def test_adapters_train_the_body_and_if_wanted_the_head(make, tokens, tmp_path, saved):
    peft = pytest.importorskip("peft")
    model = make.trained("llama").train()
    want = loss_of(model, tokens, tokens).detach()
    config = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": saved}
    model = peft.get_peft_model(model, peft.LoraConfig(**config, task_type="CAUSAL_LM"))
    output = model(input_ids=tokens, labels=tokens)
    assert "logits" not in output
    torch.testing.assert_close(output.loss, want)
    output.loss.backward()
    trained = [name for name, p in model.named_parameters() if p.grad is not None]
    assert any("lora" in name for name in trained)
    assert any("head" in name for name in trained) == bool(saved)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "lora_B" in name:
                parameter.normal_()
    model.eval().save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(make.trained("llama"), tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(model(input_ids=tokens).logits, loaded(input_ids=tokens).logits)
