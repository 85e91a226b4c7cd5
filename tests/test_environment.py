"""Devices, hints, and bfloat16 on CPUs that promise more than they can do."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from highrank import environment
from highrank.environment import (
    WITHOUT_AMX,
    check_device,
    free_memory,
    install_hint,
    prepare_bfloat16,
)

ISA = "ONEDNN_MAX_CPU_ISA"
FLAGS = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx512_bf16 {}amx_tile\nbugs\t\t:\n"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_devices_that_torch_has_pass(device):
    check_device(device)


@pytest.mark.parametrize("device", ["moon", "", "cpu:x", "mtia:99"])
def test_others_are_named_in_one_line(device):
    with pytest.raises(
        ValueError, match=r"device must be one that torch has here, got .+"
    ) as found:
        check_device(device)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "meminfo, free",
    [("MemTotal: 9 kB\nMemAvailable:    2048 kB\n", 2**21), ("MemTotal: 9 kB\n", None)],
)
def test_free_memory_is_what_linux_reports_as_available(tmp_path, meminfo, free):
    (tmp_path / "meminfo").write_text(meminfo)
    assert free_memory(tmp_path / "meminfo") == free
    assert free_memory(tmp_path / "nothing") is None


def die():
    os.kill(os.getpid(), signal.SIGILL)


def die_of_amx():
    if ISA not in os.environ:
        die()


def hang():
    time.sleep(60)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Call `prepare_bfloat16` on a CPU where its probe does this; returns the probes' variables."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in WITHOUT_AMX:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "CPUINFO", tmp_path / "cpuinfo")
    prepare_bfloat16.cache_clear()

    def prepare(probe, *, has_amx=True):
        environment.CPUINFO.write_text(FLAGS.format("amx_bf16 " if has_amx else ""))
        asked = []

        def survives(probe):
            asked.append(os.environ.get(ISA))
            return real_survives(probe)

        real_survives = environment._survives
        monkeypatch.setattr(environment, "_multiply_bfloat16", probe)
        monkeypatch.setattr(environment, "_survives", survives)
        prepare_bfloat16()
        return asked

    yield prepare
    prepare_bfloat16.cache_clear()


def test_a_cpu_without_amx_is_not_probed(machine):
    assert machine(die, has_amx=False) == []
    assert ISA not in os.environ


def test_a_machine_without_cpuinfo_is_not_probed(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "CPUINFO", tmp_path / "nowhere" / "cpuinfo")
    monkeypatch.setattr(environment, "_survives", lambda probe: pytest.fail("probed"))
    prepare_bfloat16()


def test_a_cpu_whose_amx_works_keeps_it(machine):
    assert machine(lambda: None) == [None]
    assert ISA not in os.environ


def test_a_cpu_whose_amx_kills_goes_without_it(machine):
    assert machine(die_of_amx) == [None, WITHOUT_AMX[ISA]]
    assert {name: os.environ[name] for name in WITHOUT_AMX} == WITHOUT_AMX


def test_the_answer_is_remembered(machine):
    asked = machine(die_of_amx)
    prepare_bfloat16()
    assert len(asked) == 2


def test_what_the_user_has_set_is_neither_probed_nor_changed(machine, monkeypatch):
    monkeypatch.setitem(os.environ, ISA, "AVX2")
    assert machine(die) == []
    assert os.environ[ISA] == "AVX2"


@pytest.mark.parametrize("probe", [die, hang])
def test_a_cpu_that_nothing_helps_is_refused_in_one_line(machine, probe, monkeypatch):
    monkeypatch.setattr(environment, "PROBE_SECONDS", 0.2 if probe is hang else 60)
    with pytest.raises(ValueError, match="bfloat16 must be supported by this CPU") as found:
        machine(probe)
    assert "--precision float32" in str(found.value) and "\n" not in str(found.value)
    assert os.environ.keys().isdisjoint(WITHOUT_AMX)


def test_a_probe_that_dies_prints_nothing(machine, capfd):
    machine(die_of_amx)
    assert capfd.readouterr() == ("", "")


CURED = """
import os, signal, sys, torch
from pathlib import Path
from highrank import environment

def probe():
    if "ONEDNN_MAX_CPU_ISA" not in os.environ:
        os.kill(os.getpid(), signal.SIGILL)
    multiply()

environment.CPUINFO = Path(sys.argv[1])
multiply, environment._multiply_bfloat16 = environment._multiply_bfloat16, probe
environment.prepare_bfloat16()
linear = torch.nn.Linear(64, 64)
with torch.autocast("cpu", torch.bfloat16):
    linear(torch.ones(64, 64)).sum().backward()
print(os.environ["ONEDNN_MAX_CPU_ISA"], linear.weight.grad.unique().tolist())
"""


def test_without_amx_torch_still_multiplies_bfloat16(tmp_path):
    (tmp_path / "cpuinfo").write_text(FLAGS.format("amx_bf16 "))
    done = subprocess.run(
        [sys.executable, "-c", CURED, tmp_path / "cpuinfo"],
        env={name: value for name, value in os.environ.items() if name not in WITHOUT_AMX},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "AVX512_CORE_FP16 [64.0]\n"


def test_a_hint_is_a_command_for_the_checkout():
    assert re.match(r"pip install '\.\[hf\]' \(", install_hint("hf"))


def test_the_environment_names_versions_machine_and_date():
    found = environment.environment()
    assert found.torch == torch.__version__ and found.threads == torch.get_num_threads()
    assert all((found.highrank, found.python, found.cpu, found.platform))
    assert found.date.startswith("20")


def test_a_file_that_git_does_not_know_has_no_commit(tmp_path):
    assert environment._commit(tmp_path / "file.py") is None
    assert environment._cpu(tmp_path / "cpuinfo")
