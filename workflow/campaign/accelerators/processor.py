"""Processes on CPU cores, each of which stands for a device."""

from campaign.accelerators.accelerator import Accelerator

CPU = Accelerator("cpu", "process on a CPU core that stands for a device", "cpu", "gloo", telemetry="of the host only")
