"""Intel devices, through Level Zero's Sysman where its Python package (pyzes) and the driver are installed. Unverified on hardware.

A part is a card, named by its UUID; its tiles are counted together. Some counters need privileges, and are absent without them.
Source: Level Zero specification, Sysman; package pyzes 0.1.
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
    """Error of a Sysman call that did not succeed."""


@dataclass(frozen=True)
class _Sysman:
    """The calls of Sysman that give numbers, by handles of one device. Each raises _Refused where the device does not have it."""

    zes: Any

    def call(self, name: str, *arguments: Any) -> None:
        if getattr(self.zes, name)(*arguments) != self.zes.ZE_RESULT_SUCCESS:
            raise _SysmanError(name)

    def listed(self, name: str, handle_type: str, *of: Any) -> list[Any]:
        """Return all handles of a kind."""
        count = c_uint32(0)
        self.call(name, *of, byref(count), None)
        handles = (getattr(self.zes, handle_type) * count.value)()
        self.call(name, *of, byref(count), handles)
        return list(handles)

    def filled(self, name: str, handle: Any, structure: str, kind: str = "") -> Any:
        """Return a structure that a call fills in."""
        found = getattr(self.zes, structure)()
        if kind:
            found.stype = getattr(self.zes, kind)
        self.call(name, handle, byref(found))
        return found

    def uuid(self, device: Any) -> str:
        found = self.filled(
            "zesDeviceGetProperties", device, "zes_device_properties_t", "ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES"
        )
        text = bytes(found.core.uuid.id).hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def memory_mib(self, device: Any) -> float:
        used = 0
        for module in self.listed("zesDeviceEnumMemoryModules", "zes_mem_handle_t", device):
            kind = self.filled(
                "zesMemoryGetProperties", module, "zes_mem_properties_t", "ZES_STRUCTURE_TYPE_MEM_PROPERTIES"
            )
            if kind.location == self.zes.ZES_MEM_LOC_DEVICE:
                state = self.filled("zesMemoryGetState", module, "zes_mem_state_t", "ZES_STRUCTURE_TYPE_MEM_STATE")
                used += state.size - state.free
        return used / _MIB

    def energy_j(self, device: Any) -> float:
        card = self.listed("zesDeviceEnumPowerDomains", "zes_pwr_handle_t", device)[0]
        return float(self.filled("zesPowerGetEnergyCounter", card, "zes_power_energy_counter_t").energy) / 1e6

    def clock_mhz(self, device: Any) -> float:
        domain = self.listed("zesDeviceEnumFrequencyDomains", "zes_freq_handle_t", device)[0]
        return float(
            self.filled("zesFrequencyGetState", domain, "zes_freq_state_t", "ZES_STRUCTURE_TYPE_FREQ_STATE").actual
        )

    def temperature_c(self, device: Any) -> float:
        sensor = self.listed("zesDeviceEnumTemperatureSensors", "zes_temp_handle_t", device)[0]
        found = c_double(0)
        self.call("zesTemperatureGetState", sensor, byref(found))
        return found.value

    def activity_us(self, device: Any) -> list[tuple[int, int]]:
        """Return busy time and clock (us) of all engines together, of the card or of each tile."""
        found = []
        for group in self.listed("zesDeviceEnumEngineGroups", "zes_engine_handle_t", device):
            kind = self.filled(
                "zesEngineGetProperties", group, "zes_engine_properties_t", "ZES_STRUCTURE_TYPE_ENGINE_PROPERTIES"
            )
            if kind.type == self.zes.ZES_ENGINE_GROUP_ALL:
                now = self.filled("zesEngineGetActivity", group, "zes_engine_stats_t")
                found.append((int(now.activeTime), int(now.timestamp)))
        return found


class _IntelDevice:
    """One card. Utilisation is over the time since the last reading, of its busiest tile."""

    def __init__(self, sysman: _Sysman, handle: Any, part: str) -> None:
        self._sysman, self._handle, self._part = sysman, handle, part
        self._before: list[tuple[int, int]] = []
        self._calls = {
            "memory_used_mib": sysman.memory_mib,
            "energy_j": sysman.energy_j,
            "clock_sm_mhz": sysman.clock_mhz,
            "temperature_c": sysman.temperature_c,
        }

    def read(self) -> Iterator[SensorReading]:
        for name, call in tuple(self._calls.items()):
            try:
                yield self._part, name, call(self._handle)
            except (_SysmanError, AttributeError, IndexError):
                del self._calls[name]  # it is not asked for again
        with suppress(_SysmanError, AttributeError):
            now, before = self._sysman.activity_us(self._handle), self._before
            self._before = now
            spans = [(a - b, t - s) for (a, t), (b, s) in zip(now, before, strict=False) if t > s]
            if spans:
                yield self._part, "utilisation_pct", max(100.0 * busy / span for busy, span in spans)


def probes(zes: Any) -> list[Probe]:
    """Create the probes of all cards through a module with Sysman's functions."""
    sysman = _Sysman(zes)
    try:
        sysman.call("zesInit", 0)
        drivers = sysman.listed("zesDriverGet", "zes_driver_handle_t")
        handles = [
            device for driver in drivers for device in sysman.listed("zesDeviceGet", "zes_device_handle_t", driver)
        ]
        return [_IntelDevice(sysman, handle, f"gpu:{sysman.uuid(handle)}") for handle in handles]
    except _SysmanError:
        return []


def open_probes(asked: SamplerOptions) -> Sequence[Probe]:
    if not _DRIVERS.exists():
        return []
    try:
        import pyzes  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except Exception:  # its import loads the driver's library, and fails where there is none
        return []
    return probes(pyzes)
