"""`highrank demo`: what the bottleneck costs, and what a mixture wins."""

from pathlib import Path
from typing import Annotated

from highrank.cli.console import plain_console, progress, show, unless_given
from highrank.environment import check_threads
from highrank.files import check_writable, write_atomically


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
    from highrank.studies.demo.measure import run_demo
    from highrank.studies.demo.page import demo_page, demo_picture, demo_table

    with progress("Fitting heads to exact languages") as on_progress:
        result = run_demo(seed, quick, on_progress, threads)
    # Printed before anything is written: a full disk loses nothing.
    show(result, demo_table, json=json)
    page = demo_page(result)
    write_atomically(out, lambda new: new.write_text(page, encoding="utf-8"))
    if picture is not None:
        demo_picture(result, picture)
    if not json:
        plain_console().print(f"The page with pictures: {out.absolute().as_uri()}")
