"""Interactive emulation of a control plane.

The emulator is started, a system file and a campaign are written for it, and it serves until it is stopped.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from campaign.common.errors import ConfigError
from campaign.emulators.catalog import emulator_module, reached
from campaign.emulators.control_planes.hardware import Rack, rack
from campaign.emulators.control_planes.replay import served
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpFaultKind, WireFault
from campaign.fabrics import fabric_kind
from campaign.fabrics.control_plane.protocol import WithoutLogin
from campaign.spec.operation_times import OperationTimes, published_times
from campaign.spec.site_hardware import HostSpec

USER, PASSWORD = "campaign", "learn-2-compose"
_DEVICES = ("gpu:cpu-rank:14", "nvme:nvme-4tb:2")
_KINDS = ("gpu", "nvme", "nic", "memory")
_NOTE = "The control plane is emulated: composition times are not those of a real fabric."


@dataclass(frozen=True)
class ControlPlaneEmulation:
    """Request of a user for an emulated control plane.

    Attributes:
        kind: kind of fabric, or path of a recording.
        directory: directory of the files that are written.
        port: port to serve at; 0 for any free port.
        hosts: names of the hosts, such as `host[1-4]`.
        devices: devices as `KIND:MODEL:COUNT`.
        faults: faults as `KIND,METHOD,PATH[,TIMES]`.
        options: options of the emulator as `NAME=VALUE`.
    """

    kind: str
    directory: Path
    port: int
    hosts: str
    devices: Sequence[str] = ()
    faults: Sequence[str] = ()
    options: Sequence[str] = ()


def serve(wanted: ControlPlaneEmulation, say: Callable[[str], None], until: threading.Event | None = None) -> None:
    """Serve an emulated control plane until SIGINT or SIGTERM, or until `stop_event` is set.

    Raises ConfigError for an unknown kind, device, fault or option.
    """
    kind, directory = wanted.kind, wanted.directory
    if kind.endswith((".yaml", ".yml")):
        _serve_recording(wanted, say, until)
        return
    module = emulator_module(kind)
    parsed = [_device(text) for text in wanted.devices or getattr(module, "DEVICES", _DEVICES)]
    asked = getattr(module, "OPTIONS", {}) | dict(_option(text) for text in wanted.options)
    try:
        hardware = rack(HostSpec(name=wanted.hosts).names(), parsed)
    except ValueError as error:
        raise ConfigError(f"--host {wanted.hosts}: {error}") from error
    planned = [_fault(text) for text in wanted.faults]
    own = "factor" in getattr(module, "OPTIONS", {})
    times = None if own else _recorded(asked)
    if times is not None:
        random = Random()
        hardware.takes = lambda operation: times.sample(random, operation)
    try:
        emulator = module.open_emulator(hardware, **asked)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{kind}: {error}") from error
    with ControlPlaneServer(emulator, directory, port=wanted.port) as server:
        for fault in planned:
            server.faults.add(fault)
        factor = float(asked.get("factor", 1.0))
        system, campaign = write_files(wanted, server, hardware, factor, times.source if times else "")
        login = f", user {USER}, password {PASSWORD}" if server.ca_file and _asks(kind) else ""
        login += f", certificate {server.ca_file}" if server.ca_file else ""
        say(f"{kind} at {', '.join(server.urls.values())}{login}\n")
        say(f"  campaign fabric check {system}")
        say(f"  campaign compose 1x1-fabric {campaign} --dry-run")
        say(f"  snakemake --profile local --config campaign={campaign}\n\nCtrl-C stops it.")
        _await_end(until)
        say(f"stopped after {len(server.log)} requests, {len(server.changing())} of which were changes")


def _serve_recording(wanted: ControlPlaneEmulation, say: Callable[[str], None], until: threading.Event | None) -> None:
    """Serve a recording until SIGINT or SIGTERM, or until `stop_event` is set."""
    server, replay = served(Path(wanted.kind), wanted.port)
    with server:
        system = wanted.directory / "systems" / f"{wanted.directory.name}.yaml"
        system.parent.mkdir(parents=True, exist_ok=True)
        described = replay.system(wanted.directory.name, wanted.directory)
        system.write_text(yaml.safe_dump(described, sort_keys=False), encoding="utf-8")
        say(f"{wanted.kind} at {', '.join(server.urls.values())}\n\n  campaign fabric check {system} --look-only")
        say("\nCtrl-C stops it.")
        _await_end(until)


def _await_end(until: threading.Event | None) -> None:
    """Wait for `stop_event`, or for SIGINT or SIGTERM if there is no event."""
    end = until or threading.Event()
    if until is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: end.set())
    end.wait()


def write_files(
    wanted: ControlPlaneEmulation, server: ControlPlaneServer, hardware: Rack, factor: float = 1.0, drawn: str = ""
) -> tuple[Path, Path]:
    """Write a system file, a small campaign and the credentials of an emulated control plane. Returns the first two paths.

    Args:
        request: request of the user.
        server: running emulator.
        hardware: rack of the emulator.
        factor: factor on the recorded times of the emulator.
        times_source: source of the recorded times, if they are those of another fabric.
    """
    directory = wanted.directory
    directory.mkdir(parents=True, exist_ok=True)
    credentials = directory / "credentials"
    credentials.touch(0o600)
    credentials.write_text(f"{USER}\n{PASSWORD}\n", encoding="utf-8")
    system, campaign = directory / "systems" / f"{directory.name}.yaml", directory / "campaign.yaml"
    system.parent.mkdir(exist_ok=True)
    described = system_document(directory.name, wanted.kind, server, hardware, wanted.hosts)
    described |= {"times_factor": factor} if factor != 1 else {}
    described |= (
        {"notes": [f"The control plane is emulated. Operations on devices take recorded times: {drawn}."]}
        if drawn
        else {}
    )
    system.write_text(yaml.safe_dump(described, sort_keys=False), encoding="utf-8")
    model = next(iter(device.model for device in hardware.devices.values() if device.kind == "gpu"), "cpu-rank")
    document = {
        "name": directory.name,
        "system": directory.name,
        "configurations": [{"devices_per_host": [1, 2], "device": model, "attach": "fabric"}],
        "axes": {"workload": "bert-nano", "batch": 4, "precision": "fp32"},
        "protocol": {"repetitions": 2},
    }
    campaign.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return system, campaign


def system_document(name: str, kind: str, server: ControlPlaneServer, hardware: Rack, hosts: str) -> dict[str, object]:
    """Build the system file of an emulated control plane. Its credentials are in a file beside it."""
    pool: dict[tuple[str, str], int] = {}
    for device in hardware.devices.values():
        pool[device.kind, device.model] = pool.get((device.kind, device.model), 0) + 1
    beside = server.ca_file if _asks(kind) else None
    return {
        "name": name,
        "description": f"An emulated control plane of kind {kind}; it has no hardware.",
        "launcher": "local",
        "fabric": {
            "kind": kind,
            **fabric_kind(kind).example.options,
            **reached(kind, server),
            **({"credentials": {"file": str(beside.resolve().parent / "credentials")}} if beside else {}),
        },
        "hosts": [{"name": hosts, "cores": 8, "memory_gib": 64}],
        "pool": [{"kind": k, "model": model, "count": count} for (k, model), count in pool.items()],
        "devices": {model: {"runs_on": "cpu"} for kind, model in pool if kind == "gpu"},
        "notes": [getattr(emulator_module(kind), "NOTE", _NOTE)],
    }


def _asks(kind: str) -> bool:
    """Return True if control planes of this kind have a login."""
    return not issubclass(fabric_kind(kind).options, WithoutLogin)


def _recorded(options: dict[str, Any]) -> OperationTimes | None:
    """Return recorded times for an emulator that has none of its own, or None.

    The options `times` and `factor` are removed from `options`.
    """
    name = options.pop("times", None)
    return None if name is None else published_times(str(name)).scaled(float(options.pop("factor", 1.0)))


def _device(text: str) -> tuple[str, str, int]:
    """Parse a device as `KIND:MODEL:COUNT`. Raises ConfigError if it is invalid."""
    kind, _, rest = text.partition(":")
    model, _, count = rest.rpartition(":")
    if kind not in _KINDS or not model or not count.isdigit() or not int(count):
        raise ConfigError(
            f"--device {text}: KIND:MODEL:COUNT is needed, such as gpu:a100:8; KIND is {', '.join(_KINDS)}"
        )
    return kind, model, int(count)


def _option(text: str) -> tuple[str, Any]:
    """Parse an option as `NAME=VALUE`. Raises ConfigError if it is invalid."""
    name, given, value = text.partition("=")
    if not name or not given:
        raise ConfigError(f"--option {text}: NAME=VALUE is needed, such as factor=0.1")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--option {text}: the value is no YAML") from error


def _fault(text: str) -> WireFault:
    """Parse a fault as `KIND,METHOD,PATH[,TIMES]`. Raises ConfigError if it is invalid."""
    kind, method, path, *times = (part.strip() for part in (*text.split(","), "", ""))
    times = [each for each in times if each]
    known: tuple[HttpFaultKind, ...] = HttpFaultKind.__args__  # type: ignore[attr-defined]
    if (
        kind not in known
        or not method
        or not path
        or len(times) > 1
        or not all(each.lstrip("-").isdigit() for each in times)
    ):
        raise ConfigError(f"--fault {text}: KIND,METHOD,PATH[,TIMES] is needed; KIND is one of {', '.join(known)}")
    return WireFault(kind, method, path, int(times[0]) if times else 1)
