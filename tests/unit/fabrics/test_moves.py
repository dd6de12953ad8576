"""Operations of a change of attachments, counted before it is made."""

from campaign.fabrics.hardware import PoolSpec
from campaign.fabrics.moves import Steps, operations
from campaign.fabrics.placement.devices import pool_devices

DEVICES = {
    device.fabric_id: device
    for device in pool_devices([PoolSpec("gpu", "a100", 3, "box1"), PoolSpec("nvme", "ssd", 1, "box2")])
}
ONE, TWO, THREE, DRIVE = DEVICES


def counted(before, wanted, steps=None):
    found = dict(operations(before, wanted, DEVICES, steps or Steps()).counts)
    assert found.pop(("rest", "", "")) == 1
    return found


def test_from_an_empty_fabric_every_device_is_attached():
    assert counted({}, {ONE: "a", TWO: "a", DRIVE: "b"}) == {
        ("attach", "gpu", "box1"): 2,
        ("attach", "nvme", "box2"): 1,
    }


def test_what_stays_costs_nothing():
    assert not operations({ONE: "a"}, {ONE: "a"}, DEVICES, Steps(once=("inventory",)))


def test_a_device_of_another_host_is_moved_and_one_that_is_not_wanted_is_detached_only_from_hosts_in_use():
    before = {ONE: "b", TWO: "a", THREE: "c"}
    assert counted(before, {ONE: "a"}) == {("detach", "gpu", "box1"): 2, ("attach", "gpu", "box1"): 1}


def test_steps_are_those_of_the_fabric():
    steps = Steps(attach=("detach", "attach", "read_back"), once=("inventory",))
    found = operations({}, {ONE: "a", TWO: "a", "host1/gpu0": "a"}, DEVICES, steps)
    assert [found.of(each) for each in ("detach", "attach", "read_back", "inventory")] == [2, 2, 2, 1]
    assert (found + found).of("attach") == 4


def test_a_device_that_no_host_has_need_not_be_detached_first():
    steps = Steps(attach=("detach", "attach"))
    found = operations({}, {ONE: "a", TWO: "a"}, DEVICES, steps, free={ONE})
    assert (found.of("detach"), found.of("attach")) == (1, 2)


def test_what_stayed_since_an_earlier_block_is_attached_anew():
    found = operations({ONE: "a", TWO: "a"}, {ONE: "a", TWO: "a"}, DEVICES, Steps(), stale={ONE})
    assert (found.of("detach"), found.of("attach")) == (1, 1)
