"""`highrank translate MODEL [FILE]`: a target for each line, batch by batch."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro

from highrank.cli.console import Threads, as_json, plain_console, progress, unless_given

# Lines that are read before they are translated, for batches of like lengths; at a terminal, one.
BLOCK = 256


def translate(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = "-",
    *,
    beam: int = 5,
    best: int = 1,
    length_penalty: float = 1.0,
    source_lang: Annotated[str | None, unless_given("the model's", "NAME")] = None,
    target_lang: Annotated[str | None, unless_given("the model's", "NAME")] = None,
    source_prefix: Annotated[str | None, unless_given("the model's", "TEXT")] = None,
    device: str = "cpu",
    json: bool = False,
    threads: Threads = None,
) -> None:
    """Translate a text, a line at a time, with an encoder–decoder.

    Prints a line for each line; an empty one stays empty.

    Args:
        model: Folder of an encoder–decoder, such as runs/finetune-1/softmax-0, or its name.
        file: A text with a source on each line; - is standard input.
        beam: Hypotheses that are kept at each step; 1 is greedy.
        best: Hypotheses of each line; more than one is for --json.
        length_penalty: Power of the length by which log-probabilities are divided.
        source_lang: Language of the text, for a model of several: de, deu_Latn or de_DE, as its
            tokenizer calls it. A model of highrank finetune knows both languages.
        target_lang: Language to translate into.
        source_prefix: Text before each line, for a T5: "translate German to English: ".
        device: As torch names it: cpu, cuda, mps.
        json: Print an object a line: the source, and its hypotheses with log-probabilities in nats.
        threads: Threads of the matrix multiplies.
    """
    from highrank.environment import check_device, set_threads
    from highrank.integrations.huggingface.library import check_installed, quiet_transformers
    from highrank.report.formats import printable

    check_installed("translate")
    from highrank.integrations.huggingface.pairs.decoding import Beams, decode
    from highrank.integrations.huggingface.pairs.encoding import TextEncoder
    from highrank.integrations.huggingface.pairs.loading import EncoderDecoder

    if best > 1 and not json:
        raise ValueError(f"best must be 1 without --json, got {best}")
    beams = Beams(num_beams=beam, num_best=best, length_penalty=length_penalty)
    set_threads(threads)
    check_device(device)
    lines, total = _lines(file)
    size = 1 if file == "-" and sys.stdin.isatty() else BLOCK
    found = EncoderDecoder(
        model, source_lang=source_lang, target_lang=target_lang, source_prefix=source_prefix
    )
    weights, done = found.load_weights(device), 0
    block: list[str] = []
    encoder = TextEncoder.of(found.config, found.tokenizer)
    errors = plain_console(stderr=True)
    with quiet_transformers("translate"), progress("Translating") as on_progress:

        def show(fraction: float, _: str) -> None:
            now = round(done + fraction * len(block))
            if total is None:
                on_progress(0.0, f"{now:,} lines are done")
            else:
                on_progress(now / total, f"{now:,} of {total:,} lines")

        while block := list(islice(lines, size)):
            for place, is_cut in enumerate(encoder.sources(block).is_cut, done + 1):
                if is_cut:
                    errors.print(
                        f"Line {place:,} has more than the model's {encoder.limit:,} tokens: its "
                        "end is left out."
                    )
            sources = [line for line in block if line.strip()]
            translated = decode(
                weights, encoder, sources, beams, with_scores=json, on_progress=show
            )
            some = iter(translated)
            for line in block:
                hypotheses = next(some) if line.strip() else []
                if json:
                    print(as_json({"source": line, "hypotheses": hypotheses}), flush=True)
                else:
                    print(printable(hypotheses[0].text) if hypotheses else "", flush=True)
            done += len(block)


def _lines(file: str) -> tuple[Iterator[str], int | None]:
    """UTF-8 lines of a file and their number, or of standard input as they come."""
    if file != "-":
        from highrank.data.pairs.reading import lines

        found = lines(Path(file))
        return iter(found), len(found)
    return _standard_input(), None


def _standard_input() -> Iterator[str]:
    """Lines as they come. One that is not UTF-8 is named, and those after it are still read."""
    errors = plain_console(stderr=True)
    for number, line in enumerate(sys.stdin.buffer, 1):
        text = line.decode(errors="replace")
        if text.encode() != line:
            errors.print(f"Line {number:,} is not UTF-8: a part of it cannot be read.")
        yield text.rstrip("\r\n")
