"""Settings of NVIDIA devices that change their performance, as the driver reports them. Devices are identified by UUID.

Unverified on hardware. NVML does not report locked clocks (`nvidia-smi --lock-gpu-clocks`), but telemetry shows them under load
(`device_clocks_set_share_pct`). Earlier Xid errors are only in the kernel's log; telemetry counts new ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from campaign.common.processes.numa import find_pci_node
from campaign.observe.nvml import NvmlDevice, call_or_none, decode_text, list_devices, load_nvml

_MIB = 2**20
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Persistent settings that affect a device's performance. Settings that the device does not report are None.

    Attributes:
        uuid: UUID of the device.
        part_of: UUID of the whole device if this is a part of a divided device (MIG).
        address: PCI address as in /sys/bus/pci/devices.
        power_limit_w: power limit in force, in watts.
        clock_sm_application_mhz: SM clock under load that the user has set.
        clock_memory_application_mhz: memory clock under load that the user has set.
        pcie_generation_max: highest PCIe generation that both the device and its slot support.
        pcie_width_max: largest PCIe width that both the device and its slot support.
    """

    uuid: str
    part_of: str = ""
    model: str = ""
    driver: str = ""
    address: str = ""
    numa_node: int | None = None
    memory_mib: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_max_mhz: int | None = None
    clock_sm_application_mhz: int | None = None
    clock_memory_application_mhz: int | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert the settings to a dict, without those that the device does not report."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


def list_local_devices(nvml: Any = None) -> dict[str, NvmlDevice]:
    """List the NVIDIA devices of this host and their parts, by UUID. The result is empty if NVML is unavailable.

    Args:
        nvml: module with NVML's functions; if None, the installed package is used.
    """
    nvml = nvml or load_nvml()[0]
    devices = call_or_none(nvml, lambda: list_devices(nvml)) if nvml else None
    return {device.uuid: device for device in devices or ()}


def read_local_settings(nvml: Any = None) -> list[DeviceSettings]:
    """Read the settings of all NVIDIA devices of this host. The result is empty if NVML is unavailable."""
    nvml = nvml or load_nvml()[0]
    return [read_settings(nvml, device) for device in list_local_devices(nvml).values()] if nvml else []


def read_settings(nvml: Any, device: NvmlDevice) -> DeviceSettings:
    """Read the performance settings of one NVIDIA device through NVML."""
    handle = device.handle

    def call_nvml(name: str, *arguments: Any) -> Any:
        return call_or_none(nvml, lambda: getattr(nvml, name)(handle, *arguments))

    def read_watts(name: str) -> float | None:
        milliwatts = call_nvml(name)
        return None if milliwatts is None else milliwatts / 1e3

    def parse_flag(value: Any) -> bool | None:
        value = value[0] if isinstance(value, list | tuple) else value
        return None if value is None else bool(value)

    memory, pci, mode = (call_nvml(f"nvmlDeviceGet{name}") for name in ("MemoryInfo", "PciInfo", "ComputeMode"))
    address = normalize_pci_address(decode_text(pci.busId)) if pci is not None else ""
    return DeviceSettings(
        uuid=device.uuid,
        part_of=device.parent_uuid,
        model=decode_text(call_nvml("nvmlDeviceGetName") or ""),
        driver=decode_text(call_or_none(nvml, lambda: nvml.nvmlSystemGetDriverVersion()) or ""),
        address=address,
        numa_node=find_pci_node(address),
        memory_mib=None if memory is None else memory.total / _MIB,
        power_limit_w=read_watts("nvmlDeviceGetEnforcedPowerLimit"),
        power_limit_default_w=read_watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        clock_sm_max_mhz=call_nvml("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        clock_memory_max_mhz=call_nvml("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        clock_sm_application_mhz=call_nvml("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_SM),
        clock_memory_application_mhz=call_nvml("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_MEM),
        persistence=parse_flag(call_nvml("nvmlDeviceGetPersistenceMode")),
        ecc=parse_flag(call_nvml("nvmlDeviceGetEccMode")),
        mig=parse_flag(call_nvml("nvmlDeviceGetMigMode")),
        compute_mode=_COMPUTE_MODES[mode] if mode is not None and mode < len(_COMPUTE_MODES) else None,
        pcie_generation_max=call_nvml("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=call_nvml("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=call_nvml("nvmlDeviceGetMaxPcieLinkWidth"),
    )


def normalize_pci_address(bus_id: str) -> str:
    """Convert NVML's PCI address (00000000:17:00.0) to the kernel's form (0000:17:00.0)."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""
