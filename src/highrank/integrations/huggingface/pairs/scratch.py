"""Encoder–decoders that begin at random, with a tokenizer that is learned from their pairs.

`CONFIGS` lists the named ones; a folder with a config.json of transformers is another.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from highrank.data import subwords
from highrank.integrations.huggingface.pairs.loading import set_dropout

PAD, EOS = "<pad>", "</s>"
# Arguments of Pegasus' configuration, a Transformer with norms before its layers: with norms behind
# them, as Marian has, the same learning rate stays at the frequencies of words (docs/log.md).
# Weights start with a deviation of d^-1/2, as in fairseq.
CONFIGS: dict[str, dict[str, Any]] = {
    # Wu et al. (2021), "Good for misconceived reasons: an empirical revisiting on the need for
    # visual context in multimodal machine translation", section 3: for 29,000 pairs. In the first
    # hour less dropout than their 0.3 is better (docs/log.md).
    "transformer-tiny": {
        "d_model": 128,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 256,
        "activation_function": "relu",
        "dropout": 0.15,
        "attention_dropout": 0.0,
        "scale_embedding": True,
        "init_std": 128**-0.5,
        "max_position_embeddings": 512,
    },
}


def learn_tokenizer(lines: Iterable[str], size: int, lower: bool = False) -> Any:
    """A tokenizer of joint byte-pair encoding (Sennrich et al. 2016) with so many tokens at most.

    It works on bytes: no text has an unknown token. A word is the same at the start of a text and
    within it. Every text ends with `</s>`.

    Args:
        lines: sources and targets.
        size: tokens, with `<pad>` and `</s>`.
        lower: whether texts are lower-cased first.
    """
    from tokenizers import decoders, models, normalizers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    least = subwords.LEAST_SIZE + 2
    if size < least:
        raise ValueError(f"vocabulary must be at least {least}, got {size}")
    steps = [*([normalizers.Lowercase()] if lower else []), normalizers.Prepend(" ")]
    normalizer = normalizers.Sequence(steps)
    texts = (normalizer.normalize_str(line) for line in lines)
    learned = subwords.learn(f"bpe:{size - 2}", texts)
    backend = subwords.make_backend(learned)
    # `<pad>` is 0: it is a row in the table of positions of M2M100.
    ids = {token: i for i, token in enumerate((PAD, EOS, *learned.tokens))}
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in learned.merges)]
    backend.model = models.BPE(vocab=ids, merges=merges)
    backend.normalizer = normalizer
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([PAD, EOS])
    end = backend.token_to_id(EOS)
    backend.post_processor = TemplateProcessing(
        single=["$A", EOS], pair=["$A", EOS, "$B", EOS], special_tokens=[(EOS, end)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        # What looks like a special token in a text is text.
        split_special_tokens=True,
    )


def read_config(config: str) -> Any:
    """The configuration of a key of `CONFIGS`, or of a folder with a config.json."""
    from transformers import AutoConfig, PegasusConfig

    if config in CONFIGS:
        return PegasusConfig(**CONFIGS[config])
    if not (Path(config) / "config.json").is_file():
        names = ", ".join(CONFIGS)
        raise ValueError(f"config must be {names} or a folder with config.json, got {config}")
    found = AutoConfig.from_pretrained(config, local_files_only=True)
    if not found.is_encoder_decoder:
        raise ValueError(f"config must be an encoder–decoder's, got {found.model_type}")
    return found


def new_model(config: str, tokenizer: Any, dropout: float | None = None, **changes: Any) -> Any:
    """A model at random, of the tokenizer's vocabulary.

    Args:
        config: as `read_config` takes it.
        dropout: None for the configuration's.
        changes: other values of the configuration's fields.
    """
    from transformers import AutoModelForSeq2SeqLM, GenerationConfig

    found = read_config(config)
    tokens = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        # As mBART shifts labels; behind padding, M2M100's positions would depend on the cache.
        "decoder_start_token_id": tokenizer.eos_token_id,
    }
    sizes = {"vocab_size": len(tokenizer)}
    if hasattr(found, "decoder_vocab_size"):
        # Marian's.
        sizes["decoder_vocab_size"] = len(tokenizer)
    for name, value in {**sizes, **tokens, **changes}.items():
        setattr(found, name, value)
    set_dropout(found, dropout)
    model = AutoModelForSeq2SeqLM.from_config(found)
    # Nothing is forced or forbidden that the configuration's own tokenizer has.
    model.generation_config = GenerationConfig(**tokens)
    return model
