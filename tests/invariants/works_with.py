"""Heads × mechanisms of PyTorch and Hugging Face: the table of docs/works-with.md.

python tests/invariants/works_with.py

Every cell is a small run, compared with the same head without the mechanism.
B sequences, T time, D hidden size, V vocabulary.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import highrank
from highrank.heads import COMPOSED, HEADS, Head, head_arguments, head_class

B, T, D, V = 3, 5, 16, 60
YES, REFUSED, NO, MISSING = "yes", "refused", "no", "–"


def make_head(kind: str) -> Head:
    arguments = head_arguments(kind)
    wanted = {"num_components": 4, "embedding_size": D, "layer_sizes": (8, 8)}
    if kind == "mfs":
        del wanted["layer_sizes"]
    torch.manual_seed(0)
    return head_class(kind)(D, V, **{n: v for n, v in wanted.items() if n in arguments})


def batch(head: Head) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Hidden states (T, B, D), targets (T, B), and what a stateful head also needs."""
    random = torch.Generator().manual_seed(1)
    hidden = torch.randn(T, B, D, generator=random)
    tokens, target = torch.randint(V, (2, T, B), generator=random)
    past = {"tokens": tokens, "state": head.initial_state(B)} if head.is_stateful else {}
    return hidden, target, past


def gradients(loss: Tensor, head: nn.Module) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(head.parameters()), allow_unused=True)
    return [torch.zeros(()) if grad is None else grad for grad in found]


def plain_loss(head: Head) -> Tensor:
    hidden, target, past = batch(head)
    return head(hidden, target, **past).loss


def autocast(kind: str) -> None:
    head = make_head(kind)
    with torch.autocast("cpu", torch.bfloat16):
        loss = plain_loss(head)
    torch.testing.assert_close(loss, plain_loss(head), rtol=0.02, atol=0.02)
    assert all(grad.isfinite().all() for grad in gradients(loss, head))


def compiled(kind: str) -> None:
    # Each head is compiled anew, and torch gives up after some.
    torch._dynamo.reset()
    head = make_head(kind)
    hidden, target, past = batch(head)
    found = torch.compile(head, backend="aot_eager", fullgraph=True)(hidden, target, **past).loss
    want = plain_loss(head)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(gradients(found, head), gradients(want, head))


def func_grad(kind: str) -> None:
    head = make_head(kind)
    hidden, target, past = batch(head)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        found = torch.func.functional_call(head, parameters, (hidden, target), past)
        return found.loss

    parameters = dict(head.named_parameters())
    grads = list(torch.func.grad(loss)(parameters).values())
    for found, want in zip(grads, gradients(plain_loss(head), head), strict=True):
        torch.testing.assert_close(found, want.expand_as(found))


def exported(kind: str, use_onnx: bool = False) -> None:
    head = make_head(kind).eval()
    if head.is_stateful:
        raise NotImplementedError("not tried: it is exported with its model and its state")
    hidden = batch(head)[0].flatten(0, 1)  # (N, D)
    given: dict[str, Any] = {"dynamic_shapes": {"hidden": {0: torch.export.Dim("n", min=1)}}}
    longer = torch.cat([hidden, hidden])
    if use_onnx:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "head.onnx")
            torch.onnx.export(head, (hidden,), path, dynamo=True, verbose=False, **given)
            import onnxruntime

            session = onnxruntime.InferenceSession(path)
            name = session.get_inputs()[0].name
            found = torch.from_numpy(session.run(None, {name: longer.numpy()})[0])
    else:
        found = torch.export.export(head, (hidden,), **given).module()(longer)
    torch.testing.assert_close(found, head(longer), rtol=1e-4, atol=1e-5)


def upgraded(kind: str) -> Any:
    """A model of transformers with this head, and tokens for it."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {"vocab_size": V, "hidden_size": D, "intermediate_size": 24, "num_hidden_layers": 1}
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_attention_heads=2, eos_token_id=None)
    return highrank.upgrade(AutoModelForCausalLM.from_config(config), kind, start="random")


def generate(kind: str) -> None:
    model = upgraded(kind).eval()
    tokens = torch.arange(8)[None]
    with_cache = model.generate(tokens, max_new_tokens=4, do_sample=False)
    without = model.generate(tokens, max_new_tokens=4, do_sample=False, use_cache=False)
    assert torch.equal(with_cache, without)


def seq2seq(kind: str) -> None:
    """Beams with and without a cache, a loss without logits, and a folder."""
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {"vocab_size": V, "d_model": D, "encoder_layers": 1, "decoder_layers": 1}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    torch.manual_seed(0)
    plain = BartForConditionalGeneration(BartConfig(**sizes, dropout=0.0))
    model, tokens = highrank.upgrade(plain, kind, start="random"), torch.arange(4, 12)[None]
    given = {"input_ids": tokens, "labels": tokens}
    output = model.train()(**given)
    output.loss.backward()
    assert "logits" not in output
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = highrank.load_huggingface(folder)
    torch.testing.assert_close(loaded.eval()(**given).logits, model.eval()(**given).logits)
    options = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False}
    beams = [loaded.generate(tokens, **options, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*beams)


def trainer(kind: str) -> None:
    from transformers import Trainer, TrainingArguments

    model, tokens = upgraded(kind), torch.arange(16).view(2, 8)
    before = model(tokens, labels=tokens).loss.item()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=3, learning_rate=1e-2, use_cpu=True, report_to=[], disable_tqdm=True
        )
        data = [{"input_ids": row, "labels": row} for row in tokens]
        with redirect_stdout(sys.stderr):
            Trainer(model, arguments, train_dataset=data).train()
        model.save_pretrained(folder)
        loaded = highrank.load_huggingface(folder)
    model, loaded = model.eval(), loaded.eval()
    assert model(tokens, labels=tokens).loss.item() < before
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


def adapters(kind: str) -> None:
    """An adapter of the body changes nothing at first, learns, and is saved without the rest."""
    from peft import LoraConfig, PeftModel, get_peft_model

    plain, tokens = upgraded(kind).eval(), torch.arange(8)[None]
    want = plain(tokens, labels=tokens).loss
    model = get_peft_model(plain, LoraConfig(target_modules=["q_proj", "v_proj"]))
    given = {"input_ids": tokens, "labels": tokens}
    torch.testing.assert_close(model(**given).loss, want)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(**given).loss.backward()
        optimizer.step()
    assert model(**given).loss < want
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = PeftModel.from_pretrained(upgraded(kind), folder).eval()
    torch.testing.assert_close(loaded(**given).logits, model(**given).logits)


def parallel(kind: str, use_fsdp: bool) -> None:
    """The gradient of the mean over two processes, each with all sequences: that of one."""
    head, alone = make_head(kind), make_head(kind)
    hidden, target, past = batch(head)
    given = {"find_unused_parameters": True}
    model: Any = head if use_fsdp else DistributedDataParallel(head, **given)
    if use_fsdp:
        fully_shard(head, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model(hidden, target, **past).loss.backward()
    for parameter, want in zip(head.parameters(), gradients(plain_loss(alone), alone), strict=True):
        found = parameter.grad
        if found is None:
            # A parameter that the loss of this batch does not reach.
            assert not want.any()
            continue
        found = found.full_tensor() if use_fsdp else found
        torch.testing.assert_close(found, want.expand_as(found))


HF = ("transformers",)
MECHANISMS: dict[str, tuple[Callable[[str], None], tuple[str, ...]]] = {
    "autocast": (autocast, ()),
    "torch.compile": (compiled, ()),
    "torch.func": (func_grad, ()),
    "torch.export": (exported, ()),
    "ONNX": (partial(exported, use_onnx=True), ("onnxscript", "onnxruntime")),
    "DDP": (partial(parallel, use_fsdp=False), ()),
    "FSDP2": (partial(parallel, use_fsdp=True), ()),
    "generate": (generate, HF),
    "Trainer": (trainer, (*HF, "accelerate")),
    "PEFT": (adapters, (*HF, "peft")),
    "encoder–decoder": (seq2seq, HF),
}
IN_PROCESSES = ("DDP", "FSDP2")


def result(name: str, kind: str) -> tuple[str, str]:
    """A cell of the table, and the reason if it is not "yes"."""
    check, packages = MECHANISMS[name]
    if any(find_spec(package) is None for package in packages):
        return MISSING, ""
    try:
        check(kind)
    except NotImplementedError as error:
        return MISSING, str(error)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        is_refused = isinstance(error, ValueError)
        return (REFUSED, lines[0]) if is_refused else (NO, f"{type(error).__name__}: {lines[0]}")
    return YES, ""


def _in_process(rank: int, kinds: list[str], folder: str) -> None:
    warnings.simplefilter("ignore")
    options: Any = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": 2}
    dist.init_process_group("gloo", **options)
    found = {(name, kind): result(name, kind) for name in IN_PROCESSES for kind in kinds}
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def results(kinds: list[str]) -> dict[tuple[str, str], tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_in_process, (kinds, folder), nprocs=2)
        found: dict[tuple[str, str], tuple[str, str]] = torch.load(Path(folder) / "found.pt")
    alone = [name for name in MECHANISMS if name not in IN_PROCESSES]
    return found | {(name, kind): result(name, kind) for kind in kinds for name in alone}


def table(kinds: list[str]) -> Iterable[str]:
    """Lines of Markdown: the table, then the reasons, each once."""
    found = results(kinds)
    yield f"| head | {' | '.join(MECHANISMS)} |"
    yield "|---" * (1 + len(MECHANISMS)) + "|"
    for kind in kinds:
        yield f"| `{kind}` | {' | '.join(found[name, kind][0] for name in MECHANISMS)} |"
    yield ""
    for kind in kinds:
        for reason in dict.fromkeys(found[name, kind][1] for name in MECHANISMS):
            if reason:
                names = [name for name in MECHANISMS if found[name, kind][1] == reason]
                yield f"- `{kind}`, {', '.join(names)}: {reason}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\n".join(table(sys.argv[1:] or [*HEADS, *COMPOSED])))
