"""`highrank demo`: what the bottleneck costs, and what a mixture wins."""

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

from rich.console import Console

from highrank.cli.console import progress, unless_given
from highrank.environment import check_threads
from highrank.files import check_writable


def demo(
    *,
    seed: int = 0,
    out: Path = Path("highrank-demo.html"),
    quick: bool = False,
    json: bool = False,
    picture: Annotated[Path | None, unless_given("none", "FILE")] = None,
    threads: int = 2,
) -> None:
    """Fit Softmax, MoC and MoS to languages whose distribution is known exactly.

    Prints a table and writes a page with pictures. One to two minutes on two cores.

    Args:
        seed: Draws the languages and the starting points.
        out: Where the page goes.
        quick: Fewer sizes and fewer steps: a sixth of the time, rougher numbers.
        json: Print the numbers as JSON instead of a table.
        picture: Also write the page's first picture, as PNG.
        threads: Heads that are fitted at a time, each by one thread.
    """
    for path in (out, picture):
        if path is not None:
            check_writable(path)
    check_threads(threads)
    from highrank.report.page import write_html
    from highrank.studies.demo.measure import run_demo
    from highrank.studies.demo.page import demo_page, demo_picture, demo_table

    with progress("Fitting heads to exact languages") as on_progress:
        result = run_demo(seed, quick, on_progress, threads)
    # Printed before anything is written: a full disk loses nothing.
    console = Console()
    if json:
        print(dumps(asdict(result)))
    else:
        console.print(demo_table(result))
    write_html(demo_page(result), out)
    if picture is not None:
        demo_picture(result, picture)
    if not json:
        console.print(f"The page with pictures: {out.absolute().as_uri()}", soft_wrap=True)
