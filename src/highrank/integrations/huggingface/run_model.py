"""A run's language model as a causal LM of transformers: any network and head.

The state after the last token is its whole cache, as in Mamba, whatever the network. Logits are
normalised log-probabilities. B sequences, T time, L tokens that are no padding, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import AutoTokenizer, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput
from transformers.utils.hub import cached_file

from highrank.build import build_model
from highrank.heads.bases.component import components_of
from highrank.integrations.huggingface.model import register_causal
from highrank.integrations.huggingface.run_tokenizer import RunTokenizer
from highrank.models.backbone import State, joined, map_state
from highrank.models.weights import tied_names
from highrank.run.configuration import config_from_json

# Of `from_pretrained`: where the hub's files are, and which of their versions is wanted.
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


class RunModelConfig(PreTrainedConfig):
    """A run's whole configuration, and what its corpus decided."""

    model_type = "highrank-run"
    run: dict[str, Any] | None = None
    """`config.json` of the run."""
    vocab_size: int = 2
    token_counts: list[int] | None = None
    """How often the training split has each token, for heads that are built with it."""
    hidden_size: int = 1
    """Size of the last layer."""
    num_hidden_layers: int = 1
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_id: int | None = None
    """None: a line's end does not end a text."""
    use_cache: bool = True
    tie_word_embeddings: bool = True


class StateCache:
    """The state after the last token that was read, which is all that the next one needs."""

    is_compileable = False

    def __init__(self, state: State, num_tokens: int = 0) -> None:
        self.state, self.num_tokens = state, num_tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read so far, padding included."""
        return self.num_tokens

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Give each beam the state of the one it continues."""
        self.state = map_state(lambda x: x.index_select(1, beam_idx.to(x.device)), self.state)


@dataclass
class RunModelOutput(ModelOutput):
    loss: Tensor | None = None
    """Mean negative log-likelihood of the labels, in nats."""
    logits: Tensor | None = None
    """(B, T, V), log-probabilities of the next token; None in training with labels."""
    cache_params: StateCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    """The embeddings and each layer's states, (B, T, size) each."""


class Part(NamedTuple):
    """Sequences with equally many tokens that are no padding."""

    rows: Tensor
    """(b,), of the batch."""
    columns: Tensor
    """(b, L), where their tokens are."""

    def pick(self, values: Tensor) -> Tensor:
        """The tokens' own (L, b) of values (B, T)."""
        return values[self.rows].gather(1, self.columns).T

    def last_read(self, length: int) -> Tensor:
        """(T, b): which of the L tokens was read last at each place; -1 before the first."""
        places = torch.arange(length, device=self.columns.device).expand(len(self.rows), -1)
        return torch.searchsorted(self.columns.contiguous(), places.contiguous(), right=True).T - 1


class RunForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel` that transformers can load, train and generate with."""

    config_class = RunModelConfig
    base_model_prefix = "language_model"
    main_input_name = "input_ids"
    _is_stateful = True
    _no_split_modules = ["WeightDropLSTM"]  # noqa: RUF012

    def __init__(self, config: RunModelConfig) -> None:
        super().__init__(config)
        if config.run is None:
            raise ValueError("config.run must be the configuration of a run, got None")
        run = config_from_json(config.run)
        self.language_model = build_model(run, config.vocab_size, config.token_counts)
        self._tied_weights_keys = {
            f"language_model.{name}": f"language_model.{first}"
            for name, first in tied_names(self.language_model).items()
        }
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Every layer of ours has initialised itself."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *inputs: Any,
        output_loading_info: bool = False,
        **options: Any,
    ) -> Any:
        """Load a folder, or a name on the hub; weights that no file has are an error."""
        name = pretrained_model_name_or_path
        found: Any = super().from_pretrained(name, *inputs, output_loading_info=True, **options)
        model, info = found
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"{name} must have all weights, got none for {missing[0]}")
        where = {key: options[key] for key in HUB_OPTIONS if key in options}
        for component in components_of(model):
            component.load_data(_folder_with(component.data_files, name, where))
            component.forget_text()
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: Any, *args: Any, **options: Any) -> None:
        """As of transformers, with the tables of components beside the weights."""
        if options.get("is_main_process", True):
            Path(save_directory).mkdir(parents=True, exist_ok=True)
            for component in components_of(self):
                component.save_data(Path(save_directory))
        super().save_pretrained(save_directory, *args, **options)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> Any:
        return self.language_model.backbone.embedding

    def get_output_embeddings(self) -> None:
        """None: what a head makes of its embeddings is no linear layer."""

    def resize_token_embeddings(self, *sizes: Any, **options: Any) -> Any:
        raise ValueError(
            f"the vocabulary of an exported run must stay {self.config.vocab_size}: it cannot be "
            f"resized, got {sizes or options}"
        )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache_params: StateCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> Any:
        """Log-probabilities, or the loss of labels; the cache is called as Mamba's.

        Padding, left or right, is neither read nor predicted. In training the head's penalty, if it
        has one, is added to the loss, and no logits are made if there are labels.

        Args:
            input_ids: (B, T).
            labels: (B, T); position t predicts the label at t + 1; -100 is ignored.
            logits_to_keep: make logits of so many last positions; 0 of all; or a 1-D index.
            shift_labels: instead of `labels`: position t predicts its own.
            num_items_in_batch: what the summed loss is divided by instead of the number of targets.
        """
        if options.get("inputs_embeds") is not None:
            raise ValueError(
                "inputs_embeds must be None: heads may look back at tokens, got a tensor"
            )
        batch, length = input_ids.shape
        state = cache_params and cache_params.state
        state = self.language_model.initial_state(batch) if state is None else state
        target = options.get("shift_labels")
        if target is None and labels is not None:
            target = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)  # (B, T)
        keep = _kept(length, logits_to_keep).to(input_ids.device)
        parts = _parts(attention_mask, batch, length, input_ids.device)
        with_layers = bool(options.get("output_hidden_states"))
        totals, counts, trees = zip(
            *(self._forward_part(p, input_ids, target, state, keep, with_layers) for p in parts),
            strict=True,
        )
        tree = _in_order([part.rows for part in parts], trees)
        loss, num_items = None, options.get("num_items_in_batch")
        if target is not None:
            loss = torch.stack(totals).sum() / (sum(counts) if num_items is None else num_items)
        if self.config.use_cache if use_cache is None else use_cache:
            cache_params = cache_params or StateCache(None)
            cache_params.state = map_state(Tensor.detach, tree["state"])
            cache_params.num_tokens += length
        out = RunModelOutput(
            loss=loss,
            logits=None if tree["logits"] is None else tree["logits"].transpose(0, 1),
            cache_params=cache_params,
            hidden_states=tuple(x.transpose(0, 1) for x in tree["layers"]) or None,
        )
        return out.to_tuple() if options.get("return_dict") is False else out

    def _forward_part(
        self,
        part: Part,
        input_ids: Tensor,
        target: Tensor | None,
        state: State,
        keep: Tensor,
        with_layers: bool,
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Summed loss and number of targets, and trees whose dimension 1 is the batch."""
        model, total, logits = self.language_model, torch.zeros(()), None
        state = map_state(lambda x: x.index_select(1, part.rows), state)
        read = model.read(part.pick(input_ids), state)
        count, last = 0, part.last_read(input_ids.shape[1])  # (T, b)
        if target is not None:
            target = part.pick(target)  # (L, b)
            count = int((target != -100).sum())
            total = model.head(read.hidden, target, reduction="sum", **read.past).loss
        if target is None or not self.training:
            features = model.head.features(read.hidden, **read.past)
            logits = model.head.log_prob_from(_at(features, last[keep]))  # (C, b, V)
        layers = _at(read.backbone.layers, last) if with_layers else ()
        return total, count, {"state": read.state, "logits": logits, "layers": layers}


def _folder_with(files: tuple[str, ...], name: Any, where: dict[str, Any]) -> Path:
    """The folder of a model that has these files; of a name on the hub, in its cache."""
    if not files:
        return Path(name)
    # It raises where one is missing; None would be a configuration's.
    found = [str(cached_file(name, file, **where)) for file in files]
    return Path(found[0].removesuffix(files[0]))


def _parts(mask: Tensor | None, batch: int, length: int, device: torch.device) -> list[Part]:
    """The batch by the number of tokens that are no padding."""
    if mask is None or bool(mask[:, -length:].all()):
        columns = torch.arange(length, device=device).expand(batch, length)
        return [Part(torch.arange(batch, device=device), columns)]
    mask = mask[:, -length:] != 0
    sizes = mask.sum(1)  # (B,)
    if not bool(sizes.all()):
        raise ValueError(
            "attention_mask must leave every sequence a token, got none in one of them"
        )
    parts = []
    for size in sizes.unique().tolist():
        rows = (sizes == size).nonzero()[:, 0]  # (b,)
        parts.append(Part(rows, mask[rows].nonzero()[:, 1].view(len(rows), size)))
    return parts


def _in_order(rows: list[Tensor], trees: Sequence[Any]) -> Any:
    """The trees of parts as one, whose rows are the batch's."""
    if len(rows) == 1:
        return trees[0]
    order = torch.cat(rows).argsort()
    return map_state(lambda x: x.index_select(1, order), joined(trees))


def _at(tree: Any, index: Tensor) -> Any:
    """(C, b, …) of each tensor (L, b, …), by times (C, b); before the first token, its own."""
    batch = torch.arange(index.shape[1], device=index.device)
    return tree_map(lambda x: x[index.clamp_min(0), batch], tree)


def _kept(length: int, logits_to_keep: int | Tensor) -> Tensor:
    """The positions (C,) of which logits are made."""
    if isinstance(logits_to_keep, int):
        return torch.arange(max(0, length - logits_to_keep) if logits_to_keep else 0, length)
    if logits_to_keep.dim() != 1 or logits_to_keep.dtype == torch.bool:
        raise ValueError(
            f"logits_to_keep must be a number or a 1-D index, got {tuple(logits_to_keep.shape)}"
        )
    return logits_to_keep


def register() -> None:
    """Let transformers find model and tokenizer of an `RunModelConfig`."""
    register_causal(RunModelConfig, RunForCausalLM)
    AutoTokenizer.register(RunModelConfig, tokenizer_class=RunTokenizer, exist_ok=True)
