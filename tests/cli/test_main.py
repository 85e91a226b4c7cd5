"""The command line before any command."""

import re

import pytest

from highrank import __version__
from highrank.cli.main import COMMANDS, main


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["highrank", *arguments])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr()


def test_version_is_the_package_s(monkeypatch, capsys):
    assert run(monkeypatch, capsys, "--version")[1].out == f"highrank {__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_every_command(arguments, monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, *arguments)
    assert code == 0
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", printed.out)


def test_an_unknown_command_is_an_error(monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, "dmeo")
    assert code == 2
    assert "dmeo" in printed.out + printed.err


def test_help_of_the_demo_explains_every_option(monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, "demo", "--help")
    assert code == 0
    for option in ("--seed", "--out", "--quick", "--json", "--picture"):
        assert option in printed.out
