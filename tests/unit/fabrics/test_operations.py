"""Operations of composing, counted before anything is touched."""

from campaign.fabrics.operations import OperationSteps, count_operations
from campaign.spec.hardware import list_pool_devices
from campaign.spec.site_hardware import PoolSpec

ONE, TWO, THREE, DRIVE = list_pool_devices(
    [
        PoolSpec(kind="gpu", model="a100", count=3, drawer="box1"),
        PoolSpec(kind="nvme", model="ssd", count=1, drawer="box2"),
    ]
)


def test_every_device_is_attached_and_counts_in_its_box():
    found = count_operations([ONE, TWO, DRIVE], OperationSteps())
    assert dict(found.counts) == {("attach", "gpu", "box1"): 2, ("attach", "nvme", "box2"): 1, ("rest", "", ""): 1}
    assert not count_operations([], OperationSteps(per_composition=("inventory",)))


def test_steps_are_those_of_the_fabric():
    steps = OperationSteps(attach=("detach", "attach", "read_back"), per_composition=("inventory",))
    found = count_operations([ONE, TWO], steps)
    assert [found.count(each) for each in ("detach", "attach", "read_back", "inventory")] == [2, 2, 2, 1]
