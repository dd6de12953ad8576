"""Intel devices through Level Zero's Sysman, if its Python package (pyzes) and the driver are installed.

Unverified on hardware. A part is a card, identified by its UUID. Its tiles are counted together. Some counters need privileges and
are absent without them. Source: Level Zero specification, Sysman; package pyzes 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import byref, c_double, c_uint32
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.observe.telemetry.sources import Probe, SamplerOptions, SensorReading

_MIB = 2**20
_DRIVERS = Path("/dev/dri")


class _SysmanError(Exception):
    """Error raised if a Sysman call does not succeed."""


@dataclass(frozen=True)
class _Sysman:
    """Wrapper of the Sysman calls that read a device. Each raises _SysmanError if the device does not support it."""

    zes: Any

    def call_checked(self, name: str, *arguments: Any) -> None:
        """Call a Sysman function by its name, and raise _SysmanError if it does not succeed."""
        if getattr(self.zes, name)(*arguments) != self.zes.ZE_RESULT_SUCCESS:
            raise _SysmanError(name)

    def list_handles(self, name: str, handle_type: str, *parents: Any) -> list[Any]:
        """Return all handles of one type that a Sysman enumeration function lists."""
        count = c_uint32(0)
        self.call_checked(name, *parents, byref(count), None)
        handles = (getattr(self.zes, handle_type) * count.value)()
        self.call_checked(name, *parents, byref(count), handles)
        return list(handles)

    def fill_structure(self, name: str, handle: Any, structure: str, kind: str = "") -> Any:
        """Create a structure, have a Sysman function fill it in, and return it."""
        result = getattr(self.zes, structure)()
        if kind:
            result.stype = getattr(self.zes, kind)
        self.call_checked(name, handle, byref(result))
        return result

    def read_uuid(self, device: Any) -> str:
        """Read the UUID of a device."""
        properties = self.fill_structure(
            "zesDeviceGetProperties", device, "zes_device_properties_t", "ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES"
        )
        text = bytes(properties.core.uuid.id).hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def read_memory_mib(self, device: Any) -> float:
        """Read the used memory of a device (MiB)."""
        used_bytes = 0
        for module in self.list_handles("zesDeviceEnumMemoryModules", "zes_mem_handle_t", device):
            kind = self.fill_structure(
                "zesMemoryGetProperties", module, "zes_mem_properties_t", "ZES_STRUCTURE_TYPE_MEM_PROPERTIES"
            )
            if kind.location == self.zes.ZES_MEM_LOC_DEVICE:
                state = self.fill_structure(
                    "zesMemoryGetState", module, "zes_mem_state_t", "ZES_STRUCTURE_TYPE_MEM_STATE"
                )
                used_bytes += state.size - state.free
        return used_bytes / _MIB

    def read_energy_j(self, device: Any) -> float:
        """Read the energy counter of a device (J)."""
        card = self.list_handles("zesDeviceEnumPowerDomains", "zes_pwr_handle_t", device)[0]
        return float(self.fill_structure("zesPowerGetEnergyCounter", card, "zes_power_energy_counter_t").energy) / 1e6

    def read_clock_mhz(self, device: Any) -> float:
        """Read the current clock of a device (MHz)."""
        domain = self.list_handles("zesDeviceEnumFrequencyDomains", "zes_freq_handle_t", device)[0]
        return float(
            self.fill_structure(
                "zesFrequencyGetState", domain, "zes_freq_state_t", "ZES_STRUCTURE_TYPE_FREQ_STATE"
            ).actual
        )

    def read_temperature_c(self, device: Any) -> float:
        """Read the temperature of a device (°C)."""
        sensor = self.list_handles("zesDeviceEnumTemperatureSensors", "zes_temp_handle_t", device)[0]
        temperature = c_double(0)
        self.call_checked("zesTemperatureGetState", sensor, byref(temperature))
        return temperature.value

    def read_activity_us(self, device: Any) -> list[tuple[int, int]]:
        """Read busy time and timestamp (us) of all engines together, as one pair for the card or one per tile."""
        activities = []
        for group in self.list_handles("zesDeviceEnumEngineGroups", "zes_engine_handle_t", device):
            kind = self.fill_structure(
                "zesEngineGetProperties", group, "zes_engine_properties_t", "ZES_STRUCTURE_TYPE_ENGINE_PROPERTIES"
            )
            if kind.type == self.zes.ZES_ENGINE_GROUP_ALL:
                stats = self.fill_structure("zesEngineGetActivity", group, "zes_engine_stats_t")
                activities.append((int(stats.activeTime), int(stats.timestamp)))
        return activities


class _IntelDevice:
    """Probe of one Intel card. Its utilisation is that of its busiest tile since the last reading."""

    def __init__(self, sysman: _Sysman, handle: Any, part: str) -> None:
        self._sysman, self._handle, self._part = sysman, handle, part
        self._last_activities: list[tuple[int, int]] = []
        self._calls = {
            "memory_used_mib": sysman.read_memory_mib,
            "energy_j": sysman.read_energy_j,
            "clock_sm_mhz": sysman.read_clock_mhz,
            "temperature_c": sysman.read_temperature_c,
        }

    def read(self) -> Iterator[SensorReading]:
        for name, call in tuple(self._calls.items()):
            try:
                yield self._part, name, call(self._handle)
            except (_SysmanError, AttributeError, IndexError):
                del self._calls[name]  # An unsupported call is not repeated.
        with suppress(_SysmanError, AttributeError):
            activities, last_activities = self._sysman.read_activity_us(self._handle), self._last_activities
            self._last_activities = activities
            spans = [(a - b, t - s) for (a, t), (b, s) in zip(activities, last_activities, strict=False) if t > s]
            if spans:
                yield self._part, "utilisation_pct", max(100.0 * busy / span for busy, span in spans)


def create_probes(zes: Any) -> list[Probe]:
    """Create one probe per Intel card, using a module with Sysman's functions."""
    sysman = _Sysman(zes)
    try:
        sysman.call_checked("zesInit", 0)
        drivers = sysman.list_handles("zesDriverGet", "zes_driver_handle_t")
        handles = [
            device
            for driver in drivers
            for device in sysman.list_handles("zesDeviceGet", "zes_device_handle_t", driver)
        ]
        return [_IntelDevice(sysman, handle, f"gpu:{sysman.read_uuid(handle)}") for handle in handles]
    except _SysmanError:
        return []


def open_probes(options: SamplerOptions) -> Sequence[Probe]:
    """Open the probes of this host's Intel devices. The result is empty if the driver or its package is not installed."""
    if not _DRIVERS.exists():
        return []
    try:
        import pyzes  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except Exception:  # The import loads the driver's library, and fails without it.
        return []
    return create_probes(pyzes)
