"""What NVIDIA's driver tells of one device: what changes its numbers, who uses it, and its errors. By UUID, never by number.

Unverified on hardware. NVML does not tell which clocks are locked (`nvidia-smi --lock-gpu-clocks`); under load, telemetry does
(`device_clocks_set_share_pct`). Earlier Xid errors are in the kernel's log only; telemetry counts those that come.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from campaign.observe.nvml import Listed, listed, load, text, told
from campaign.processes.numa import node_of_pci

_MIB = 2**20
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that has memory on a device. name: empty where it is not seen from here; memory_mib: None where NVML hides it."""

    pid: int
    name: str
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What changes a device's numbers and stays while nobody changes it; None: the device does not tell.

    part_of: UUID of the whole device, for a part (MIG); address: as in /sys/bus/pci/devices; power_limit_w: in force;
    clock_*_application_mhz: that the clocks are set to under load; pcie_generation_max, pcie_width_max: of device and slot
    together.
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

    def document(self) -> dict[str, Any]:
        """What the device tells."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device at this moment. Counters are since the driver was loaded; None: the device does not tell.

    memory_used_mib: without what the driver keeps for itself; rows_failed, rows_pending: remapping of memory rows has failed, or
    waits for a reset; pcie_generation: falls on an idle device.
    """

    settings: DeviceSettings
    processes: tuple[DeviceProcess, ...] | None = None
    memory_used_mib: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    rows_failed: bool | None = None
    rows_pending: bool | None = None
    pcie_generation: int | None = None
    energy_j: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None


def devices_here(nvml: Any = None) -> dict[str, Listed]:
    """Devices of this host and their parts, by UUID; none without NVML. nvml: a module with its functions; None: the package."""
    nvml = nvml or load()[0]
    found = told(nvml, lambda: listed(nvml)) if nvml else None
    return {each.uuid: each for each in found or ()}


def states_here(nvml: Any = None) -> dict[str, DeviceState]:
    """State by UUID of all devices of this host; empty without NVML."""
    nvml = nvml or load()[0]
    return {uuid: state(nvml, each) for uuid, each in devices_here(nvml).items()} if nvml else {}


def settings_here(nvml: Any = None) -> list[DeviceSettings]:
    """Settings of all devices of this host; empty without NVML."""
    nvml = nvml or load()[0]
    return [settings(nvml, each) for each in devices_here(nvml).values()] if nvml else []


def state(nvml: Any, device: Listed) -> DeviceState:
    """What a device tells now."""
    handle = device.handle

    def ask(name: str, *arguments: Any) -> Any:
        return told(nvml, lambda: getattr(nvml, name)(handle, *arguments))

    def ecc(kind: str) -> Any:
        return told(
            nvml,
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC
            ),
        )

    memory, energy_mj = memory_info(nvml, handle), ask("nvmlDeviceGetTotalEnergyConsumption")
    power_mw = ask("nvmlDeviceGetPowerUsage")
    rows = ask("nvmlDeviceGetRemappedRows")
    return DeviceState(
        settings(nvml, device),
        processes(nvml, handle),
        None if memory is None else memory.used / _MIB,
        ecc("CORRECTED"),
        ecc("UNCORRECTED"),
        None if rows is None else bool(rows[3]),
        None if rows is None else bool(rows[2]),
        ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        None if energy_mj is None else energy_mj / 1e3,
        None if power_mw is None else power_mw / 1e3,
        ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
    )


def settings(nvml: Any, device: Listed) -> DeviceSettings:
    """What changes a device's numbers."""
    handle = device.handle

    def ask(name: str, *arguments: Any) -> Any:
        return told(nvml, lambda: getattr(nvml, name)(handle, *arguments))

    def watts(name: str) -> float | None:
        found = ask(name)
        return None if found is None else found / 1e3

    def on(found: Any) -> bool | None:
        found = found[0] if isinstance(found, list | tuple) else found
        return None if found is None else bool(found)

    memory, pci, mode = memory_info(nvml, handle), ask("nvmlDeviceGetPciInfo"), ask("nvmlDeviceGetComputeMode")
    address = pci_address(text(pci.busId)) if pci is not None else ""
    return DeviceSettings(
        uuid=device.uuid,
        part_of=device.whole,
        model=text(ask("nvmlDeviceGetName") or ""),
        driver=text(told(nvml, lambda: nvml.nvmlSystemGetDriverVersion()) or ""),
        address=address,
        numa_node=node_of_pci(address),
        memory_mib=None if memory is None else memory.total / _MIB,
        power_limit_w=watts("nvmlDeviceGetEnforcedPowerLimit"),
        power_limit_default_w=watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        clock_sm_max_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        clock_memory_max_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        clock_sm_application_mhz=ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_SM),
        clock_memory_application_mhz=ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_MEM),
        persistence=on(ask("nvmlDeviceGetPersistenceMode")),
        ecc=on(ask("nvmlDeviceGetEccMode")),
        mig=on(ask("nvmlDeviceGetMigMode")),
        compute_mode=_COMPUTE_MODES[mode] if mode is not None and mode < len(_COMPUTE_MODES) else None,
        pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
    )


def memory_info(nvml: Any, handle: Any) -> Any:
    """Memory in bytes (`total`, `used`); the second version of the call does not count what the driver keeps for itself."""
    version = {"version": nvml.nvmlMemory_v2} if hasattr(nvml, "nvmlMemory_v2") else {}
    return told(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, **version))


def processes(nvml: Any, handle: Any) -> tuple[DeviceProcess, ...] | None:
    """Processes that compute on a device; None: it does not tell. In a container, pids may be the host's."""
    found = told(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if found is None:
        return None
    return tuple(
        DeviceProcess(each.pid, _name(each.pid), None if each.usedGpuMemory is None else each.usedGpuMemory / _MIB)
        for each in found
    )


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def pci_address(bus_id: str) -> str:
    """NVML's address (00000000:17:00.0) as the kernel writes it (0000:17:00.0)."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""
