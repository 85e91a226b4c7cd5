"""Give a pretrained language model a mixture, without changing a prediction, and back.

    model = AutoModelForCausalLM.from_pretrained("gpt2")
    model = highrank.upgrade(model, num_components=4)

The result is a model of transformers: it trains, generates, saves and loads as before.
K components, D hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from highrank.heads import Head, LowRankMixture, MixtureOfSoftmaxes, Softmax
from highrank.integrations.huggingface import register
from highrank.integrations.huggingface.library import check_installed, quiet_transformers
from highrank.integrations.huggingface.output_layer import (
    HeadOutputLayer,
    bias_of,
    check_output_layer,
    has_tied_output,
    probe,
    read_output_layer,
    run,
    share,
    without_map,
)
from highrank.integrations.huggingface.seq2seq import (
    body_of,
    check_loss,
    input_embedding,
    is_seq2seq,
    set_logits_bias,
)
from highrank.integrations.huggingface.starts import NOISE, Started, start_head

# How much a log-probability may change, besides rounding.
TOLERANCE = 1e-5


def upgrade(
    model: Any,
    head: str = "mos",
    num_components: int = 4,
    start: str | None = None,
    *,
    noise: float = NOISE,
    seed: int = 0,
    precision: str | None = None,
    **options: Any,
) -> Any:
    """The model with a mixture that starts as its output layer: no log-probability changes.

    Its body and its weights are those of `model`, which should no longer be used. Everything else
    is as transformers has it: bias, tied weights, a scale and a softcap of logits are kept.

    Args:
        model: what `AutoModelForCausalLM` or `AutoModelForSeq2SeqLM` makes.
        head: "mos", "mos+constant" or "softmax" (the model as it is, with our loss); with the start
            "random" any key of `highrank.heads.HEADS` that needs the last hidden state only.
        num_components: K.
        start: "residual" (the default of mos), "identity", "new" or "random"; see
            `highrank.integrations.huggingface.starts`.
        noise: what breaks the symmetry of the components, at most; 0 for none.
        seed: of the noise. The generator of the caller is not touched.
        precision: "float32": the head computes in it, whatever its weights are stored in and
            autocast says. The output embedding is converted in blocks. For mixtures of softmaxes.
        options: of the head's constructor, as rank=32 of residuals, or dropout.
    """
    check_installed("upgrade a Hugging Face model")
    from highrank.integrations.huggingface.model import transplanted, upgraded_classes

    register()
    name = type(model).__name__
    _check_model(model, name)
    layer, was_training = read_output_layer(model, name), model.training
    model.eval()
    try:
        check_output_layer(model, layer, name)
        _check_loss(model, name)
        hidden, before = _probed(model, name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            states = hidden[0].float()
            found = start_head(layer, states, head, num_components, start, noise, options)
        _share_parameters(found.head, model, layer.scale)
        new = transplanted(
            model,
            upgraded_classes(model.config.model_type)[1],
            _fields(model, found, precision),
            HeadOutputLayer(found.head, layer.scale, precision),
        )
        set_logits_bias(new, None)
        if found.added_weight is not None:
            _check_unchanged(new, before, found.added_weight, name)
    finally:
        model.train(was_training)
    return new.train(was_training)


def _check_model(model: Any, name: str) -> None:
    """Refuse what Auto classes of language models would not make, and what hides its weights."""
    from transformers import PreTrainedModel

    from highrank.integrations.huggingface.model import HighRankModel, plain_class

    if isinstance(model, HighRankModel):
        raise ValueError("model must have a linear output layer, got an upgraded one")
    known = plain_class(type(model.config)) if isinstance(model, PreTrainedModel) else None
    if type(model) is not known or getattr(model, "peft_config", None):
        auto = "a model of AutoModelForCausalLM or AutoModelForSeq2SeqLM"
        want = auto if known is None else f"a {known.__name__}"
        raise ValueError(f"model must be {want}, got {name}{_advice(model)}")
    wrong = {
        "have weights": model.device.type == "meta",
        "read text only": model.config.get_text_config() is not model.config,
        "not be quantised": getattr(model, "hf_quantizer", None) is not None,
        "be on one device": len(set(getattr(model, "hf_device_map", {}).values())) > 1,
        "have its own loss": "_loss_function" in vars(model),
    }
    for contract, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(f"model must {contract}, got {name}")


def _advice(model: Any) -> str:
    """Advice, after a colon, for a model that is wrapped."""
    if getattr(model, "peft_config", None):
        return ": upgrade first, then add adapters, as peft.get_peft_model(highrank.upgrade(model))"
    if isinstance(getattr(model, "module", getattr(model, "_orig_mod", None)), nn.Module):
        return ": upgrade first, then wrap or compile the model"
    return ""


@torch.no_grad()
def _check_loss(model: Any, name: str) -> None:
    """Refuse an architecture with another loss, or a causal one that makes its loss by itself.

    Ours would never be called.
    """
    if is_seq2seq(model):
        check_loss(model, probe(model).to(model.device), name)
        return
    seen: list[bool] = []

    def loss_function(*_: Any, **__: Any) -> Tensor:
        seen.append(True)
        return torch.zeros(())

    model.loss_function, tokens = loss_function, probe(model).to(model.device)
    try:
        with quiet_transformers(f"run {name}"):
            model(input_ids=tokens, labels=tokens, use_cache=False)
    finally:
        del model._loss_function
    if not seen:
        raise ValueError(f"model must give its logits to loss_function, got {name}")


def _share_parameters(head: Head, model: Any, scale: float) -> None:
    """Give the head the layer's own weight, and its bias, which the scale of logits multiplies."""
    bias = bias_of(model)
    if bias is not None and scale != 1:
        bias = nn.Parameter(bias.detach() * scale)
    share(head, model.get_output_embeddings().weight, bias)


def _fields(model: Any, found: Started, precision: str | None) -> dict[str, Any]:
    """Fields of the new configuration that differ from those of the old one."""
    plain = without_map(model.config)
    spec = {
        **found.spec,
        "precision": precision,
        "replaced": {name: getattr(model.config, name) for name in plain},
    }
    fields = {**plain, "base_model_type": model.config.model_type, "output_head": spec}
    if is_seq2seq(model):
        # The configuration's field is about the embeddings of encoder and decoder, too.
        spec["is_tied"] = has_tied_output(model)
    else:
        fields["tie_word_embeddings"] = has_tied_output(model)
    return fields


@torch.no_grad()
def _probed(model: Any, name: str) -> tuple[Tensor, Tensor]:
    """Hidden states (1, n, D) of a few tokens, and log-probabilities (1, n, V) of the next ones."""
    hidden, logits = run(model, probe(model), name)
    return hidden, logits.float().log_softmax(-1)


@torch.no_grad()
def _check_unchanged(model: Any, before: Tensor, added_weight: float, name: str) -> None:
    """Refuse an architecture with more than its output layer after the hidden states."""
    hidden, after = _probed(model, name)
    allowed = TOLERANCE + 32 * torch.finfo(hidden.dtype).eps * before.abs().max().item()
    if added_weight:
        worst = (after.exp() - before.exp()).abs().sum(-1).max().item() / 2
    else:
        worst = (after - before).abs().max().item()
    if not worst <= allowed + added_weight:
        raise ValueError(
            f"an upgrade must change no prediction, got {name} with changes of {worst:.3g}: this "
            "architecture cannot be upgraded"
        )


@torch.no_grad()
def to_softmax(model: Any) -> Any:
    """The plain model of an upgraded one whose mixture is exactly one softmax.

        Σ_k π_k softmax(W h_k + b) = softmax(W h + b)   if all h_k are the same h = L hidden + c

    It has the weight W L and the bias W c + b. So it is with one component, and with several that
    do not differ: made without noise, and not trained. Others are an error. The body is that of
    `model`, which should no longer be used.
    """
    from highrank.integrations.huggingface.model import base_class, transplanted

    output = model.get_output_embeddings()
    if not isinstance(output, HeadOutputLayer):
        raise ValueError(f"model must be an upgraded one, got {type(model).__name__}")
    weight, bias = _linear(output)
    has_own_bias = bias is not None and not is_seq2seq(model)
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], len(weight), bias=has_own_bias)
    layer.weight, layer.bias = weight, bias if has_own_bias else None  # type: ignore[assignment]
    fields = model.config.output_head["replaced"]
    if not is_seq2seq(model):
        fields = {**fields, "tie_word_embeddings": weight is input_embedding(model).weight}
    restored = transplanted(model, base_class(model), fields, layer)
    if is_seq2seq(model):
        set_logits_bias(restored, torch.zeros_like(weight[:, 0]) if bias is None else bias)
    return restored


def _linear(output: HeadOutputLayer) -> tuple[nn.Parameter, nn.Parameter | None]:
    """The weight and the bias of the linear layer that the head is, before the scale of logits."""
    matrix, shift = _context_map(output.head)
    weight, bias = output.embedding.weight, output.embedding.bias
    old = weight.double()  # (V, D)
    if bias is None and shift.any():
        raise ValueError("contexts must have no bias where the layer had none, got one")
    if not torch.equal(matrix, torch.eye(len(matrix)).to(matrix)):
        weight = nn.Parameter((old @ matrix.double()).to(weight.dtype))
    if bias is not None:
        total = bias.double() + old @ shift.double() if shift.any() else bias.double()
        bias = nn.Parameter((total / output.scale).to(weight.dtype))
    return weight, bias


def _context_map(head: Head) -> tuple[Tensor, Tensor]:
    """L (D, D) and c (D,) of the only context."""
    is_state = isinstance(head, Softmax | LowRankMixture) and head.latent is None
    if is_state and not (isinstance(head, LowRankMixture) and head.up.any()):
        return torch.eye(head.hidden_size), torch.zeros(head.hidden_size)
    if isinstance(head, MixtureOfSoftmaxes) and head.activation == "identity":
        assert head.latent is not None
        matrices = head.latent.weight.unflatten(0, (head.num_components, -1))  # (K, D, D)
        shifts = head.latent.bias.unflatten(0, (head.num_components, -1))  # (K, D)
        if (matrices == matrices[0]).all() and (shifts == shifts[0]).all():
            return matrices[0], shifts[0]
    raise ValueError(
        "a head must be exactly one softmax of a linear context to be restored, got "
        f"{type(head).__name__} with {head.num_components} components that differ"
    )


def train_head(model: Any) -> None:
    """Train what an upgrade has added, and nothing else.

    The output embedding and its bias stay as they are: they are the old layer's, and often the
    input embedding, too.
    """
    output = model.get_output_embeddings()
    model.requires_grad_(False)
    output.requires_grad_(True)
    for parameter in (output.embedding.weight, output.embedding.bias):
        if parameter is not None:
            parameter.requires_grad_(False)


def train_head_and_last_block(model: Any) -> None:
    """Train the head, as `train_head` does, and the last block of the body, or of its decoder."""
    train_head(model)
    body, count = body_of(model)
    lists = (m for m in body.modules() if isinstance(m, nn.ModuleList))
    blocks = next((found for found in lists if len(found) == count), None)
    if blocks is None:
        raise ValueError(f"the body must have a list of {count} blocks, got {type(model).__name__}")
    blocks[-1].requires_grad_(True)
