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
from campaign.emulators.catalog import build_connection_options, load_emulator_module
from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.emulators.control_planes.replay import open_replay_server
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpFaultKind, WireFault
from campaign.fabrics import load_fabric_kind
from campaign.fabrics.control_plane.protocol import OptionsWithoutLogin
from campaign.spec.operation_times import OperationTimes, read_published_times
from campaign.spec.site_hardware import HostSpec

USER, PASSWORD = "campaign", "learn-2-compose"
_DEFAULT_DEVICES = ("gpu:cpu-rank:14", "nvme:nvme-4tb:2")
_DEVICE_KINDS = ("gpu", "nvme", "nic", "memory")
_DEFAULT_NOTE = "The control plane is emulated, so composition times are not those of a real fabric."


@dataclass(frozen=True)
class EmulatorRequest:
    """User's request for an emulated control plane.

    Attributes:
        kind: kind of fabric, or path of a recording.
        directory: directory to which files are written.
        port: port to serve on; 0 for any free port.
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


def serve_control_plane(
    request: EmulatorRequest, report: Callable[[str], None], stop_event: threading.Event | None = None
) -> None:
    """Serve an emulated control plane until SIGINT or SIGTERM, or until `stop_event` is set.

    Raises ConfigError for an unknown kind, device, fault or option.
    """
    kind, directory = request.kind, request.directory
    if kind.endswith((".yaml", ".yml")):
        _serve_recording(request, report, stop_event)
        return
    module = load_emulator_module(kind)
    device_counts = [_parse_device(text) for text in request.devices or getattr(module, "DEVICES", _DEFAULT_DEVICES)]
    options = getattr(module, "OPTIONS", {}) | dict(_parse_option(text) for text in request.options)
    try:
        hardware = build_rack(HostSpec(name=request.hosts).list_names(), device_counts)
    except ValueError as error:
        raise ConfigError(f"--host {request.hosts}: {error}") from error
    faults = [_parse_fault(text) for text in request.faults]
    has_own_times = "factor" in getattr(module, "OPTIONS", {})
    times = None if has_own_times else _pop_recorded_times(options)
    if times is not None:
        random = Random()
        hardware.draw_duration_s = lambda operation: times.sample_seconds(random, operation)
    try:
        emulator = module.open_emulator(hardware, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{kind}: {error}") from error
    with ControlPlaneServer(emulator, directory, port=request.port) as server:
        for fault in faults:
            server.faults.add_fault(fault)
        factor = float(options.get("factor", 1.0))
        system, campaign = write_site_files(request, server, hardware, factor, times.source if times else "")
        login = f", user {USER}, password {PASSWORD}" if server.ca_file and _requires_login(kind) else ""
        login += f", certificate {server.ca_file}" if server.ca_file else ""
        report(f"The emulator of {kind} is running at {', '.join(server.urls.values())}{login}.\n")
        report(f"  campaign fabric check {system}")
        report(f"  campaign compose 1x1-fabric {campaign} --dry-run")
        report(f"  snakemake --profile local --config campaign={campaign}\n\nPress Ctrl-C to stop it.")
        wait_for_end(stop_event)
        report(
            f"The emulator stopped after {len(server.log)} requests, including {len(server.list_changes())} changes."
        )


def _serve_recording(
    request: EmulatorRequest, report: Callable[[str], None], stop_event: threading.Event | None
) -> None:
    """Serve a recording until SIGINT or SIGTERM, or until `stop_event` is set."""
    server, replay = open_replay_server(Path(request.kind), request.port)
    with server:
        system = request.directory / "systems" / f"{request.directory.name}.yaml"
        system.parent.mkdir(parents=True, exist_ok=True)
        system_entries = replay.build_system_document(request.directory.name, request.directory)
        system.write_text(yaml.safe_dump(system_entries, sort_keys=False), encoding="utf-8")
        report(f"The recording {request.kind} is replayed at {', '.join(server.urls.values())}.\n")
        report(f"  campaign fabric check {system} --look-only")
        report("\nPress Ctrl-C to stop it.")
        wait_for_end(stop_event)


def wait_for_end(stop_event: threading.Event | None) -> None:
    """Wait for `stop_event`, or for SIGINT or SIGTERM if there is no event."""
    end = stop_event or threading.Event()
    if stop_event is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: end.set())
    end.wait()


def write_site_files(
    request: EmulatorRequest, server: ControlPlaneServer, hardware: Rack, factor: float = 1.0, times_source: str = ""
) -> tuple[Path, Path]:
    """Write a system file, a small campaign and the credentials for an emulated control plane. Returns the first two paths.

    Args:
        request: request of the user.
        server: running emulator.
        hardware: rack of the emulator.
        factor: factor on the recorded times of the emulator.
        times_source: source of the recorded times, if they are those of another fabric.
    """
    directory = request.directory
    directory.mkdir(parents=True, exist_ok=True)
    credentials = directory / "credentials"
    credentials.touch(0o600)
    credentials.write_text(f"{USER}\n{PASSWORD}\n", encoding="utf-8")
    system, campaign = directory / "systems" / f"{directory.name}.yaml", directory / "campaign.yaml"
    system.parent.mkdir(exist_ok=True)
    system_entries = build_system_document(directory.name, request.kind, server, hardware, request.hosts)
    system_entries |= {"times_factor": factor} if factor != 1 else {}
    system_entries |= (
        {"notes": [f"The control plane is emulated. Operations on devices take recorded times: {times_source}."]}
        if times_source
        else {}
    )
    system.write_text(yaml.safe_dump(system_entries, sort_keys=False), encoding="utf-8")
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


def build_system_document(
    name: str, kind: str, server: ControlPlaneServer, hardware: Rack, hosts: str
) -> dict[str, object]:
    """Build the system file of an emulated control plane. Its credentials are in a separate file."""
    pool: dict[tuple[str, str], int] = {}
    for device in hardware.devices.values():
        pool[device.kind, device.model] = pool.get((device.kind, device.model), 0) + 1
    certificate = server.ca_file if _requires_login(kind) else None
    return {
        "name": name,
        "description": f"Emulated control plane of kind {kind}, without hardware.",
        "launcher": "local",
        "fabric": {
            "kind": kind,
            **load_fabric_kind(kind).example.options,
            **build_connection_options(kind, server),
            **({"credentials": {"file": str(certificate.resolve().parent / "credentials")}} if certificate else {}),
        },
        "hosts": [{"name": hosts, "cores": 8, "memory_gib": 64}],
        "pool": [{"kind": k, "model": model, "count": count} for (k, model), count in pool.items()],
        "devices": {model: {"runs_on": "cpu"} for kind, model in pool if kind == "gpu"},
        "notes": [getattr(load_emulator_module(kind), "NOTE", _DEFAULT_NOTE)],
    }


def _requires_login(kind: str) -> bool:
    """Return True if this kind of control plane requires a login."""
    return not issubclass(load_fabric_kind(kind).options, OptionsWithoutLogin)


def _pop_recorded_times(options: dict[str, Any]) -> OperationTimes | None:
    """Return recorded times, scaled, for an emulator without built-in ones, or None if the options name no times.

    The options `times` and `factor` are removed from `options`.
    """
    name = options.pop("times", None)
    return None if name is None else read_published_times(str(name)).scale_times(float(options.pop("factor", 1.0)))


def _parse_device(text: str) -> tuple[str, str, int]:
    """Parse a device as `KIND:MODEL:COUNT`. Raises ConfigError if it is invalid."""
    kind, _, model_and_count = text.partition(":")
    model, _, count = model_and_count.rpartition(":")
    if kind not in _DEVICE_KINDS or not model or not count.isdigit() or not int(count):
        raise ConfigError(
            f"--device {text}: use KIND:MODEL:COUNT, such as gpu:a100:8; KIND is one of {', '.join(_DEVICE_KINDS)}"
        )
    return kind, model, int(count)


def _parse_option(text: str) -> tuple[str, Any]:
    """Parse an option as `NAME=VALUE`. Raises ConfigError if it is invalid."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ConfigError(f"--option {text}: use NAME=VALUE, such as factor=0.1")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--option {text}: the value is not valid YAML") from error


def _parse_fault(text: str) -> WireFault:
    """Parse a fault as `KIND,METHOD,PATH[,TIMES]`. Raises ConfigError if it is invalid."""
    kind, method, path, *times = (part.strip() for part in (*text.split(","), "", ""))
    times = [word for word in times if word]
    fault_kinds: tuple[HttpFaultKind, ...] = HttpFaultKind.__args__  # type: ignore[attr-defined]
    if (
        kind not in fault_kinds
        or not method
        or not path
        or len(times) > 1
        or not all(word.lstrip("-").isdigit() for word in times)
    ):
        raise ConfigError(f"--fault {text}: use KIND,METHOD,PATH[,TIMES]; KIND is one of {', '.join(fault_kinds)}")
    return WireFault(kind, method, path, int(times[0]) if times else 1)
