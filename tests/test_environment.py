import pytest

from highrank.environment import check_device


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
