"""The command line before any command."""

import os
import re
import signal
import subprocess
import sys
from importlib import import_module

import pytest

from highrank import __main__ as entry
from highrank import __version__
from highrank.cli.main import COMMANDS, GROUPS, main

# A terminal of the seventies: Python leaves such a locale for UTF-8 unless it is forbidden.
PLAIN_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


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


@pytest.mark.parametrize(
    ("arguments", "guess"),
    [
        (["trian"], "train"),
        (["train", "ptb-moss"], "ptb-mos"),
        (["train", "--corpus", "wikitext2"], "wikitext-2"),
        (["data", "prepare", "pen-treebank"], "penn-treebank"),
    ],
)
def test_a_name_that_is_nearly_right_is_guessed(arguments, guess, monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, *arguments)
    assert code == 2 and printed.out == "" and printed.err.count("\n") == 1
    assert f"did you mean {guess}?" in printed.err


def test_an_option_that_is_nearly_right_is_guessed(monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, "evaluate", "runs/any", "--batchsize", "1")
    assert code == 2 and "Perhaps you meant" in printed.err and "--batch-size" in printed.err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("demo --seed 1" + 30 * "0", "seed"),
        ("generate run --num-tokens 2147483648", "num-tokens"),
        ("evaluate run --dynamic --dynamic.lr 1e308", "dynamic.lr"),
        ("audit run --contexts 9223372036854775808", "contexts"),
        ("bench loss --rounds 9223372036854775808", "rounds"),
        ("data prepare text --max-vocab 9223372036854775808", "max-vocab"),
    ],
)
def test_a_number_beyond_all_ranges_is_refused_first(arguments, name, monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, *arguments.split())
    assert code == 2 and printed.err.startswith(f"highrank: {name} must be at most ")


@pytest.mark.parametrize("arguments", ["audit run --text", "train", "evaluate"])
def test_a_link_to_itself_is_one_line(arguments, monkeypatch, capsys, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    code, printed = run(monkeypatch, capsys, *arguments.split(), str(tmp_path / "loop"))
    assert code == 2 and printed.err.startswith("highrank: ") and printed.err.count("\n") == 1


@pytest.mark.parametrize("words", ["generate", "presets --json", "train small --json", "compare"])
def test_an_error_cannot_move_the_cursor_of_a_terminal(words, monkeypatch, capsys):
    code, printed = run(monkeypatch, capsys, *words.split(), "runs/\x1b[2J")
    assert code == 2 and "runs/\\x1b[2J" in printed.err and "\x1b" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["train", "--help"], 0, b"highrank train"),
        (["data", "list"], 0, b"penn-treebank"),
        (["generate", b"caf\xe9"], 2, b"got caf\\udce9"),
        (["evaluate", "café"], 2, b"got caf\\xe9"),
    ],
)
def test_a_terminal_without_unicode_gets_all_in_ascii(arguments, code, found, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "highrank", *arguments],
        env=os.environ | PLAIN_ASCII | {"HIGHRANK_CACHE": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == code and found in printed and printed.isascii()


def test_powers_of_ten_are_legible_in_ascii(monkeypatch, capsys):
    run(monkeypatch, capsys, "--version")
    assert "ε = 10⁻³".encode("ascii", "highrank") == b"\\u03b5 = 10^-3"


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        ("--version", {"torch", "tyro", "rich", "numpy"}),
        ("data list --help", {"torch", "matplotlib", "transformers"}),
        ("presets", {"torch", "matplotlib", "transformers"}),
        ("runs .", {"torch", "matplotlib", "transformers"}),
    ],
)
def test_what_computes_nothing_starts_without_heavy_imports(arguments, heavy):
    code = (
        "import sys; from highrank.__main__ import main\n"
        f"sys.argv = ['highrank', *{arguments.split()}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print({heavy} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


@pytest.mark.parametrize("reason", ["", "cannot allocate 9 GB"])
def test_too_little_memory_is_one_line(reason, monkeypatch, capsys):
    def full(*_args):
        raise MemoryError(reason)

    monkeypatch.setattr("highrank.cli.train.run_train", full)
    code, printed = run(monkeypatch, capsys, "train")
    assert code == 2
    assert printed.err == f"highrank: Out of memory: {reason or 'no reason given'}\n"


@pytest.mark.parametrize("arguments", [("presets",), ("--version",)])
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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [("presets",), ("--version",)])
def test_output_to_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "highrank", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    message = "highrank: The disk is full: the output was not written.\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_an_interrupt_while_the_commands_load_is_one_line(child):
    process = child("-X", "importtime", "-m", "highrank", "train", stdout=subprocess.DEVNULL)
    # One of torch's first modules: the rest takes a second from here.
    assert any("torch.version" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=30)
        assert said.splitlines()[-1] == "highrank: interrupted"
    except subprocess.TimeoutExpired:
        # Python drops an interrupt that falls into a finalizer: the next one must end the command.
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said


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
    *(
        (group, name)
        for group, table in GROUPS.items()
        for name in getattr(import_module(f"highrank.cli.{group}"), table)
    ),
]


WITHOUT_WORK = (
    ("presets",),
    ("runs",),
    ("data",),
    ("data", "list"),
    ("data", "prepare"),
    ("bench",),
)


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_help_fits_in_eighty_columns_and_has_threads_and_defaults(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    code, printed = run(monkeypatch, capsys, *words, "--help")
    assert code == 0
    body = printed.out.split("\n\n", 1)[1]  # the usage line is the parser's own
    assert all(len(line) <= 80 for line in body.splitlines())
    assert ("--threads INT" in printed.out) == (words not in WITHOUT_WORK)
    if words == ("train",):
        text = re.sub(r"[│\s]+", " ", printed.out)
        assert "--model.no-tied Give input and output an embedding each. (default: they sha" in text
        assert "--head.no-bias whether each token and each class has a bias. (default: on;" in text
    if words in (("evaluate",), ("generate",)):
        assert "(default: )" not in printed.out and "(default: None)" not in printed.out


@pytest.mark.parametrize("content", ["settings", '{"model_type": "gpt2"}', "[1]"])
def test_only_a_run_is_not_taken_for_a_text(content, highrank, tmp_path):
    (tmp_path / "config.json").write_text(content)
    assert highrank("train", tmp_path, "--help")[0] == 0
