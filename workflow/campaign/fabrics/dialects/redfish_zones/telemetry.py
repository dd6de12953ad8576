"""What a chassis tells besides: links, errors, traffic, temperatures, and its logs with a cursor.

Source: DSP2046 (Port, PortMetrics, Thermal, ThermalMetrics, LogService, LogEntry).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from campaign.fabrics.dialects.redfish.answers import uri
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.dialects.redfish_zones.layout import Layout
from campaign.fabrics.protocol import Event, Reading

_ERRORS = {
    "CorrectableErrorCount": "correctable_errors",
    "NonFatalErrorCount": "uncorrectable_errors",
    "FatalErrorCount": "fatal_errors",
}
_TRAFFIC = {"RXBytes": "rx_bytes", "TXBytes": "tx_bytes"}


def readings(service: Service, layout: Layout) -> Iterator[Reading]:
    """Parts are devices by their id, host ports as `drawer1/H1`, and chassis."""
    devices = {port.path: layout.endpoints[path].id for path, port in layout.port_of.items()}
    for port in layout.switch_ports:
        part = devices.get(port.path, f"{port.switch}/{port.id}")
        if port.up is not None:
            yield Reading(part, "link_up", float(port.up))
        if port.link is not None:
            yield Reading(part, "link_lanes", float(port.link.width))
            yield Reading(part, "link_lanes_max", float(port.link.width_max))
            yield Reading(part, "link_gen", float(port.link.gen))
            yield Reading(part, "link_gen_max", float(port.link.gen_max))
        if port.metrics is not None and (found := service.find(port.metrics)) is not None:
            yield from counters(part, found)
    path = uri(service.root().get("Chassis"))
    for chassis in service.members(path) if path else ():
        yield from _temperatures(service, chassis)


def counters(part: str, found: Mapping[str, Any]) -> Iterator[Reading]:
    """Errors and traffic of a PortMetrics resource."""
    errors = found.get("PCIeErrors")
    for told, names in ((errors if isinstance(errors, Mapping) else {}, _ERRORS), (found, _TRAFFIC)):
        for name, quantity in names.items():
            value = told.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield Reading(part, quantity, float(value))


def _temperatures(service: Service, chassis: Mapping[str, Any]) -> Iterator[Reading]:
    name, path = str(chassis.get("Id")), uri(chassis.get("Thermal"))
    if path is not None and (found := service.find(path)) is not None:
        yield from celsius(name, found.get("Temperatures"), "ReadingCelsius")
        return
    path = uri(chassis.get("ThermalSubsystem"))
    system = service.find(path) if path else None
    path = uri(system.get("ThermalMetrics")) if system else None
    metrics = service.find(path) if path else None
    if metrics is not None:
        yield from celsius(name, metrics.get("TemperatureReadingsCelsius"), "Reading")


def celsius(chassis: str, sensors: Any, value: str) -> Iterator[Reading]:
    """Temperatures of a list of sensors; the old and the new resource differ in the name of the value."""
    for number, sensor in enumerate(sensors if isinstance(sensors, list) else ()):
        if not isinstance(sensor, Mapping):
            continue
        told = sensor.get(value)
        if isinstance(told, int | float) and not isinstance(told, bool):
            name = sensor.get("Name") or sensor.get("DeviceName") or sensor.get("MemberId") or number
            yield Reading(f"{chassis}/{name}", "temperature_c", float(told))


# -- logs ------------------------------------------------------------------------------------------------------------------


def events(service: Service, after: str | None) -> tuple[Event, ...]:
    """New entries of every log of the managers and the chassis, in order of time."""
    logs: dict[str, list[Mapping[str, Any]]] = {}
    for kind in ("Managers", "Chassis"):
        owners = uri(service.root().get(kind))
        for owner in service.members(owners) if owners else ():
            path = uri(owner.get("LogServices"))
            for log in service.members(path) if path else ():
                entries = uri(log.get("Entries"))
                if entries is not None:
                    logs[f"{owner.get('Id')}/{log.get('Id')}"] = [*service.members(entries)]
    return merged(logs, after)


def merged(logs: Mapping[str, list[Mapping[str, Any]]], after: str | None) -> tuple[Event, ...]:
    """Entries of logs by name, beyond a cursor.

    A cursor says how far each log was read, by time and number: logs are cleared, and their numbers then start anew.
    """
    seen = _read_cursor(after)
    found = [
        (_order(entry), log, entry)
        for log, entries in logs.items()
        for entry in entries
        if _order(entry) > seen.get(log, ("",))
    ]
    events: list[Event] = []
    for order, log, entry in sorted(found, key=lambda one: (one[0], one[1])):
        seen[log] = order
        links = entry.get("Links")
        origin = uri(links.get("OriginOfCondition")) if isinstance(links, Mapping) else None
        events.append(
            Event(
                _cursor(seen),
                str(entry.get("Created") or entry.get("EventTimestamp") or ""),
                str(entry.get("Severity") or entry.get("MessageSeverity") or ""),
                str(entry.get("Message") or entry.get("Name") or ""),
                (origin or "").rpartition("/")[2],
            )
        )
    return tuple(events)


Order = tuple[str, ...]


def _order(entry: Mapping[str, Any]) -> Order:
    number = str(entry.get("Id") or "")
    return (str(entry.get("Created") or ""), number.zfill(20) if number.isdigit() else number)


def _cursor(seen: Mapping[str, Order]) -> str:
    return " ".join(
        f"{quote(log, safe='/')}={quote(order[0], safe=':')},{order[1].lstrip('0')}" for log, order in seen.items()
    )


def _read_cursor(text: str | None) -> dict[str, Order]:
    found: dict[str, Order] = {}
    for word in (text or "").split():
        log, _, order = word.partition("=")
        time, _, number = order.rpartition(",")
        found[unquote(log)] = (unquote(time), number.zfill(20) if number.isdigit() else number)
    return found
