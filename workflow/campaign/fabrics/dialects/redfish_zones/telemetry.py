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
from campaign.fabrics.http.json_values import Json, at, listing, mapping, number
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
        if (link := port.link) is not None:
            told = {"lanes": link.width, "lanes_max": link.width_max, "gen": link.gen, "gen_max": link.gen_max}
            yield from (Reading(part, f"link_{name}", float(value)) for name, value in told.items())
        if port.metrics is not None and (found := service.find(port.metrics)) is not None:
            yield from counters(part, found)
    for chassis in service.collection(service.root(), "Chassis"):
        yield from _temperatures(service, chassis)


def counters(part: str, found: Json) -> Iterator[Reading]:
    """Errors and traffic of a PortMetrics resource."""
    for told, names in ((mapping(found, "PCIeErrors"), _ERRORS), (found, _TRAFFIC)):
        for name, quantity in names.items():
            if (value := number(told.get(name))) is not None:
                yield Reading(part, quantity, value)


def _temperatures(service: Service, chassis: Json) -> Iterator[Reading]:
    name, thermal = str(chassis.get("Id")), service.linked(chassis, "Thermal")
    if thermal is not None:
        yield from celsius(name, thermal.get("Temperatures"), "ReadingCelsius")
    elif metrics := service.linked(service.linked(chassis, "ThermalSubsystem"), "ThermalMetrics"):
        yield from celsius(name, metrics.get("TemperatureReadingsCelsius"), "Reading")


def celsius(chassis: str, sensors: Any, value: str) -> Iterator[Reading]:
    """Temperatures of a list of sensors; the old and the new resource differ in the name of the value."""
    for index, sensor in enumerate(listing(sensors)):
        told = number(at(sensor, value))
        if told is not None:
            name = sensor.get("Name") or sensor.get("DeviceName") or sensor.get("MemberId") or index
            yield Reading(f"{chassis}/{name}", "temperature_c", told)


def events(service: Service, after: str | None) -> tuple[Event, ...]:
    """New entries of every log of the managers and the chassis, in order of time."""
    logs: dict[str, list[Json]] = {}
    for kind in ("Managers", "Chassis"):
        for owner in service.collection(service.root(), kind):
            for log in service.collection(owner, "LogServices"):
                logs[f"{owner.get('Id')}/{log.get('Id')}"] = [*service.collection(log, "Entries")]
    return merged(logs, after)


def merged(logs: Mapping[str, list[Json]], after: str | None) -> tuple[Event, ...]:
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
        origin = uri(at(entry, "Links", "OriginOfCondition"))
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


def _order(entry: Json) -> Order:
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
