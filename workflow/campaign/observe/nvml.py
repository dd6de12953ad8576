"""NVML, the library of NVIDIA's driver, through the package nvidia-ml-py: the devices of this host by their UUIDs, their numbers.

Unverified on hardware: written against the NVML API Reference Guide and nvidia-ml-py 13, tested on a stand-in. A device that is
divided (MIG) is followed by its parts, which have UUIDs of their own and only some of its counters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_ALL_LINKS = 0xFFFFFFFF
_NVLINK_MOST_PER_S = 1e12  # of all links of a device in one direction, rounded up
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")
# Type of a field's value -> its name in the union, and how many bits it has (a C long of Linux has 64).
_VALUE_TYPES = {
    **{"DOUBLE": ("dVal", 64), "UNSIGNED_INT": ("uiVal", 32), "UNSIGNED_LONG": ("ulVal", 64)},
    **{"UNSIGNED_LONG_LONG": ("ullVal", 64), "SIGNED_LONG_LONG": ("sllVal", 64), "SIGNED_INT": ("siVal", 32)},
    **{"UNSIGNED_SHORT": ("usVal", 16)},
}


@dataclass(frozen=True, slots=True)
class Listed:
    """One device, or one part of a divided one. whole: UUID of the device that this is a part of; empty for a whole one."""

    uuid: str
    handle: Any
    whole: str = ""


def load(drivers: Sequence[str] = _DRIVERS) -> tuple[Any, str]:
    """The package, and why there is none; neither on a host without a driver of NVIDIA."""
    # Loading the package takes longer than everything else that a sampler does at its start.
    if not any(Path(driver).exists() for driver in drivers):
        return None, ""
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return None, "the package nvidia-ml-py is not installed there"
    return pynvml, ""


def listed(nvml: Any) -> list[Listed]:
    """Devices in NVML's order, which is that of PCI addresses, each followed by its parts. NVMLError: the driver does not answer.

    One that does not answer is left out.
    """
    nvml.nvmlInit()
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = told(nvml, lambda index=index: nvml.nvmlDeviceGetHandleByIndex(index))  # type: ignore[misc]
        uuid = handle and told(nvml, lambda handle=handle: text(nvml.nvmlDeviceGetUUID(handle)))  # type: ignore[misc]
        if uuid:
            found += [Listed(uuid, handle), *(Listed(*part, uuid) for part in _parts(nvml, handle))]
    return found


def _parts(nvml: Any, handle: Any) -> list[tuple[str, Any]]:
    if not (told(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) or 0):
        return []
    found = []
    for index in range(told(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        part = told(nvml, lambda index=index: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))  # type: ignore[misc]
        uuid = part and told(nvml, lambda part=part: text(nvml.nvmlDeviceGetUUID(part)))  # type: ignore[misc]
        found += [(uuid, part)] if uuid else []
    return found


def told(nvml: Any, call: Callable[[], T]) -> T | None:
    """What a call gives; None where the device, the driver or the package does not have it."""
    try:
        return call()
    except (nvml.NVMLError, AttributeError, TypeError, ValueError):
        return None


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def fields(nvml: Any, handle: Any, numbers: Sequence[Any]) -> list[tuple[float, int] | None]:
    """Values of fields in one call, each with the bits of its type; None where the device does not have it.

    numbers: of the fields, or pairs with a scope.
    """
    found = nvml.nvmlDeviceGetFieldValues(handle, list(numbers))
    return [field_value(nvml, each) if each.nvmlReturn == nvml.NVML_SUCCESS else None for each in found]


def field_value(nvml: Any, found: Any) -> tuple[float, int]:
    """The number in the union of a field value, and the bits of its type; ValueError: a type that is not known."""
    return union_value(nvml, found.value, found.valueType)


def union_value(nvml: Any, union: Any, value_type: int) -> tuple[float, int]:
    """As `field_value`, of the union of a sample."""
    for kind, (name, bits) in _VALUE_TYPES.items():
        if value_type == getattr(nvml, f"NVML_VALUE_TYPE_{kind}", None):
            return getattr(union, name), bits
    raise ValueError(f"a value of NVML's type {value_type}")


class Unwrapped:
    """What a counter that begins anew at 2^32 or 2^64 has counted between two looks, wherever that can be known.

    The type of a value is its widest, not its true width: until a value needs more than 32 bits, the counter may have 32. Two
    looks say how much passed only if the link cannot move 2^bits between them. most_per_s: what it cannot exceed.
    """

    def __init__(self, most_per_s: float) -> None:
        self._most_per_s = 1.2 * most_per_s  # a look may be late by some milliseconds
        self._before: tuple[float, int] | None = None
        self._bits = 32

    def passed(self, now_s: float, value: int, bits: int) -> int | None:
        """Since the look before, 0 at the first; None: cannot be known. now_s: of a monotonic clock; value, bits: see `fields`."""
        self._bits = bits if value >= 2**32 else min(bits, self._bits)
        before, self._before = self._before, (now_s, value)
        if before is None:
            return 0
        passed, most = (value - before[1]) % 2**self._bits, self._most_per_s * (now_s - before[0])
        return passed if passed <= most < 2**self._bits else None

    def needed_every_s(self) -> float:
        """How often it must be looked at."""
        return float(0.7 * 2**self._bits / self._most_per_s)


class Counters:
    """The sum of some byte counters of one device (those of its links), by their fields; units of `factor` bytes.

    most_per_s: bytes that none of them exceeds. Fields that the device does not have are left out.
    """

    def __init__(self, nvml: Any, handle: Any, numbers: Sequence[Any], factor: int, most_per_s: float) -> None:
        self._nvml, self._handle, self._factor = nvml, handle, factor
        found = told(nvml, lambda: fields(nvml, handle, numbers)) or ()
        there = [number for number, value in zip(numbers, found, strict=False) if value is not None]
        self._counters = {number: Unwrapped(most_per_s / factor) for number in there}
        self._total, self._gaps = 0, 0

    def __bool__(self) -> bool:
        return bool(self._counters)

    def total(self, now_s: float) -> int | None:
        """Bytes since the first look; None: not told this time. NVMLError: the device does not answer.

        After looks between which it cannot be known what passed, it begins anew below all before, so that no rate is computed over
        this gap: a wrap that nobody saw would pass for a low rate. now_s: of a monotonic clock.
        """
        values = fields(self._nvml, self._handle, list(self._counters))
        if None in values:
            return None
        pairs = zip(self._counters.values(), values, strict=True)
        passed = [counter.passed(now_s, int(value[0]), value[1]) for counter, value in pairs if value is not None]
        if None in passed:
            self._gaps += 1
            self._total = -self._gaps
        else:
            self._total += sum(each for each in passed if each is not None)
        return self._total * self._factor

    def needed_every_s(self) -> float:
        """How often it must be read for a count without gaps."""
        return min((each.needed_every_s() for each in self._counters.values()), default=float("inf"))


_PCIE_LANE_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 1e9, 4: 2e9, 5: 4e9, 6: 8e9}
"""Bytes per second of one lane and direction by generation, rounded up to what the line carries."""


def pcie_most_per_s(nvml: Any, handle: Any) -> float:
    """Bytes per second and direction that this device's PCIe link cannot exceed; of the fastest link where it is not known."""
    generation = told(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    width = told(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    return _PCIE_LANE_PER_S.get(generation or 0, 8e9) * (width or 16)


def pcie_counters(nvml: Any, handle: Any) -> dict[str, Counters]:
    """Byte counters of PCIe as the device sees it, received and sent, that it has."""
    most = pcie_most_per_s(nvml, handle)
    found = {
        f"pcie_{what}_bytes": Counters(nvml, handle, [getattr(nvml, f"NVML_FI_DEV_PCIE_COUNT_{name}_BYTES")], 1, most)
        for what, name in (("received", "RX"), ("sent", "TX"))
        if hasattr(nvml, f"NVML_FI_DEV_PCIE_COUNT_{name}_BYTES")
    }
    return {quantity: counters for quantity, counters in found.items() if counters}


def nvlink_counters(nvml: Any, handle: Any) -> dict[str, Counters]:
    """Byte counters of all NVLinks of a device together: KiB of data, or on newer devices what each link carries."""
    found = {}
    for what, old, new in (("received", "RX", "RCV"), ("sent", "TX", "XMIT")):
        number = getattr(nvml, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{old}", None)
        counters = Counters(nvml, handle, [(number, _ALL_LINKS)], 1024, _NVLINK_MOST_PER_S) if number else None
        number = getattr(nvml, f"NVML_FI_DEV_NVLINK_COUNT_{new}_BYTES", None)
        if not counters and number:
            links = [(number, link) for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))]
            counters = Counters(nvml, handle, links, 1, _NVLINK_MOST_PER_S)
        if counters:
            found[f"nvlink_{what}_bytes"] = counters
    return found
