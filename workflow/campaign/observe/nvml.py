"""Devices of this host and their counters through NVML, the library of NVIDIA's driver (package nvidia-ml-py).

Unverified on hardware: written for the NVML API Reference Guide and nvidia-ml-py 13, and tested with a substitute. A divided device
(MIG) is followed by its parts, which have their own UUIDs and only some of its counters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_ALL_LINKS_SCOPE = 0xFFFFFFFF
_MAX_NVLINK_BYTES_PER_S = 1e12
"""Upper bound of the combined rate of all NVLinks of a device in one direction."""
_NVIDIA_DRIVER_PATHS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")
# Name in the union and number of bits by type of a field's value. A C long has 64 bits on Linux.
_VALUE_TYPES = {
    **{"DOUBLE": ("dVal", 64), "UNSIGNED_INT": ("uiVal", 32), "UNSIGNED_LONG": ("ulVal", 64)},
    **{"UNSIGNED_LONG_LONG": ("ullVal", 64), "SIGNED_LONG_LONG": ("sllVal", 64), "SIGNED_INT": ("siVal", 32)},
    **{"UNSIGNED_SHORT": ("usVal", 16)},
}


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One NVIDIA device, or one part of a divided device (MIG).

    Attributes:
        uuid: UUID.
        handle: NVML's handle.
        parent_uuid: for a part, UUID of the whole device; empty for a whole device.
    """

    uuid: str
    handle: Any
    parent_uuid: str = ""


def load_nvml(drivers: Sequence[str] = _NVIDIA_DRIVER_PATHS) -> tuple[Any, str]:
    """Import NVML's Python package. Return the module, and the reason if it could not be imported.

    On a host without an NVIDIA driver, the module is None and the reason is empty.
    """
    # Importing the package takes longer than everything else that a sampler does at its start.
    if not any(Path(driver).exists() for driver in drivers):
        return None, ""
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return None, "the package nvidia-ml-py is not installed on the host"
    return pynvml, ""


def list_devices(nvml: Any) -> list[NvmlDevice]:
    """List the NVIDIA devices of this host in NVML's order (by PCI address). Each device is followed by its parts.

    Devices that do not respond are left out. Raises NVMLError if the driver does not respond.
    """
    nvml.nvmlInit()
    devices = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = call_or_none(nvml, lambda index=index: nvml.nvmlDeviceGetHandleByIndex(index))  # type: ignore[misc]
        uuid = handle and call_or_none(nvml, lambda handle=handle: decode_text(nvml.nvmlDeviceGetUUID(handle)))  # type: ignore[misc]
        if uuid:
            devices += [NvmlDevice(uuid, handle), *(NvmlDevice(*part, uuid) for part in _list_parts(nvml, handle))]
    return devices


def _list_parts(nvml: Any, handle: Any) -> list[tuple[str, Any]]:
    """List the parts (MIG) of a device, each as its UUID and NVML handle."""
    if not (call_or_none(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) or 0):
        return []
    parts = []
    for index in range(call_or_none(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        part = call_or_none(nvml, lambda index=index: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))  # type: ignore[misc]
        uuid = part and call_or_none(nvml, lambda part=part: decode_text(nvml.nvmlDeviceGetUUID(part)))  # type: ignore[misc]
        parts += [(uuid, part)] if uuid else []
    return parts


def call_or_none(nvml: Any, call: Callable[[], T]) -> T | None:
    """Return the result of an NVML call, or None if the device, the driver or the package does not support it."""
    try:
        return call()
    except (nvml.NVMLError, AttributeError, TypeError, ValueError):
        return None


def decode_text(value: Any) -> str:
    """Convert a text value returned by NVML, which may be bytes, to a string."""
    return value.decode() if isinstance(value, bytes) else str(value)


def read_fields(nvml: Any, handle: Any, numbers: Sequence[Any]) -> list[tuple[float, int] | None]:
    """Read several field values of a device in one NVML call.

    Args:
        nvml: NVML's Python package.
        handle: handle of the device.
        numbers: numbers of the fields, or pairs of a field number and a scope.

    Returns:
        For each field, its value and the number of bits of the value's type, or None if the device does not support the field.
    """
    values = nvml.nvmlDeviceGetFieldValues(handle, list(numbers))
    return [
        convert_field_value(nvml, nvml_value) if nvml_value.nvmlReturn == nvml.NVML_SUCCESS else None
        for nvml_value in values
    ]


def convert_field_value(nvml: Any, value: Any) -> tuple[float, int]:
    """Extract the number from NVML's field value, with the bit width of its type. Raises ValueError for an unknown type."""
    return convert_union_value(nvml, value.value, value.valueType)


def convert_union_value(nvml: Any, union: Any, value_type: int) -> tuple[float, int]:
    """Extract the number from NVML's value union, with the bit width of its type. Raises ValueError for an unknown type."""
    for kind, (name, bits) in _VALUE_TYPES.items():
        if value_type == getattr(nvml, f"NVML_VALUE_TYPE_{kind}", None):
            return getattr(union, name), bits
    raise ValueError(f"NVML value type {value_type} is unknown")


class UnwrappedCounter:
    """Counter that wraps around at 2^32 or 2^64. A wrap between two readings is corrected if the correction is unambiguous.

    The type of a value gives only the maximum width of the counter. Until a value needs more than 32 bits, the counter may have
    32. Two readings determine the increment only if the link cannot transfer 2^bits between them.

    Args:
        max_per_s: maximum possible increase of the counter per second.
    """

    def __init__(self, max_per_s: float) -> None:
        self._max_per_s = 1.2 * max_per_s  # A reading may be late by some milliseconds.
        self._last_reading: tuple[float, int] | None = None
        self._bits = 32

    def add_reading(self, now_s: float, value: int, bits: int) -> int | None:
        """Add a reading, and return the increment since the last one: 0 for the first reading, None if it is ambiguous.

        Args:
            now_s: time of the reading in seconds of a monotonic clock.
            value: value of the counter (see `read_fields`).
            bits: number of bits of the value's type.
        """
        self._bits = bits if value >= 2**32 else min(bits, self._bits)
        last_reading, self._last_reading = self._last_reading, (now_s, value)
        if last_reading is None:
            return 0
        increment, max_increment = (
            (value - last_reading[1]) % 2**self._bits,
            self._max_per_s * (now_s - last_reading[0]),
        )
        return increment if increment <= max_increment < 2**self._bits else None

    def max_read_interval_s(self) -> float:
        """Return the longest interval (seconds) between readings at which no wrap can be missed."""
        return float(0.7 * 2**self._bits / self._max_per_s)


class CounterSum:
    """Sum of several byte counters of one device, e.g. those of all its links. Unsupported fields are left out.

    Args:
        nvml: NVML's Python package.
        handle: handle of the device.
        numbers: field numbers of the counters.
        factor: bytes per unit of the counters.
        max_bytes_per_s: maximum possible rate of each counter, in bytes per second.
    """

    def __init__(self, nvml: Any, handle: Any, numbers: Sequence[Any], factor: int, max_bytes_per_s: float) -> None:
        self._nvml, self._handle, self._factor = nvml, handle, factor
        values = call_or_none(nvml, lambda: read_fields(nvml, handle, numbers)) or ()
        supported_fields = [number for number, value in zip(numbers, values, strict=False) if value is not None]
        self._counters = {number: UnwrappedCounter(max_bytes_per_s / factor) for number in supported_fields}
        self._total, self._gaps = 0, 0

    def __bool__(self) -> bool:
        return bool(self._counters)

    def read_total(self, now_s: float) -> int | None:
        """Read the counters. Return the total bytes since the first reading, or None if a counter is not reported now.

        After an interval with an ambiguous increment, the total restarts below all earlier values, so that no rate is computed
        over this gap. Otherwise a missed wrap would look like a low rate. Raises NVMLError if the device does not respond.

        Args:
            now_s: time in seconds of a monotonic clock.
        """
        values = read_fields(self._nvml, self._handle, list(self._counters))
        if None in values:
            return None
        pairs = zip(self._counters.values(), values, strict=True)
        increments = [
            counter.add_reading(now_s, int(value[0]), value[1]) for counter, value in pairs if value is not None
        ]
        if None in increments:
            self._gaps += 1
            self._total = -self._gaps
        else:
            self._total += sum(increment for increment in increments if increment is not None)
        return self._total * self._factor

    def max_read_interval_s(self) -> float:
        """Return the longest interval (seconds) between readings at which no counter can wrap unnoticed."""
        return min((counter.max_read_interval_s() for counter in self._counters.values()), default=float("inf"))


_PCIE_LANE_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 1e9, 4: 2e9, 5: 4e9, 6: 8e9}
"""Bytes per second of one PCIe lane in one direction, by generation, rounded up to the raw line rate."""


def find_max_pcie_bytes_per_s(nvml: Any, handle: Any) -> float:
    """Return the maximum possible rate of a device's PCIe link in one direction, in bytes per second.

    If the generation or width of the link is unknown, the fastest link is assumed.
    """
    generation = call_or_none(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    width = call_or_none(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    return _PCIE_LANE_PER_S.get(generation or 0, 8e9) * (width or 16)


def create_pcie_counters(nvml: Any, handle: Any) -> dict[str, CounterSum]:
    """Create the PCIe byte counters that a device supports, by quantity.

    Received and sent bytes are named from the device's point of view.
    """
    max_bytes_per_s = find_max_pcie_bytes_per_s(nvml, handle)
    counters_by_quantity = {
        f"pcie_{direction}_bytes": CounterSum(
            nvml, handle, [getattr(nvml, f"NVML_FI_DEV_PCIE_COUNT_{name}_BYTES")], 1, max_bytes_per_s
        )
        for direction, name in (("received", "RX"), ("sent", "TX"))
        if hasattr(nvml, f"NVML_FI_DEV_PCIE_COUNT_{name}_BYTES")
    }
    return {quantity: counters for quantity, counters in counters_by_quantity.items() if counters}


def create_nvlink_counters(nvml: Any, handle: Any) -> dict[str, CounterSum]:
    """Create counters of the bytes that a device transfers over all its NVLinks, by quantity.

    Older devices count data in KiB for all links together. Newer devices count all bytes of each link.
    """
    counters_by_quantity = {}
    for direction, old_direction, new_direction in (("received", "RX", "RCV"), ("sent", "TX", "XMIT")):
        number = getattr(nvml, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{old_direction}", None)
        counters = (
            CounterSum(nvml, handle, [(number, _ALL_LINKS_SCOPE)], 1024, _MAX_NVLINK_BYTES_PER_S) if number else None
        )
        number = getattr(nvml, f"NVML_FI_DEV_NVLINK_COUNT_{new_direction}_BYTES", None)
        if not counters and number:
            links = [(number, link) for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))]
            counters = CounterSum(nvml, handle, links, 1, _MAX_NVLINK_BYTES_PER_S)
        if counters:
            counters_by_quantity[f"nvlink_{direction}_bytes"] = counters
    return counters_by_quantity
