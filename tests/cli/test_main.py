"""The command line before any command."""

import os
import re
import signal
import subprocess
import sys

import pytest

from highrank import __main__ as entry
from highrank import __version__
from highrank.cli.main import COMMANDS, GROUPS, main


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


@pytest.mark.parametrize("reason", ["", "cannot allocate 9 GB"])
def test_too_little_memory_is_one_line(reason, monkeypatch, capsys):
    def full(*_args):
        raise MemoryError(reason)

    monkeypatch.setattr("highrank.cli.main.run_train", full)
    code, printed = run(monkeypatch, capsys, "train")
    assert code == 2
    want = f"must be enough memory for these sizes, got {reason or 'no reason given'}\n"
    assert printed.err.endswith(want)


@pytest.mark.parametrize("arguments", [("train", "--help"), ("presets",), ("--version",)])
def test_a_reader_that_leaves_early_is_no_error(arguments):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "highrank", *arguments],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interrupt_while_the_commands_load_is_one_line():
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "highrank", "train"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # One of torch's first modules: the rest takes a second from here.
        assert any("torch.version" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if not line.startswith("import time:")]
    assert process.returncode == 130
    assert said == ["highrank: interrupted\n"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
    ],
)
def test_waiting_threads_sleep_soon_unless_the_user_decided(given, expected, monkeypatch, capsys):
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr("sys.argv", ["highrank", "--version"])
    entry.main()
    assert os.environ.get("GOMP_SPINCOUNT") == expected


COMMAND_LINES = [
    *((name,) for name in COMMANDS),
    *((group, name) for group, commands in GROUPS.items() for name in commands),
]


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_help_fits_in_eighty_columns(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    code, printed = run(monkeypatch, capsys, *words, "--help")
    assert code == 0
    body = printed.out.split("\n\n", 1)[1]  # the usage line is the parser's own
    assert all(len(line) <= 80 for line in body.splitlines())
