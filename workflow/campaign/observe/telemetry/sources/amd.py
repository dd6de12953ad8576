"""AMD devices through AMD SMI, if its package (amdsmi) is installed with the driver. Unverified on hardware.

Source: AMD SMI Python API (ROCm documentation). The package returns the text `N/A` for values that a device does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.observe.telemetry.sources import DevicesUnreadableError, Probe, SamplerOptions, SensorReading

_MIB = 2**20
_DRIVER = "/dev/kfd"
AmdCall = Callable[[Any, Any], dict[str, Any]]


def _read_activity(smi: Any, handle: Any) -> dict[str, Any]:
    """Read the utilisation of an AMD device and of its memory (percent)."""
    activity = smi.amdsmi_get_gpu_activity(handle)
    return {"utilisation_pct": activity["gfx_activity"], "memory_access_pct": activity["umc_activity"]}


def _read_power(smi: Any, handle: Any) -> dict[str, Any]:
    """Read the power (W) of an AMD device: its current power if available, otherwise its mean power."""
    power = smi.amdsmi_get_power_info(handle)
    current_w, mean_w = power.get("current_socket_power"), power.get("average_socket_power")
    return {"power_w": current_w if isinstance(current_w, int | float) and current_w else mean_w}


def _read_energy(smi: Any, handle: Any) -> dict[str, Any]:
    """Read the energy counter of an AMD device (J)."""
    energy = smi.amdsmi_get_energy_count(handle)
    return {
        "energy_j": energy["energy_accumulator"] * energy["counter_resolution"] / 1e6
    }  # The resolution is in microjoules.


def _read_ecc_counts(smi: Any, handle: Any) -> dict[str, Any]:
    """Read how many memory errors of an AMD device were corrected and uncorrected."""
    counts = smi.amdsmi_get_gpu_total_ecc_count(handle)
    return {"ecc_corrected_count": counts["correctable_count"], "ecc_uncorrected_count": counts["uncorrectable_count"]}


def _list_calls(smi: Any) -> tuple[list[AmdCall], list[AmdCall]]:
    """List the calls that read a device: first those for fast-changing values, then those for all other values."""
    place, metric = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
    fast: list[AmdCall] = [
        _read_activity,
        lambda smi, handle: {
            "memory_used_mib": smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM) / _MIB
        },
        _read_power,
        _read_energy,
    ]
    clocks = {"clock_sm_mhz": smi.AmdSmiClkType.GFX, "clock_memory_mhz": smi.AmdSmiClkType.MEM}
    slow: list[AmdCall] = [
        lambda smi, handle: {"temperature_c": smi.amdsmi_get_temp_metric(handle, place, metric)},
        lambda smi, handle: {name: smi.amdsmi_get_clock_info(handle, clock)["clk"] for name, clock in clocks.items()},
        _read_ecc_counts,
    ]
    return fast, slow


@dataclass
class _AmdDevice:
    """Probe of one AMD device through several calls. A call that has failed once is not repeated."""

    smi: Any
    handle: Any
    part: str
    calls: list[AmdCall]

    def read(self) -> Iterator[SensorReading]:
        for call in tuple(self.calls):
            try:
                values = call(self.smi, self.handle)
            except (self.smi.AmdSmiException, AttributeError, KeyError, TypeError):
                self.calls.remove(call)
                continue
            yield from [
                (self.part, name, float(value)) for name, value in values.items() if isinstance(value, int | float)
            ]


def create_probes(smi: Any) -> list[Probe]:
    """Create one probe per AMD device, using a module with AMD SMI's functions."""
    try:
        smi.amdsmi_init()
        handles = {
            f"gpu:{smi.amdsmi_get_gpu_device_uuid(processor)}": processor
            for processor in smi.amdsmi_get_processor_handles()
        }
    except smi.AmdSmiException:
        return []
    return [
        _AmdDevice(smi, handle, part, list(calls)) for calls in _list_calls(smi) for part, handle in handles.items()
    ]


def open_probes(options: SamplerOptions) -> Sequence[Probe]:
    """Open the probes of this host's AMD devices. Raises DevicesUnreadableError if the package cannot be loaded."""
    if not Path(_DRIVER).exists():
        return []
    try:
        import amdsmi  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except Exception as error:
        # The import loads the driver's library. Without the library, it raises exceptions of various types.
        raise DevicesUnreadableError(f"the package amdsmi cannot be loaded on the host: {error}") from error
    return create_probes(amdsmi)
