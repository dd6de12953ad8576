"""The pace of one emulated device in the iterations of a decoder."""

from __future__ import annotations

from campaign.workloads.trainer.pace import Pacer


class DevicePace:
    """An emulated device of so many GFLOP/s: what it computes is real, and takes as long as on the device.

    lost_s: by how much iterations ended late. That is not made up for: clients have waited for it.
    """

    def __init__(self, gflops: float) -> None:
        self._rate = 1e9 * gflops
        self._pacer = Pacer()
        self.lost_s = 0.0

    def begin(self) -> None:
        self._pacer.begin()

    def worked(self, operations: float) -> None:
        self._pacer.advance(operations / self._rate)

    def end(self) -> None:
        self.lost_s += self._pacer.late_s
        self._pacer.forget()
