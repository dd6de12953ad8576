"""Parsers for the output of hosts about their devices. Pure functions.

Links: lanes and generation are those of nvidia-smi or sysfs. The current generation of an idle GPU is not reliable, because
the GPU trains its link down to save power and up again under load. Therefore the current generation of a GPU counts only in
performance state P0. Otherwise the maximum is reported, and only the lanes can show a degraded link. The maximum is what both
the device and the port above it support. Source of the fields: nvidia-smi --help-query-gpu; Linux
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
_GENERATION_BY_SPEED = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64.0": 6}
_NO_GPU_MESSAGES = ("no devices were found", "couldn't communicate with the nvidia driver")
_FULL_PERFORMANCE_STATE = "P0"
_INCOMPLETE_OUTPUT = "the output is incomplete; check the host and try again"


def normalize_pci_address(text: str) -> str:
    """Convert the PCI address of any tool to the form of sysfs, such as `0000:3b:00.0`.

    Raises FabricError if the text is not a PCI address.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise FabricError(f"{text!r} is not a PCI address such as 0000:3b:00.0")
    domain, bus, device, function = match.groups()
    return f"{(domain or '0')[-4:]:0>4}:{bus}:{device}.{function}".lower()


def parse_sections(text: str, last: str = "end") -> dict[str, list[str]]:
    """Split the output of a script into lines by section.

    A section begins with a line `== name`. Words after the name are the first line of the section. Raises FabricError if the
    section `last` is missing, so that incomplete output is not taken for a short list of devices.
    """
    lines_by_section: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("== "):
            name, _, inline_text = line[3:].partition(" ")
            lines = lines_by_section.setdefault(name, [])
            if inline_text:
                lines.append(inline_text)
        elif line.strip():
            lines.append(line)
    if last not in lines_by_section:
        raise FabricError(_INCOMPLETE_OUTPUT)
    return lines_by_section


def parse_gpus(lines: Sequence[str], code: int = 0) -> tuple[HostDevice, ...]:
    """Parse the GPUs in the output of nvidia-smi, given its exit code.

    The query is `--query-gpu=uuid,name,pci.bus_id,pcie.link.{width,gen}.{current,max},pstate`. If nvidia-smi reports that there
    is no device or no driver, the result is empty. Raises FabricError if it failed for another reason and listed no GPU.
    """
    devices = tuple(gpu for gpu in map(_parse_gpu, lines) if gpu is not None)
    if not devices and code != 0 and not _reports_no_gpu(lines):
        raise _build_command_error("nvidia-smi", lines, code)
    return devices


def _reports_no_gpu(lines: Sequence[str]) -> bool:
    """Return True if nvidia-smi reports that there is no GPU or no driver."""
    output_text = " ".join(" ".join(lines).lower().split())
    return any(message in output_text for message in _NO_GPU_MESSAGES)


def _build_command_error(command: str, lines: Sequence[str], code: int) -> FabricError:
    """Build the error for a command that failed."""
    output_text = " ".join(" ".join(lines).split())[:300]
    return FabricError(f"{command} ended with exit code {code}: {output_text or '(no output)'}")


def _parse_gpu(line: str) -> HostDevice | None:
    """Parse one line of nvidia-smi. Returns None if the line does not describe a GPU."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < 8:
        return None
    uuid, *name, bus, width, width_max, gen, gen_max, state = fields
    try:
        address = normalize_pci_address(bus)
    except FabricError:
        return None
    values = [_parse_count(width), _parse_count(gen), _parse_count(width_max), _parse_count(gen_max)]
    link = _build_link(*values, current_is_reliable=state == _FULL_PERFORMANCE_STATE)
    return HostDevice(_drop_placeholder(uuid), address, "gpu", _drop_placeholder(", ".join(name)), link)


def _drop_placeholder(text: str) -> str:
    """Return a value that a tool printed, or an empty string for a placeholder of an unknown value.

    A driver that has not initialised a GPU prints its UUID with `?`.
    """
    return "" if text.strip("[]").lower() in ("n/a", "err!", "not supported", "unknown error") or "?" in text else text


def _parse_count(text: str) -> int:
    """Convert digits to a number, or return 0 for any other text."""
    return int(text) if text.isdigit() else 0


def parse_generation(speed: str) -> int:
    """Return the PCIe generation of a link speed in sysfs, such as 4 for `16.0 GT/s PCIe`, or 0 if unknown."""
    return _GENERATION_BY_SPEED.get(speed.split(" ", 1)[0], 0)


def _build_link(width: int, gen: int, width_max: int, gen_max: int, *, current_is_reliable: bool = True) -> Link | None:
    """Build a PCIe link from current and maximum lanes and generation. Returns None if there is no link."""
    if not 0 < width <= 32 or not width_max or not gen_max:  # sysfs shows 0, 63 or 255 lanes without a link.
        return None
    return Link(width, gen if current_is_reliable and gen else gen_max, width_max, gen_max)


def parse_sysfs_link(fields: Sequence[str], *, current_is_reliable: bool = True) -> Link | None:
    """Parse the link of a PCI function from its sysfs fields.

    Args:
        fields: current and maximum width, current and maximum speed, then maximum width and speed of the port above.
        current_is_reliable: False to report the maximum generation instead of the current one.
    """
    width, width_max, speed, speed_max, port_width, port_speed = (*fields, *[""] * 6)[:6]
    widths = [lane_count for lane_count in (_parse_count(width_max), _parse_count(port_width)) if 0 < lane_count <= 32]
    gens = [
        pcie_generation
        for pcie_generation in (parse_generation(speed_max), parse_generation(port_speed))
        if pcie_generation
    ]
    return _build_link(
        _parse_count(width),
        parse_generation(speed),
        min(widths, default=0),
        min(gens, default=0),
        current_is_reliable=current_is_reliable,
    )


def parse_devices(text: str) -> tuple[HostDevice, ...]:
    """Parse the output of `look.sh`.

    A GPU on the bus that nvidia-smi does not list is not ready. If another driver than NVIDIA's has it (it may belong to a
    virtual machine), it is identified by its address. Raises FabricError if the output is incomplete, or if nvidia-smi
    failed.
    """
    parts = parse_sections(text)
    code = _parse_count((parts.get("nvidia-smi-ended") or ["0"])[0])
    gpus_by_address = {gpu.address: gpu for gpu in parse_gpus(parts.get("nvidia-smi", []), code)}
    driver_facts = parse_driver_information(parts.get("driver", []))
    host_devices: list[HostDevice] = []
    for line in parts.get("pci", []):
        kind, identity, model, address, driver, *link = line.split("\t")
        if kind != "gpu":
            host_devices.append(HostDevice(identity, address, kind, model, parse_sysfs_link(link)))
            continue
        facts, listed_gpu = driver_facts.get(address, {}), gpus_by_address.get(address)
        listed_gpu = listed_gpu or HostDevice("", address, ready=False)
        fallback_identity = address if driver not in ("", "nvidia") else ""
        identity = listed_gpu.identity or _drop_placeholder(facts.get("GPU UUID", "")) or fallback_identity
        model, lanes = (
            listed_gpu.model or facts.get("Model", ""),
            listed_gpu.link or parse_sysfs_link(link, current_is_reliable=False),
        )
        host_devices.append(HostDevice(identity, address, "gpu", model, lanes, listed_gpu.ready))
    addresses = {device.address for device in host_devices}
    return (*host_devices, *(gpu for gpu in gpus_by_address.values() if gpu.address not in addresses))


def parse_driver_information(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Parse the lines of /proc/driver/nvidia/gpus/*/information, as `look.sh` prints them.

    Returns the values by PCI address and name.
    """
    facts_by_address: dict[str, dict[str, str]] = {}
    for line in lines:
        address, name, value = (*line.split("\t", 2), "", "")[:3]
        facts_by_address.setdefault(normalize_pci_address(address), {})[name] = value.strip()
    return facts_by_address


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Current users of one device on its host, as descriptions.

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


def parse_usage(text: str) -> DeviceUsage:
    """Parse the output of `users.sh`.

    Raises FabricError if the output is incomplete, or if nvidia-smi failed.
    """
    parts = parse_sections(text)
    routes = [line.split() for line in parts.get("routes", [])]
    default_routes = [f"default route through {f[0]}" for f in routes if len(f) > 7 and f[1] == f[7] == "0" * 8]
    default_routes += [
        f"default route through {f[-1]}" for f in map(str.split, parts.get("routes6", [])) if f[:2] == ["0" * 32, "00"]
    ]
    mounts = [f"mounted on {line.strip()}" for line in parts.get("mounts", [])]
    return DeviceUsage(
        present=parts.get("present") == ["yes"],
        driver="".join(parts.get("driver", [])),
        gpus=tuple(normalize_pci_address(line) for line in parts.get("gpus", [])),
        modules=tuple(parts.get("modules", [])),
        nodes=tuple(parts.get("nodes", [])),
        draining=is_draining(parts.get("drain", [])),
        persistent=any(line.strip() == "Enabled" for line in parts.get("persistence", [])),
        computing=parse_computing_processes(parts.get("apps", []), _parse_count((parts.get("apps-ended") or ["0"])[0])),
        files=tuple(map(_describe_process, parts.get("files", []))),
        claimed=tuple(dict.fromkeys([*mounts, *parts.get("claims", []), *default_routes])),
        addresses=_describe_addresses(parts),
        removing=tuple(f"pid {line} (removal in progress)" for line in parts.get("writers", [])),
    )


def is_draining(lines: Iterable[str]) -> bool:
    """Return True if `nvidia-smi drain -p BDF -q` reports that the GPU is draining.

    The line is `The current drain state of GPU 00000000:3B:00.0 is: draining.` Any other answer, such as that draining is not
    supported, counts as not draining: the drain is then requested, and its failure shows the reason.
    """
    return bool(re.search(r"\bis:? +draining\b", " ".join(lines).lower()))


def parse_computing_processes(lines: Sequence[str], code: int = 0) -> tuple[str, ...]:
    """Parse the processes that compute on a GPU, from lines `pid, process_name`.

    A GPU that nvidia-smi does not find counts as idle. Raises FabricError if nvidia-smi failed for another reason.
    """
    if _reports_no_gpu(lines):
        return ()
    if code != 0:
        raise _build_command_error("nvidia-smi --query-compute-apps", lines, code)
    columns = [line.partition(",") for line in lines]
    return tuple(f"pid {pid.strip()} {name.strip()} (computing)" for pid, comma, name in columns if comma)


def _describe_process(line: str) -> str:
    """Describe a process from a line with its pid, user and command."""
    pid, user, command = (*line.split("\t", 2), "", "")[:3]
    return " ".join(f"pid {pid} {f'({user})' if user else ''} {command}".split())


def _describe_addresses(parts: dict[str, list[str]]) -> tuple[str, ...]:
    """Describe the addresses of a card that other machines may use.

    Addresses of link scope are left out, because each active card has one.
    """
    descriptions: list[str] = []
    for line in parts.get("addresses", []):
        fields = line.split()
        if "inet" in fields:
            descriptions.append(f"{fields[1]} has address {fields[fields.index('inet') + 1]}")
        elif len(fields) == 6 and fields[3] != "20":
            descriptions.append(f"{fields[5]} has address {':'.join(re.findall('....', fields[0]))}")
    routes = [line.split() for line in parts.get("routes", [])]
    if not any(" inet " in line for line in parts.get("addresses", [])):
        descriptions += [f"{fields[0]} has a route" for fields in routes if fields]
    return tuple(dict.fromkeys(descriptions))
