"""Causal language models of Hugging Face as predictors: hidden states, and the head after them.

Names are looked up on the hub once, so that a hub that does not answer costs one time-out.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from highrank.files import check_plain
from highrank.integrations.huggingface import register
from highrank.integrations.huggingface.float32 import compute_in_float32
from highrank.integrations.huggingface.library import quiet_transformers
from highrank.integrations.huggingface.output_layer import (
    HeadOutputLayer,
    check_output_layer,
    has_tied_output,
    probe,
    read_output_layer,
    run,
    tolerance,
)
from highrank.predictor import Predictor

# A name, or that of a user or an organisation, a slash, and a name.
NAME = re.compile(r"(?!.*(--|\.\.))\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", re.ASCII)
MAX_LENGTH = 96
# Keys of a configuration that count parts of a model: n_layer, num_hidden_layers, num_experts.
COUNTED, MOST_PARTS = re.compile(r"(n|num|encoder|decoder)_(\w+_)?(layers?|experts)"), 4_096
FILES = "config.json, a tokenizer and *.safetensors, as save_pretrained of transformers writes them"


class HubError(ValueError):
    """The hub has no such model, or cannot be reached."""


def is_hub_name(name: str) -> bool:
    """Whether a model on the hub can have this name, as gpt2 or google/gemma-2-2b."""
    return len(name) <= MAX_LENGTH and NAME.fullmatch(name) is not None


def hub_answers(name: str) -> bool:
    """Whether the model is on the hub: one request, where transformers would send six.

    False if there is no answer but the model was downloaded before. A `HubError` if there is no
    answer and no download, or if the hub has no such model.
    """
    import huggingface_hub.errors

    hub: Any = huggingface_hub
    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"))
    except (hub.errors.GatedRepoError, hub.errors.EntryNotFoundError):
        # The model is there. Why it cannot be loaded is reported when it is loaded.
        return True
    except hub.errors.RepositoryNotFoundError:
        raise HubError("the Hugging Face hub has no model of this name") from None
    # Errors of the connection are no OSErrors in newer versions.
    except (OSError, hub.errors.HTTPError) as error:
        if isinstance(hub.try_to_load_from_cache(name, "config.json"), str):
            return False
        raise HubError(f"the Hugging Face hub could not be reached ({first_line(error)})") from None
    return True


def first_line(error: Exception) -> str:
    """The first line of a message, which may be a page; with the second if that is what follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


class HuggingFaceModel:
    """A model by its folder or its name on the hub: configuration and tokenizer, weights later."""

    auto_class = "AutoModelForCausalLM"

    def __init__(self, name: str) -> None:
        self.name = name
        with quiet_transformers(_purpose(name)) as transformers:
            register()
            # A folder has all files; a hub that does not answer is not asked for each of them.
            is_local = Path(name).is_dir() or not hub_answers(name)
            for path in Path(name).iterdir() if Path(name).is_dir() else ():
                check_plain(path)
            self._options = {"trust_remote_code": False, "local_files_only": is_local}
            with _explained(name, "configuration"):
                self.config = transformers.AutoConfig.from_pretrained(name, **self._options)
                _check_counts(self.config.to_dict())
            self.check_kind()
            with _explained(name, "tokenizer"):
                self.tokenizer = transformers.AutoTokenizer.from_pretrained(name, **self._options)
        # transformers makes one up for some types of models.
        if set(self.tokenizer.get_vocab()) <= set(self.tokenizer.all_special_tokens):
            raise ValueError(f"{name} has no tokenizer: a model's folder has {FILES}")
        # Models whose texts begin with a special token get it in every window.
        start = self.tokenizer("")["input_ids"][:1]
        self.prefix = [int(i) for i in start if i == self.tokenizer.bos_token_id]

    def check_kind(self) -> None:
        """Refuse what is no causal language model."""
        if self.config.is_encoder_decoder:
            raise ValueError(
                f"a model must predict the next token of one text, got {self.name}, whose type "
                f"{self.config.model_type} is an encoder and a decoder: it needs a source text; "
                "highrank translate, chat and finetune --task take it"
            )

    @property
    def max_window(self) -> int | None:
        """Longest input in tokens; None if the configuration has no limit."""
        limit = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return None if limit is None else int(limit) - len(self.prefix)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens."""
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        largest, vocab_size = max(ids, default=-1), self.config.get_text_config().vocab_size
        if largest >= vocab_size:
            raise ValueError(
                f"the tokens of {self.name} must be below its vocabulary size {vocab_size:,}, got "
                f"{largest:,}"
            )
        return [int(i) for i in ids]

    def token(self, index: int) -> str:
        """A token as the tokenizer writes it; `<index>` for embeddings that it does not know."""
        found = self.tokenizer.convert_ids_to_tokens(index) if index < len(self.tokenizer) else None
        return f"<{index}>" if found is None else str(found)

    def load(self, device: str = "cpu") -> "HuggingFacePredictor":
        """The weights, which compute in float32 on a CPU; checks the output layer."""
        return HuggingFacePredictor(self.load_weights(device), self.name, self.prefix)

    def load_weights(self, device: str = "cpu") -> Any:
        """The model of transformers in evaluation mode, as it is stored."""
        with (
            quiet_transformers(_purpose(self.name)) as transformers,
            _explained(self.name, "weights"),
        ):
            model, found = getattr(transformers, self.auto_class).from_pretrained(
                self.name,
                config=self.config,
                use_safetensors=True,
                torch_dtype="auto",
                output_loading_info=True,
                # Where peft is installed, an adapter is looked for, too.
                adapter_kwargs={"local_files_only": self._options["local_files_only"]},
                **self._options,
            )
            if missing := sorted(found["missing_keys"]):
                # transformers makes them up at random.
                raise ValueError(f"no file has {missing[0]}")
        for tensor_name, tensor in model.named_parameters():
            if tensor.isnan().any():
                raise ValueError(f"The weights of {self.name} have NaN in {tensor_name}.")
        return model.to(device).eval()


class HuggingFacePredictor(Predictor):
    """The hidden states of a causal language model, and its output layer as a head.

    The head is that of an upgraded model, whose hidden states are scaled already, or else a
    `LinearHead`. A state is the tokens that were read before.

    Args:
        model: what `AutoModelForCausalLM` makes, in evaluation mode. On a CPU it is changed so
            that it computes in float32; a layer that is not understood is refused.
        name: for errors.
        prefix: tokens that come before every text.
    """

    def __init__(self, model: Any, name: str, prefix: Sequence[int] = ()) -> None:
        self.model, self.name, self.prefix = model, name, list(prefix)
        self.architecture = type(model).__name__
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        output = model.get_output_embeddings()
        self.is_upgraded = isinstance(output, HeadOutputLayer)
        # The output embedding stays as it is stored: it is converted piece by piece where needed.
        layer = None if self.is_upgraded else read_output_layer(model, name)
        self.head = output.head if layer is None else layer
        self.scale = output.scale if layer is None else layer.scale
        self.is_tied = has_tied_output(model)
        self.dtype = self.precision = output.weight.dtype
        if model.device.type == "cpu":
            compute_in_float32(model)
            self.precision = torch.float32
        if layer is not None:
            check_output_layer(model, layer, name)
        self._check_causal()

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.empty(0, batch_size, dtype=torch.long)

    def read(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, dict[str, Any], Tensor]:
        seen = torch.cat([state, tokens.cpu()])  # (n + T, B)
        return self.states(seen.T)[:, len(state) :].transpose(0, 1), {}, seen

    @torch.no_grad()
    def states(self, tokens: Tensor) -> Tensor:
        """The head's input (B, L, D), float32, after each of the tokens (B, L)."""
        prefix = torch.tensor(self.prefix, dtype=tokens.dtype).expand(len(tokens), -1)
        read = torch.cat([prefix, tokens.cpu()], 1)  # (B, prefix + L)
        # No position reaches the output layer: all logits would need the most memory by far.
        hidden, _ = run(self.model, read, self.name, lambda hidden: hidden[:, :0])
        hidden = hidden[:, len(self.prefix) :].float()
        return hidden * self.scale if self.is_upgraded else hidden

    def _check_causal(self) -> None:
        """Refuse a model whose hidden states depend on later tokens."""
        tokens = probe(self.model)
        other = tokens.clone()
        other[0, -1] = (tokens[0, -1] + 1) % self.head.vocab_size
        states = self.states(tokens)[:, :-1]  # (1, n, D)
        worst = (states - self.states(other)[:, :-1]).abs().max().item()
        if not worst <= tolerance(states.abs().max().item(), self.precision):
            raise ValueError(
                f"{self.name} must be a causal language model, got {self.architecture}, whose "
                "hidden states depend on later tokens"
            )


def _purpose(name: str) -> str:
    there = "" if Path(name).exists() else " (it is no folder here)"
    return f"load {name}{there} as a Hugging Face model"


def _check_counts(config: Mapping[str, Any]) -> None:
    """Raise for more layers or experts than any model has: each would be made before it is read."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_counts(value)
        elif isinstance(value, int) and COUNTED.fullmatch(key) and value > MOST_PARTS:
            raise ValueError(f"{key} must be at most {MOST_PARTS:,}, got {value}")


@contextmanager
def _explained(name: str, part: str) -> Iterator[None]:
    """Turn any error of loading into a ValueError of one line, with the damaged file."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # Errors of safetensors, of configurations and of sizes have no common class.
        reason = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
        found = _damaged_file(Path(name)) or reason
        raise ValueError(
            f"The {part} of {name} cannot be loaded: {found.rstrip('.,:')}. A "
            f"model's folder has {FILES}"
        ) from error


def _damaged_file(folder: Path) -> str:
    """The first file that is no JSON or no safetensors, and why; empty if all are sound."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            return f"{path} is no JSON ({first_line(error)})"
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt"):
                pass
        except SafetensorError as error:
            return f"{path} is cut off or damaged ({first_line(error)})"
    return ""
