"""Configurations of upgraded models and of exported runs.

The classes of their models are imported when such a configuration is made: until then it costs
nothing that `AutoConfig` knows both.
"""

from typing import Any

from transformers import PreTrainedConfig

# The field names the file of weights, and a class that does not know better prints it in its error.
GUARD = "transformers_weights"
REFUSAL = (
    "this model has a mixture of softmaxes; call highrank.register() and load it with "
    "AutoModelForCausalLM.from_pretrained"
)


class HighRankConfig(PreTrainedConfig):
    """Fields of upgraded models besides those of their architecture."""

    model_type = "highrank"
    base_model_type: str = ""
    """The architecture's, such as "llama"."""
    output_head: dict[str, Any] | None = None
    """"kind", "options", "softcap" and "scale"."""

    def __post_init__(self, **kwargs: Any) -> None:
        kwargs.pop(GUARD, None)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        if cls is HighRankConfig:
            from highrank.integrations.huggingface.model import upgraded_classes

            config, _ = upgraded_classes(config_dict["base_model_type"])
            return config.from_dict(config_dict, **kwargs)
        return super().from_dict(config_dict, **kwargs)

    def to_diff_dict(self) -> dict[str, Any]:
        return {**super().to_diff_dict(), GUARD: REFUSAL}


class AWDLSTMConfig(PreTrainedConfig):
    """A run's whole configuration, and what its corpus decided."""

    model_type = "highrank-awd-lstm"
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

    def __post_init__(self, **kwargs: Any) -> None:
        from highrank.integrations.huggingface.run_model import register

        register()
        super().__post_init__(**kwargs)
