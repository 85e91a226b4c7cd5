"""README.md of upgraded models: how to load them, where nobody has written one."""

from pathlib import Path
from typing import Any

from highrank import __version__
from highrank.environment import install_hint

TEMPLATE = Path(__file__).with_name("upgraded.md")
# What says in cards of transformers where they come from: `push_to_hub`, and a Trainer.
PUSHED = "This model card has been automatically generated"
TRAINED = "This model card has been generated automatically"


def write_card(folder: Path, name: str, base: str, config: Any, head: Any) -> None:
    """Write README.md; one that a push has made is replaced, one of a Trainer continued.

    Args:
        name: what the model is loaded by.
        base: name of the architecture's plain class.
        config: of the model.
    """
    path = folder / "README.md"
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    card = TEMPLATE.read_text(encoding="utf-8").format(
        name=name,
        base=base,
        kind=config.output_head["kind"],
        task="text2text-generation" if config.is_encoder_decoder else "text-generation",
        auto=f"AutoModelFor{'Seq2SeqLM' if config.is_encoder_decoder else 'CausalLM'}",
        num_components=head.num_components,
        version=__version__,
        install=install_hint("hf"),
    )
    if not found or PUSHED in found:
        path.write_text(card, encoding="utf-8")
    elif TRAINED in found and "import highrank" not in found:
        loading = card.partition(f"# {name}\n")[2]
        path.write_text(f"{found}\n## Loading\n{loading}", encoding="utf-8")
