"""`highrank generate MODEL` with a Hugging Face model: by its own tokenizer and `generate`."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from highrank.cli.console import as_json
from highrank.report.formats import printable

if TYPE_CHECKING:
    from highrank.cli.generate import Options
    from highrank.generation import Sampling


def is_foreign(path: Path) -> bool:
    """Whether it is a Hugging Face model's folder or a name on its hub; that is not asked yet.

    A name in a folder that is here, as runs/my-1, is a run's that is misspelled.
    """
    from highrank.integrations.huggingface.reader import is_hub_name
    from highrank.run.configuration import is_hugging_face, nearest_run

    if path.exists():
        return is_hugging_face(path)
    is_below = len(path.parts) > 1 and path.parent.exists()
    return is_hub_name(str(path)) and not is_below and not nearest_run(path)


def generate_foreign(folder: Path, prompt: str, sampling: "Sampling", options: "Options") -> None:
    """Print the samples when they are complete."""
    from highrank.environment import check_device
    from highrank.integrations.huggingface.generation import generate_text
    from highrank.integrations.huggingface.reader import HubError, HuggingFaceModel

    if options.show_components:
        raise ValueError(f"show-components must go with a run, got the Hugging Face model {folder}")
    check_device(options.device)
    try:
        model = HuggingFaceModel(str(folder))
    except HubError as error:
        raise ValueError(f"there is no such run here, and {error}") from None
    samples = generate_text(
        model,
        prompt,
        sampling,
        num_tokens=options.num_tokens,
        num_samples=options.num_samples,
        device=options.device,
    )
    if options.json:
        found = {"run": str(folder), "prompt": prompt}
        print(as_json(found | {"samples": [sample._asdict() for sample in samples]}))
        return
    console = Console()
    for index, sample in enumerate(samples, 1):
        if len(samples) > 1:
            console.out(f"--- {index}", style="dim", highlight=False)
        console.out(printable(sample.text), highlight=False)
