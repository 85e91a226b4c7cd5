"""The models of a study: one body, and a head for each variant."""

import copy
from typing import Any

import torch

from highrank.data.pairs.encoded import EncodedPairs
from highrank.integrations.huggingface.pairs.scratch import new_model
from highrank.integrations.huggingface.recipe import BASELINE, CONTROL
from highrank.integrations.huggingface.upgrade import upgrade
from highrank.studies.pairs.settings import Settings, Variant


class Models:
    """Makes the model of a variant and a seed.

    Args:
        base: the pretrained model; None to begin at random.
        tokenizer: the model's, or what was learned from the pairs.
        train: for the frequencies of tokens.
    """

    def __init__(self, settings: Settings, base: Any, tokenizer: Any, train: EncodedPairs) -> None:
        self.settings, self.base, self.tokenizer = settings, base, tokenizer
        self._counts = torch.from_numpy(train.target.ids.astype("int64"))
        self._narrower: dict[str, int] = {}

    def make(self, name: str, seed: int) -> Any:
        """A model of transformers with the head of a variant."""
        if not self.settings.is_from_scratch:
            return _upgraded(copy.deepcopy(self.base), Variant.parse(name), seed)
        changes = {}
        if self.settings.equal_parameters and name != BASELINE:
            changes["decoder_ffn_dim"] = self._ffn_size(name)
        return self._from_scratch(name, seed, changes)

    def _from_scratch(self, name: str, seed: int, changes: dict[str, Any]) -> Any:
        assert self.settings.config is not None
        kind, num_components = Variant.parse(name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = new_model(
                self.settings.config, self.tokenizer, self.settings.dropout, **changes
            )
        options: dict[str, Any] = {"seed": seed, "start": "random"}
        if kind == BASELINE:
            return upgrade(model, head="softmax")
        if kind == CONTROL:
            return upgrade(model, "mos", 1, **options)
        if kind.startswith("adaptive"):
            size = model.get_output_embeddings().weight.shape[0]
            options["token_counts"] = torch.bincount(self._counts, minlength=size).tolist()
        return upgrade(model, kind, num_components, **options)

    def _ffn_size(self, name: str) -> int:
        """Width of the decoder's inner layers with which a model is as large as the softmax."""
        if name not in self._narrower:
            plain, new = (self._from_scratch(one, 0, {}) for one in (BASELINE, name))
            config = plain.config
            if not hasattr(config, "decoder_ffn_dim"):
                raise ValueError(
                    "equal-parameters must go with a configuration that has decoder_ffn_dim, got "
                    f"{config.base_model_type}"
                )
            of_unit = config.decoder_layers * (2 * config.d_model + 1)
            added = new.num_parameters() - plain.num_parameters()
            self._narrower[name] = max(1, config.decoder_ffn_dim - round(added / of_unit))
        return self._narrower[name]


def _upgraded(model: Any, variant: Variant, seed: int) -> Any:
    """A pretrained model whose predictions the new head does not change."""
    kind, num_components = variant
    if kind == BASELINE:
        return upgrade(model, head="softmax")
    if kind == CONTROL:
        return upgrade(model, num_components=1, start="identity")
    return upgrade(model, kind, num_components, seed=seed)
