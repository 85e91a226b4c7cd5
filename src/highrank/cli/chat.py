"""`highrank chat MODEL`: a conversation in the terminal."""

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from highrank.cli.console import Threads, unless_given
from highrank.cli.samples import print_legend, print_words
from highrank.report.formats import printable


def chat(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    *,
    context: Annotated[int | None, unless_given("as it was trained, or 1", "INT")] = None,
    beam: int = 5,
    max_words: int = 30,
    temperature: float = 0.0,
    seed: int = 0,
    show_components: bool = False,
    device: str = "cpu",
    threads: Threads = None,
) -> None:
    """Talk with an encoder–decoder: you write a line, it answers. Ctrl-D ends it.

    Args:
        model: Folder of an encoder–decoder, such as runs/finetune-1/mos-4-0, or its name.
        context: Utterances that it is shown, yours and its own, the latest as far as they fit.
        beam: Hypotheses that are kept at each step; 1 is greedy.
        max_words: Words of an answer, at most.
        temperature: Above 0, answers are drawn, and differ; 0 searches the likeliest.
        seed: Of what is drawn.
        show_components: Colour each word by the mixture's component that is responsible for it.
        device: As torch names it: cpu, cuda, mps.
        threads: Threads of the matrix multiplies.
    """
    import torch

    from highrank.environment import check_device, set_threads
    from highrank.integrations.huggingface.library import check_installed, quiet_transformers

    check_installed("chat")
    from highrank.data.pairs.dialogues import BREAK
    from highrank.integrations.huggingface.pairs.components import has_components, word_components
    from highrank.integrations.huggingface.pairs.decoding import Beams, decode
    from highrank.integrations.huggingface.pairs.encoding import TextEncoder
    from highrank.integrations.huggingface.pairs.loading import EncoderDecoder

    beams = Beams(num_beams=beam, max_words=max_words, temperature=temperature)
    if context is not None and context < 1:
        raise ValueError(f"context must be at least 1, got {context}")
    set_threads(threads)
    check_device(device)
    found = EncoderDecoder(model)
    weights, console = found.load_weights(device), Console()
    encoder = TextEncoder.of(found.config, found.tokenizer, keeps_end=True)
    if show_components:
        if not has_components(weights):
            raise ValueError(f"show-components must go with a mixture of softmaxes, got {model}")
        head = weights.get_output_embeddings().head
        print_legend(console, [str(k + 1) for k in range(head.num_components)])
    torch.manual_seed(seed)
    said: deque[str] = deque(maxlen=context or _trained_context(Path(model)))
    with quiet_transformers("chat"):
        for line in _utterances(console):
            said.append(line)
            source = BREAK.join(said)
            answer = decode(weights, encoder, [source], beams)[0][0]
            if show_components:
                words = word_components(weights, encoder, source, answer.ids)
                print_words(console, words[:max_words])
            else:
                console.out(printable(answer.text), highlight=False)
            said.append(answer.text)


def _trained_context(folder: Path) -> int:
    """Utterances before a response in the model's training, where its folder tells."""
    from highrank.files import read_json

    path = folder / "variant.json"
    known = read_json(path) if path.is_file() else {}
    value = known.get("context") if isinstance(known, dict) else None
    return value if isinstance(value, int) and value >= 1 else 1


def _utterances(console: Console) -> Iterator[str]:
    """The lines that are not empty, until there are no more; on a terminal, with a prompt."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        console.out("Write a line; Ctrl-D ends the conversation.", style="dim", highlight=False)
    while True:
        if is_terminal:
            console.out("> ", style="dim", highlight=False, end="")
        line = sys.stdin.buffer.readline().decode(errors="replace")
        if not line:
            if is_terminal:
                # Ctrl-D leaves the cursor behind the prompt.
                console.out("")
            break
        if line.strip():
            yield line.strip()
