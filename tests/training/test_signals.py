"""Signals that ask a run to stop are noted; what nohup ignores stays ignored."""

import os
import signal
import threading

import pytest

from highrank.training.signals import SIGNALS, Stopped, listening, stop


@pytest.fixture(autouse=True)
def handlers():
    """As a shell starts a process, and as it was before the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_the_handlers_come_back(number):
    found = []
    with listening(found.append):
        os.kill(os.getpid(), number)
    assert found == [number]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_a_second_ctrl_c_ends_at_once_and_a_second_hangup_does_not():
    found = []
    with pytest.raises(KeyboardInterrupt), listening(found.append):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGINT)
    assert found == [signal.SIGHUP] * 2


def test_what_nohup_started_outlives_its_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    found = []
    with listening(found.append):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
    assert found == [signal.SIGTERM] and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_work_with_nothing_to_save_is_left_with_the_signal_s_number():
    with pytest.raises(Stopped) as caught, listening(stop):
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.args == (signal.SIGTERM,)


def test_in_another_thread_nothing_happens():
    found = []

    def work():
        with listening(found.append):
            found.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["done"]


def test_what_is_printed_to_a_lost_terminal_goes_nowhere():
    """The terminal is closed while the child waits; it prints, and ends as if all were well."""
    child, terminal = os.forkpty()
    if child == 0:
        code = 1
        try:
            noted = threading.Event()
            with listening(lambda number: noted.set()):
                os.write(1, b"ready")
                noted.wait(60)
            os.write(1, b"saved")
            code = 0
        finally:
            os._exit(code)
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
