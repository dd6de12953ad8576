"""Parsers of what hosts print about their devices. Pure functions.

Links: lanes and generation are those of nvidia-smi or sysfs. The current generation of an idle GPU is not reliable, because the
GPU trains its link down to save power and up again under load. Therefore the current generation of a GPU counts only in
performance state P0. Otherwise the maximum is reported, and only the lanes can show a degraded link. The maximum is what both
the
device and the port above it support. Source of the fields: nvidia-smi --help-query-gpu; Linux
Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from campaign.common.errors import FabricError
from campaign.fabrics.host_agents.protocol import HostDevice
from campaign.spec.hardware import Link

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64.0": 6}
_NO_GPU = ("no devices were found", "couldn't communicate with the nvidia driver")
_EVIDENT_STATE = "P0"
_CUT_OFF = "its output is incomplete; check the host, and try again"


def pci_address(text: str) -> str:
    """Convert the PCI address of any tool to the form of sysfs, such as `0000:3b:00.0`.

    Raises FabricError if the text is not a PCI address.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise FabricError(f"{text!r} is not a PCI address such as 0000:3b:00.0")
    domain, bus, device, function = found.groups()
    return f"{(domain or '0')[-4:]:0>4}:{bus}:{device}.{function}".lower()


def sections(text: str, last: str = "end") -> dict[str, list[str]]:
    """Split the output of a script into lines by section.

    A section begins with a line `== name`. Words after the name are the first line of the section. Raises FabricError if the
    section
    `last` is missing, so that incomplete output is not taken for few devices.
    """
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            name, _, words = line[3:].partition(" ")
            lines = found.setdefault(name, [])
            if words:
                lines.append(words)
        elif line.strip():
            lines.append(line)
    if last not in found:
        raise FabricError(_CUT_OFF)
    return found


def gpus(lines: Sequence[str], code: int = 0) -> tuple[HostDevice, ...]:
    """Parse the GPUs in the output of nvidia-smi, given its exit code.

    The query is `--query-gpu=uuid,name,pci.bus_id,pcie.link.{width,gen}.{current,max},pstate`. Messages that there is no device
    or no
    driver mean no GPUs. Raises FabricError if nvidia-smi failed otherwise and listed none.
    """
    found = tuple(gpu for gpu in map(_gpu, lines) if gpu is not None)
    if not found and code != 0 and not _no_gpu(lines):
        raise _ended("nvidia-smi", lines, code)
    return found


def _no_gpu(lines: Sequence[str]) -> bool:
    """Return True if nvidia-smi reports that there is no GPU or no driver."""
    words = " ".join(" ".join(lines).lower().split())
    return any(known in words for known in _NO_GPU)


def _ended(command: str, lines: Sequence[str], code: int) -> FabricError:
    """Build the error for a command that failed."""
    words = " ".join(" ".join(lines).split())[:300]
    return FabricError(f"{command} ended with {code}: {words or '(no output)'}")


def _gpu(line: str) -> HostDevice | None:
    """Parse one line of nvidia-smi. Returns None if the line does not describe a GPU."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < 8:
        return None
    uuid, *name, bus, width, width_max, gen, gen_max, state = fields
    try:
        address = pci_address(bus)
    except FabricError:
        return None
    values = [_number(width), _number(gen), _number(width_max), _number(gen_max)]
    link = _link(*values, evident=state == _EVIDENT_STATE)
    return HostDevice(_told(uuid), address, "gpu", _told(", ".join(name)), link)


def _told(text: str) -> str:
    """Return a value of a tool, or an empty text for a placeholder of an unknown value.

    A driver that has not initialised a GPU writes its UUID with `?`.
    """
    return "" if text.strip("[]").lower() in ("n/a", "err!", "not supported", "unknown error") or "?" in text else text


def _number(text: str) -> int:
    """Convert digits to a number. Any other text gives 0."""
    return int(text) if text.isdigit() else 0


def generation(speed: str) -> int:
    """Return the PCIe generation of a link speed in sysfs, such as 4 for `16.0 GT/s PCIe`, or 0 if unknown."""
    return _GENERATIONS.get(speed.split(" ", 1)[0], 0)


def _link(width: int, gen: int, width_max: int, gen_max: int, *, evident: bool = True) -> Link | None:
    """Build a PCIe link from current and maximum lanes and generation. Returns None if there is no link."""
    if not 0 < width <= 32 or not width_max or not gen_max:  # sysfs shows 0, 63 or 255 lanes if there is no link
        return None
    return Link(width, gen if evident and gen else gen_max, width_max, gen_max)


def sysfs_link(fields: Sequence[str], *, evident: bool = True) -> Link | None:
    """Parse the link of a PCI function from its sysfs fields.

    Args:
        fields: current and maximum width, current and maximum speed, then maximum width and speed of the port above.
        current_is_reliable: False to report the maximum generation instead of the current one.
    """
    width, width_max, speed, speed_max, port_width, port_speed = (*fields, *[""] * 6)[:6]
    widths = [w for w in (_number(width_max), _number(port_width)) if 0 < w <= 32]
    gens = [g for g in (generation(speed_max), generation(port_speed)) if g]
    return _link(_number(width), generation(speed), min(widths, default=0), min(gens, default=0), evident=evident)


def devices(text: str) -> tuple[HostDevice, ...]:
    """Parse the output of `look.sh`.

    A GPU on the bus that nvidia-smi does not list is not ready. If another driver than NVIDIA's has it (it may belong to a
    virtual
    machine), it is identified by its address. Raises FabricError if the output is incomplete, or if nvidia-smi failed.
    """
    parts = sections(text)
    code = _number((parts.get("nvidia-smi-ended") or ["0"])[0])
    listed = {gpu.address: gpu for gpu in gpus(parts.get("nvidia-smi", []), code)}
    known = driver_information(parts.get("driver", []))
    found: list[HostDevice] = []
    for line in parts.get("pci", []):
        kind, identity, model, address, driver, *link = line.split("\t")
        if kind != "gpu":
            found.append(HostDevice(identity, address, kind, model, sysfs_link(link)))
            continue
        facts, seen = known.get(address, {}), listed.get(address)
        seen = seen or HostDevice("", address, ready=False)
        foreign = address if driver not in ("", "nvidia") else ""
        identity = seen.identity or _told(facts.get("GPU UUID", "")) or foreign
        model, lanes = seen.model or facts.get("Model", ""), seen.link or sysfs_link(link, evident=False)
        found.append(HostDevice(identity, address, "gpu", model, lanes, seen.ready))
    there = {device.address for device in found}
    return (*found, *(gpu for gpu in listed.values() if gpu.address not in there))


def driver_information(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Parse the lines of /proc/driver/nvidia/gpus/*/information, as `look.sh` prints them.

    Returns the values by PCI address and name.
    """
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        address, name, value = (*line.split("\t", 2), "", "")[:3]
        found.setdefault(pci_address(address), {})[name] = value.strip()
    return found


@dataclass(frozen=True, slots=True)
class Usage:
    """Present users of one device on its host, in words.

    Attributes:
        present: the device is on the bus.
        driver: driver of the device, or "" if it has none.
        gpus: addresses of all GPUs of NVIDIA's driver.
        modules: loaded kernel modules above the driver.
        nodes: device files.
        draining: the GPU is being drained.
        persistent: persistence mode is on.
        computing: processes that compute on the GPU.
        files: processes that have a device file open.
        claimed: users that must never lose the device: file systems, swap and volumes of a drive, bond or default route of a
            card.
        addresses: addresses of a card.
        removing: running attempts to remove the device from the bus.
    """

    present: bool = False
    driver: str = ""
    gpus: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    draining: bool = False
    persistent: bool = False
    computing: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()


def usage(text: str) -> Usage:
    """Parse the output of `users.sh`.

    Raises FabricError if the output is incomplete, or if nvidia-smi failed.
    """
    parts = sections(text)
    routes = [line.split() for line in parts.get("routes", [])]
    default = [f"default route through {f[0]}" for f in routes if len(f) > 7 and f[1] == f[7] == "0" * 8]
    default += [
        f"default route through {f[-1]}" for f in map(str.split, parts.get("routes6", [])) if f[:2] == ["0" * 32, "00"]
    ]
    mounts = [f"mounted on {line.strip()}" for line in parts.get("mounts", [])]
    return Usage(
        present=parts.get("present") == ["yes"],
        driver="".join(parts.get("driver", [])),
        gpus=tuple(pci_address(line) for line in parts.get("gpus", [])),
        modules=tuple(parts.get("modules", [])),
        nodes=tuple(parts.get("nodes", [])),
        draining=is_draining(parts.get("drain", [])),
        persistent=any(line.strip() == "Enabled" for line in parts.get("persistence", [])),
        computing=computing(parts.get("apps", []), _number((parts.get("apps-ended") or ["0"])[0])),
        files=tuple(map(_process, parts.get("files", []))),
        claimed=tuple(dict.fromkeys([*mounts, *parts.get("claims", []), *default])),
        addresses=_addresses(parts),
        removing=tuple(f"pid {line} removing it" for line in parts.get("writers", [])),
    )


def is_draining(lines: Iterable[str]) -> bool:
    """Return True if `nvidia-smi drain -p BDF -q` reports that the GPU is draining.

    The line is `The current drain state of GPU 00000000:3B:00.0 is: draining.` Any other answer, such as that draining is not
    supported, counts as not draining: the drain is then requested, and its failure shows the reason.
    """
    return bool(re.search(r"\bis:? +draining\b", " ".join(lines).lower()))


def computing(lines: Sequence[str], code: int = 0) -> tuple[str, ...]:
    """Parse the processes that compute on a GPU, from lines `pid, process_name`.

    A GPU that is not found has no load. Raises FabricError if nvidia-smi failed otherwise.
    """
    if _no_gpu(lines):
        return ()
    if code != 0:
        raise _ended("nvidia-smi --query-compute-apps", lines, code)
    found = [line.partition(",") for line in lines]
    return tuple(f"pid {pid.strip()} {name.strip()} computing" for pid, comma, name in found if comma)


def _process(line: str) -> str:
    """Describe a process from a line with its pid, user and command."""
    pid, user, command = (*line.split("\t", 2), "", "")[:3]
    return " ".join(f"pid {pid} {f'({user})' if user else ''} {command}".split())


def _addresses(parts: dict[str, list[str]]) -> tuple[str, ...]:
    """Describe the addresses of a card that other machines may use.

    Addresses of link scope are left out, because each active card has one.
    """
    found: list[str] = []
    for line in parts.get("addresses", []):
        fields = line.split()
        if "inet" in fields:
            found.append(f"{fields[1]} has address {fields[fields.index('inet') + 1]}")
        elif len(fields) == 6 and fields[3] != "20":
            found.append(f"{fields[5]} has address {':'.join(re.findall('....', fields[0]))}")
    routes = [line.split() for line in parts.get("routes", [])]
    if not any(" inet " in line for line in parts.get("addresses", [])):
        found += [f"{fields[0]} has a route" for fields in routes if fields]
    return tuple(dict.fromkeys(found))
