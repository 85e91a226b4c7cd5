"""Configurations and classes of upgraded models, made for each architecture when it is first used.

`HighRankLlamaForCausalLM` is a `LlamaForCausalLM` whose output layer is a head of ours: the body,
generation and caches are those of transformers. A saved folder has the model type "highrank", so
that `AutoModelForCausalLM`, or `AutoModelForSeq2SeqLM`, finds the class here. A plain class would
load the body and drop the head; the folder's configuration names no file of weights that it could
load, so that it raises.
"""

from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig
from transformers.models.auto import configuration_auto, modeling_auto

from highrank.files import final_name
from highrank.heads import MixtureHead
from highrank.integrations.huggingface.card import write_card
from highrank.integrations.huggingface.loss import CURRENT, LossCall, loss_call, taken_options
from highrank.integrations.huggingface.output_layer import (
    HeadOutputLayer,
    head_from,
    share,
    weight_owner,
)
from highrank.integrations.huggingface.seq2seq import Seq2SeqModel

CONFIGS: Any = configuration_auto
MODELS: Any = modeling_auto
PREFIX = "HighRank"
# The field names the file of weights, and a class that does not know better prints it in its error.
GUARD = "transformers_weights"
REFUSAL = (
    "this model has a mixture of softmaxes; import highrank and load it with "
    "AutoModelForCausalLM.from_pretrained, or AutoModelForSeq2SeqLM if it has an encoder"
)
# Fields that only the configurations of upgraded models have.
OF_UPGRADED = ("model_type", "base_model_type", "output_head")


class HighRankConfig(PreTrainedConfig):
    """Fields of upgraded models besides those of their architecture."""

    model_type = "highrank"
    base_model_type: str = ""
    """The architecture's, such as "llama"."""
    output_head: dict[str, Any] | None = None
    """"kind", "options", "softcap", "scale" and, if there is one, "precision"."""

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs.pop(GUARD, None)
        super().__post_init__(**kwargs)

    def to_diff_dict(self) -> dict[str, Any]:
        return {**super().to_diff_dict(), GUARD: REFUSAL}


class HighRankModel:
    """The common part of all upgraded models; stands before the architecture's class."""

    def __init__(self: Any, config: Any, *inputs: Any, **kwargs: Any) -> None:
        super().__init__(config, *inputs, **kwargs)  # type: ignore[call-arg]
        self.loss_type = "ForCausalLM"
        layer = self.get_output_embeddings()
        vocab_size, hidden_size = layer.weight.shape
        head = head_from(config.output_head, hidden_size, vocab_size)
        # From scratch, the output embedding starts as that of the architecture does.
        share(head, layer.weight, self._bias_of(layer))
        path = self._output_path = output_path(self)
        spec = config.output_head
        output = HeadOutputLayer(head, spec["scale"], spec.get("precision"))
        self.set_submodule(path, output)
        owner = ".".join(part for part in (path, "head", weight_owner(head)[0]) if part)
        self._tied_weights_keys = {
            owner + key.removeprefix(path) if key.startswith(f"{path}.") else key: source
            for key, source in (self._tied_weights_keys or {}).items()
            if config.output_head.get("is_tied", True) or not key.startswith(f"{path}.")
        }
        if not layer.weight.is_meta:
            for module in self.get_output_embeddings().modules():
                module._is_hf_initialized = True
        self.post_init()

    def post_init(self: Any) -> None:
        super().post_init()  # type: ignore[misc]
        self._no_split_modules.add(HeadOutputLayer.__name__)
        if path := getattr(self, "_output_path", None):
            # For a vocabulary in parts a head has a form of its own: highrank.heads.distributed.
            self._tp_plan.pop(path, None)
            self._pp_plan.pop(path, None)

    @classmethod
    def is_custom_code(cls: Any) -> bool:
        """False, unlike for other custom code, of which some modules would not be initialised."""
        return bool(cls.is_remote_code())

    def _init_weights(self: Any, module: nn.Module) -> None:
        """Initialise a module of which a weight was not loaded; a head must not start at random."""
        output = self.get_output_embeddings()
        if not isinstance(output, HeadOutputLayer):
            super()._init_weights(module)  # type: ignore[misc]
            return
        if module is not self and module not in output.modules():
            super()._init_weights(module)  # type: ignore[misc]
            return
        # Of the model itself an architecture initialises the output layer, if anything.
        for name, parameter in output.named_parameters():
            if not (parameter.is_meta or getattr(parameter, "_is_hf_initialized", False)):
                raise ValueError(f"the weights must have {self._output_path}.{name}, got none")

    @property
    def loss_function(self: Any) -> Any:
        if CURRENT.loss is not None:
            return self._loss_from_hidden
        return super().loss_function  # type: ignore[misc]

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        self._loss_function = value

    def _loss_from_hidden(
        self: Any,
        logits: Tensor,
        labels: Tensor | None = None,
        vocab_size: int | None = None,
        *,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        **_: Any,
    ) -> Tensor:
        """As `ForCausalLMLoss` of transformers, whose arguments the architecture's `forward` gives.

        What it takes for logits are hidden states (B, L, D). Position t predicts label t + 1, or
        the shifted label t. The sum is divided by the number of items, or is the mean.
        """
        assert CURRENT.loss is not None
        call = CURRENT.loss if shift_labels is None else CURRENT.loss._replace(labels=shift_labels)
        target, options = call.for_states(logits, ignore_index, is_shifted=shift_labels is not None)
        options["reduction"] = "mean" if num_items_in_batch is None else "sum"
        output = self.get_output_embeddings()
        loss: Tensor = output(logits, target, ignore_index=ignore_index, **options)
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        return loss if num_items_in_batch is None else loss / num_items_in_batch

    def _bias_of(self: Any, layer: nn.Linear) -> Tensor | None:
        """The bias (V,) with which the head of a new model starts."""
        return layer.bias

    def _call_for_loss(self: Any, plain: Any, kwargs: dict[str, Any]) -> Any:
        """The output of `plain`, the architecture's `forward`, which calls `loss_function`."""
        return plain(self, **kwargs)

    def save_pretrained(self: Any, save_directory: Any, **options: Any) -> None:
        """As of transformers; a folder without README.md gets one, with what it needs to load."""
        self.config.output_head["precision"] = self.get_output_embeddings().precision
        super().save_pretrained(save_directory, **options)  # type: ignore[misc]
        if options.get("is_main_process", True):
            self._write_card(Path(save_directory), final_name(Path(save_directory)))

    def _upload_modified_files(
        self: Any, working_dir: Any, repo_id: str, *arguments: Any, **options: Any
    ) -> Any:
        """As of transformers, which has just put its own README.md into the place of ours."""
        self._write_card(Path(working_dir), repo_id)
        return super()._upload_modified_files(  # type: ignore[misc]
            working_dir, repo_id, *arguments, **options
        )

    def _write_card(self: Any, folder: Path, name: str) -> None:
        head = self.get_output_embeddings().head
        write_card(folder, name, base_class(self).__name__, self.config, head)

    def set_output_embeddings(self: Any, new_embeddings: nn.Module) -> None:
        if not isinstance(new_embeddings, HeadOutputLayer):
            found = type(new_embeddings).__name__
            raise ValueError(f"the output layer must be one with a head, got {found}")
        super().set_output_embeddings(new_embeddings)  # type: ignore[misc]

    def resize_token_embeddings(self: Any, *arguments: Any, **options: Any) -> Any:
        head = self.get_output_embeddings().head
        if not isinstance(head, MixtureHead):
            raise ValueError(f"a head must be a mixture to be resized, got {type(head).__name__}")
        wanted = {name: p.requires_grad for name, p in head.named_parameters()}
        found = super().resize_token_embeddings(*arguments, **options)  # type: ignore[misc]
        for name, parameter in head.named_parameters():
            parameter.requires_grad_(wanted[name])
        return found

    def _get_resized_lm_head(
        self: Any, old_lm_head: HeadOutputLayer, new_num_tokens: int | None = None, **options: Any
    ) -> HeadOutputLayer:
        """New tokens start as transformers lets them start in a linear layer."""
        head: Any = old_lm_head.head
        vocab_size, hidden_size = head.weight.shape
        bias = head._parameters.get("bias")
        layer = nn.Linear(hidden_size, vocab_size, bias=bias is not None, device="meta")
        layer.weight, layer.bias = head.weight, bias
        layer = super()._get_resized_lm_head(layer, new_num_tokens, **options)  # type: ignore[misc]
        head.resize(len(layer.weight))
        head.weight = layer.weight
        if bias is not None:
            head.bias = layer.bias
        return old_lm_head


def _forward_of(base: type[Any]) -> Any:
    """The architecture's `forward`, with a loss that needs no logits."""
    plain = base.forward
    names = list(signature(plain).parameters)

    # Trainers and `generate` read its signature.
    @wraps(plain)
    def forward(self: Any, *inputs: Any, return_logits: bool | None = None, **kwargs: Any) -> Any:
        """With labels, `return_logits` decides about logits; None makes them in evaluation."""
        kwargs = {**dict(zip(names[1:], inputs, strict=False)), **kwargs}
        if hasattr(self, "_loss_function"):
            return plain(self, **kwargs)
        labels, options = kwargs.get("labels"), taken_options(kwargs, names)
        makes_logits = not self.training if return_logits is None else return_logits
        if labels is None and options:
            raise ValueError(f"labels must be given with {', '.join(options)}, got None")
        is_plain = isinstance(labels, Tensor) and not options and not self.training
        is_plain = is_plain and kwargs.get("num_items_in_batch") is None
        if labels is None or (is_plain and makes_logits):
            return plain(self, **kwargs)
        if isinstance(labels, tuple):
            kwargs["labels"] = labels[0][..., 0]
        with loss_call(LossCall(labels, options)):
            found = self._call_for_loss(plain, kwargs)
        hidden = found[1] if isinstance(found, tuple) else found.logits
        logits = None
        if makes_logits:
            logits = self.get_output_embeddings()(hidden)
        if isinstance(found, tuple):
            return (found[0], *(() if logits is None else (logits,)), *found[2:])
        parts = {name: part for name, part in found.items() if name != "logits"}
        return type(found)(**parts, **({} if logits is None else {"logits": logits}))

    return forward


def upgraded_classes(model_type: str) -> tuple[type[Any], type[Any], type[Any]]:
    """Classes of an architecture, such as "llama": configurations, models, bodies alone."""
    if model_type not in CONFIGS.CONFIG_MAPPING or model_type == HighRankConfig.model_type:
        raise ValueError(f"base_model_type must be one of transformers, got {model_type!r}")
    return _classes(CONFIGS.CONFIG_MAPPING[model_type])


def plain_class(config: type[Any]) -> type[Any] | None:
    """The class that is upgraded of those with these configurations; None if there is none.

    Decoders of architectures that have an encoder, too, are not.
    """
    found: type[Any] | None = MODELS.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING.get(config, None)
    return found or MODELS.MODEL_FOR_CAUSAL_LM_MAPPING.get(config, None)


def base_class(model: Any) -> type[Any]:
    """The plain class of an upgraded model."""
    found = plain_class(CONFIGS.CONFIG_MAPPING[model.config.base_model_type])
    assert found is not None
    return found


@cache
def _classes(base_config: type[Any]) -> tuple[type[Any], type[Any], type[Any]]:
    """Classes of configurations, of models and of bodies, all registered."""
    base, body = plain_class(base_config), MODELS.MODEL_MAPPING.get(base_config, None)
    if base is None or "labels" not in signature(base.forward).parameters:
        raise ValueError(
            f"the architecture must have a language model with labels, got {base_config.__name__}"
        )
    config = type(
        PREFIX + base_config.__name__, (HighRankConfig, base_config), {"__module__": __name__}
    )
    options = {"__module__": __name__, "config_class": config}
    body = type(PREFIX + body.__name__, (body,), options)
    options["forward"] = _forward_of(base)
    if base_config in MODELS.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        model = type(PREFIX + base.__name__, (Seq2SeqModel, HighRankModel, base), options)
        AutoModelForSeq2SeqLM.register(config, model, exist_ok=True)
    else:
        model = type(PREFIX + base.__name__, (HighRankModel, base), options)
        register_causal(config, model)
    AutoModel.register(config, body, exist_ok=True)
    return config, model, body


def register_causal(config: type[Any], model: type[Any]) -> None:
    """Let transformers find a class of causal language models, by its configuration and by name.

    A `Trainer` with `label_smoothing_factor` shifts the labels of classes with known names only.
    """
    AutoModelForCausalLM.register(config, model, exist_ok=True)
    name = model.__name__
    MODELS.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name] = name


def transplanted(model: Any, new_class: Any, fields: dict[str, Any], output: nn.Module) -> Any:
    """A `new_class` with the body of `model` and this output layer; no weight is copied.

    Args:
        fields: of the configuration, where they differ from those of `model`.
    """
    known = model.config.to_dict()
    shared = {name: value for name, value in known.items() if name not in OF_UPGRADED}
    config = new_class.config_class.from_dict({**shared, **fields})
    config._attn_implementation = model.config._attn_implementation
    config.name_or_path = model.config.name_or_path
    with torch.device("meta"):
        new = new_class(config)
    path = output_path(new)
    for parts in ("_modules", "_parameters", "_buffers"):
        getattr(new, parts).update(getattr(model, parts))
    new.set_submodule(path, output)
    for module in new.modules():
        if vars(module).get("config") is model.config:
            module.config = config
        # Attributes that a module has read from its configuration.
        for name in vars(module).keys() & fields.keys():
            setattr(module, name, fields[name])
    if model.can_generate():
        new.generation_config = model.generation_config
    # A configuration may speak of tied weights that are not: they are all saved.
    new.all_tied_weights_keys = {
        target: source
        for target, source in new.all_tied_weights_keys.items()
        if new.get_parameter(target) is new.get_parameter(source)
    }
    return new.train(model.training)


def output_path(model: Any) -> str:
    """The name of the module that is the output layer."""
    output = model.get_output_embeddings()
    found: str = next(name for name, module in model.named_modules() if module is output)
    return found


def __getattr__(name: str) -> Any:
    """The classes by name, which is how they are pickled."""
    places = (
        (CONFIGS.CONFIG_MAPPING_NAMES, 0),
        (MODELS.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, 1),
        (MODELS.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, 1),
        (MODELS.MODEL_MAPPING_NAMES, 2),
    )
    for names, place in places:
        found = [kind for kind, known in names.items() if PREFIX + str(known) == name]
        if found:
            return upgraded_classes(found[0])[place]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
