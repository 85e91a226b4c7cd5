import re

import pytest

from highrank.environment import check_device, install_hint


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


def test_a_hint_is_a_command_for_the_checkout():
    assert re.match(r"pip install '\.\[hf\]' \(", install_hint("hf"))
