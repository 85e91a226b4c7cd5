"""Progress off a terminal: plain lines on standard error."""

from highrank.cli import console as module
from highrank.cli.console import progress


def test_lines_are_plain_rare_and_on_standard_error(capsys, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 1e9)
    with progress("Working") as show:
        show(0.25, "a quarter")
        show(1.0, "the end")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == ["Working …", "100% in 0 s: the end"]
