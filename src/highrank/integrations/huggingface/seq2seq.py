"""Encoder–decoder models of Hugging Face: all that differs from causal language models.

They read a source text besides the tokens so far. Their labels stand where they are predicted: the
model itself makes the decoder's inputs of them, shifted right. They compute their loss by
themselves, and many add a constant `final_logits_bias` to their logits, which a mixture must have
in each of its softmaxes. B pairs of texts, L tokens of a target, D hidden size, V vocabulary.
"""

from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.loss import CURRENT

BIAS = "final_logits_bias"
# Names that configurations give to the number of a decoder's blocks.
DECODER_BLOCKS = ("decoder_layers", "num_decoder_layers")


def is_seq2seq(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def inputs_of(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """The arguments of a model that reads tokens (B, L), and predicts the next token of each.

    An encoder reads the same tokens, as far as it knows them.
    """
    if not is_seq2seq(model):
        return {"input_ids": tokens}
    num_known: int = model.get_input_embeddings().weight.shape[0]
    return {"input_ids": tokens % num_known, "decoder_input_ids": tokens}


def input_embedding(model: Any) -> Any:
    """The embedding of the tokens so far, which may be that of the output layer, too."""
    return (model.get_decoder() if is_seq2seq(model) else model).get_input_embeddings()


def body_of(model: Any) -> tuple[nn.Module, int]:
    """The network before the output layer, and the number of its blocks."""
    config = model.config
    if not is_seq2seq(model):
        return model.base_model, config.num_hidden_layers
    counts = (getattr(config, name, None) for name in DECODER_BLOCKS)
    return model.get_decoder(), next((n for n in counts if n is not None), 0)


def logits_bias(model: Any) -> Tensor | None:
    """The constant bias (V,) that a model adds to its logits; None if it is zero everywhere."""
    bias: Tensor | None = getattr(model, BIAS, None)
    return None if bias is None or not bias.any() else bias[0]


def set_logits_bias(model: Any, bias: Tensor | None) -> None:
    """Let a model add this bias (V,) to what its output layer returns, or else nothing.

    Models that cannot add one are left as they are. Zeros (1, 1) are added to hidden states as
    well, which is what an output layer with a head returns for a loss.
    """
    old = getattr(model, BIAS, None)
    if old is not None:
        new = old.new_zeros(1, 1) if bias is None else bias.detach()[None]
        setattr(model, BIAS, nn.Buffer(new))


def shifted_right(model: Any, labels: Tensor) -> Tensor:
    """Labels (B, L) as inputs of the decoder, as most architectures make them."""
    from transformers.models.bart.modeling_bart import shift_tokens_right

    config = model.config
    found: Tensor = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
    return found


@torch.no_grad()
def check_loss(model: Any, tokens: Tensor, name: str) -> None:
    """Refuse an architecture whose loss is not the cross-entropy of its logits and its labels.

    Args:
        tokens: (B, L), which the model is tried with.
        name: of the model, for errors.
    """
    contract = f"the loss of {name} must be the cross-entropy of its logits and labels"
    if "output_router_logits" in signature(model.forward).parameters:
        raise ValueError(f"{contract}, got penalties of experts, too")
    labels = tokens.clone()
    labels[:, -1] = -100
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    inputs = inputs_of(model, shift(labels) if shift else shifted_right(model, labels))
    with quiet_transformers(f"run {name}"):
        theirs = model(input_ids=inputs["input_ids"], labels=labels, use_cache=False).loss
        logits = model(**inputs, use_cache=False).logits
    ours = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    tolerance = 1e-4 + 4 * torch.finfo(logits.dtype).eps
    # Written so that nan is refused, too.
    if not (theirs - ours).abs() <= tolerance * ours.abs().clamp_min(1):
        raise ValueError(f"{contract}, got {theirs.item():.5g} instead of {ours.item():.5g}")


class Seq2SeqModel:
    """What upgraded encoder–decoders do otherwise; stands before the common part of all."""

    # A Trainer then divides nothing: `num_items_in_batch` is honoured, as by causal models.
    accepts_loss_kwargs = True

    @property
    def loss_function(self) -> Any:
        return super().loss_function  # type: ignore[misc]

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        raise ValueError(
            "the loss of an encoder–decoder must be computed from its logits by the caller, got a "
            "loss_function, which transformers would not call"
        )

    def prepare_decoder_input_ids_from_labels(self: Any, labels: Tensor) -> Tensor:
        """As of transformers, also for architectures that have no such method."""
        shift = getattr(super(), "prepare_decoder_input_ids_from_labels", None)
        return shift(labels) if shift else shifted_right(self, labels)

    def _bias_of(self: Any, layer: nn.Linear) -> Tensor | None:
        """The bias with which a new head starts, in place of the model's own."""
        found = getattr(self, BIAS, None)
        set_logits_bias(self, None)
        has_bias = self.config.output_head["options"]["bias"]
        return layer.bias if found is None or not has_bias else found[0]

    def _call_for_loss(self: Any, plain: Any, kwargs: dict[str, Any]) -> Any:
        """The output of `plain`, the architecture's `forward`, with our loss.

        It gets no labels, of which it would compute its own loss, and no cache.
        """
        assert CURRENT.loss is not None
        labels, given = kwargs.pop("labels"), ("decoder_input_ids", "decoder_inputs_embeds")
        if all(kwargs.get(name) is None for name in given):
            if isinstance(CURRENT.loss.labels, tuple):
                raise ValueError("decoder_input_ids must be given with soft labels, got None")
            kwargs["decoder_input_ids"] = self.prepare_decoder_input_ids_from_labels(labels)
        num_items = kwargs.pop("num_items_in_batch", None)
        found = plain(self, **{**kwargs, "use_cache": False})
        hidden = found[0] if isinstance(found, tuple) else found.logits  # (B, L, D)
        loss = self.loss_function(
            hidden, shift_labels=CURRENT.loss.labels, num_items_in_batch=num_items
        )
        return (loss, *found) if isinstance(found, tuple) else type(found)(loss=loss, **found)

    def _resize_final_logits_bias(self: Any, new_num_tokens: int) -> None:
        """Resize the bias in the head: new tokens have none."""
        head = self.get_output_embeddings().head
        weight = head.weight
        if head.vocab_size != len(weight):
            # The weight is an input embedding that was resized, without a call of ours.
            head.resize(len(weight))
            head.weight = weight
        if head.bias is not None:
            missing = len(weight) - len(head.bias)
            head.register_buffer("bias", F.pad(head.bias, (0, missing)))
