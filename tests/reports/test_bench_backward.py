"""The table of `bench backward`, from made-up numbers."""

import io

from rich.console import Console

from highrank.experiments.cheaper_backward_result import (
    CheaperBackwardResult,
    ContestantResult,
    Point,
    Ratio,
    SelectionError,
    Sizes,
)
from highrank.reports.bench_table import backward_table


def contestant(name, kept, ratio, perplexities):
    points = tuple(
        Point(elapsed=60.0 * n, num_tokens=100_000 * n, perplexity=p)
        for n, p in enumerate(perplexities, 1)
    )
    return ContestantResult(
        name=name,
        selection=SelectionError(kept_share=kept, weight=0.1, context=0.2),
        effective_components=3.0,
        head_seconds=0.1,
        head_ratio=Ratio(median=ratio, low=ratio, high=ratio),
        step_seconds=0.2,
        step_ratio=Ratio(median=ratio + 0.1, low=ratio, high=ratio),
        by_time=points,
        by_tokens=points,
    )


def shown(*contestants):
    result = CheaperBackwardResult(
        seed=7,
        minutes=2.0,
        vocab_size=2000,
        num_threads=1,
        sizes=Sizes(),
        elapsed=480.0,
        contestants=contestants,
    )
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(backward_table(result))
    return console.export_text()


def test_perplexities_are_compared_at_tokens_that_all_reached():
    text = shown(
        contestant("exact", 1.0, 0.9, [200.0, 100.0]),
        contestant("sampled 3", 0.3, 0.6, [210.0, 110.0, 90.0]),
    )
    assert "at 200,000" in text
    sampled = next(line for line in text.splitlines() if "sampled" in line).split()
    assert sampled[-2:] == ["90.0", "110.0"]
    assert sampled[2:6] == ["0.30", "0.60", "0.70", "300,000"]


def test_a_run_too_short_for_any_mark_says_so():
    one = contestant("exact", 1.0, 0.9, [200.0])
    text = shown(ContestantResult(**{**one.__dict__, "by_tokens": ()}))
    assert "–" in text and "seed 7" in text
