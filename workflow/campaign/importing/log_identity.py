"""What a log is a log of: a cell, and which run of it, from what its path, its text and the map say. Pure."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from campaign.config.import_file import IDENTITY, LogPattern
from campaign.documents.cell import SHAPE_AXES, Cell, Configuration, Scalar
from campaign.documents.fields import Precision
from campaign.documents.run_numbers import MOST
from campaign.errors import nearest
from campaign.importing.log_facts import Found, Unread
from campaign.workloads.protocol import Workload

NUMBERS = frozenset(
    {"batch", "batch_global", "repetition", "hosts", "devices_per_host", "devices_used", "devices", "ranks"}
)
PRECISIONS: tuple[str, ...] = typing.get_args(Precision)
Point = tuple[str, str, int, str, tuple[tuple[str, Scalar], ...]]
"""configuration, workload, batch, precision, and options by name: a cell before there is a campaign."""


class Copy(Unread):
    """Its run has a record from elsewhere."""


@dataclass(frozen=True)
class LogIdentity:
    """repetition: None where nothing says it. hosts, lease: empty where not known."""

    point: Point
    repetition: int | None = None
    hosts: tuple[str, ...] = ()
    lease: str = ""


@dataclass(frozen=True)
class Known:
    """What the map declares, with the workload files that it names."""

    configurations: Sequence[Configuration]
    workloads: Mapping[str, Workload]

    def names(self) -> set[str]:
        """What can be said of a log by this map."""
        return {*IDENTITY, *SHAPE_AXES, *(option for file in self.workloads.values() for option in file.options)}

    def words(self, pattern: LogPattern) -> dict[str, set[str]]:
        """Texts that are known for the names of a pattern."""
        words = {
            "configuration": {c.name for c in self.configurations},
            "workload": set(self.workloads),
            "precision": set(PRECISIONS),
            **{name: {str(getattr(c, name)) for c in self.configurations} for name in ("device", "attach", "storage")},
        }
        return {name: words.get(name, set()) | set(pattern.words.get(name, ())) for name in {*words, *pattern.words}}


def identify(known: Known, pattern: LogPattern, path: Mapping[str, str], found: Found) -> LogIdentity:
    """What the log is of. path: what stands in its path; Unread says what is missing, unknown or contradicts itself."""
    said = _said(pattern, path, found)
    configuration = _configuration(known, said)
    workload = str(_needed(said, "workload"))
    if workload not in known.workloads:
        raise Unread(f"no workload '{workload}' in the map; {nearest(workload, known.workloads)}")
    precision = str(_needed(said, "precision"))
    if precision not in PRECISIONS:
        raise Unread(
            f"'{precision}' is not a precision; there are: {', '.join(PRECISIONS)} (the map's 'words' translate)"
        )
    file = known.workloads[workload]
    named = sorted(file.options.keys() & said.keys())
    options = tuple((name, _option(name, said[name], file.options[name])) for name in named)
    repetition = said.get("repetition")
    if repetition is not None and not 1 <= int(repetition) <= 999_999:
        raise Unread(f"repetition {repetition}: repetitions count from 1; number all of them from 1")
    hosts = tuple(filter(None, re.split(r"[+,\s]+", str(said.get("host", "")))))
    if hosts and len(set(hosts)) != configuration.hosts:
        raise Unread(f"hosts {', '.join(hosts)}: configuration '{configuration.name}' has {configuration.hosts}")
    point = (configuration.name, workload, _batch(said, configuration), precision, options)
    # What numbers its runs otherwise, by a date say, gets numbers that are free.
    number = None if repetition is None or int(repetition) > MOST else int(repetition)
    return LogIdentity(point, number, hosts, str(said.get("lease", "")))


def _said(pattern: LogPattern, path: Mapping[str, str], found: Found) -> dict[str, Scalar]:
    """Name -> value, from all who say something; Unread where two of them differ."""
    said: dict[str, tuple[Scalar, str]] = {}
    for source, values in (("path", path), ("log", found.values), ("map", pattern.values)):
        for name, text in values.items():
            value: Scalar = pattern.words.get(name, {}).get(str(text), text)
            if name in NUMBERS:
                try:
                    value = int(value)
                except ValueError:
                    raise Unread(f"{name} is '{value}', which is not an integer") from None
            if name in said and str(said[name][0]) != str(value):
                first, other = said[name]
                raise Unread(f"{name} is {first} by its {other}, and {value} by the {source}")
            said.setdefault(name, (value, source))
    return {name: value for name, (value, _) in said.items()}


def _needed(said: Mapping[str, Scalar], name: str) -> Scalar:
    if name not in said:
        raise Unread(
            f"its {name} is unknown; put {{{name}}} into the pattern's path, or give it under 'read' or 'values'"
        )
    return said[name]


def _configuration(known: Known, said: Mapping[str, Scalar]) -> Configuration:
    names = [c.name for c in known.configurations]
    if "configuration" in said and said["configuration"] not in names:
        name = str(said["configuration"])
        raise Unread(f"no configuration '{name}' in the map; {nearest(name, names)}")
    shape = {name: said[name] for name in SHAPE_AXES if name in said}
    if not shape and "configuration" not in said and len(names) > 1:
        _needed(said, "configuration")
    fitting = [
        c
        for c in known.configurations
        if said.get("configuration", c.name) == c.name
        and all(str(Cell("", c, "", 1, "").axes()[name]) == str(value) for name, value in shape.items())
    ]
    if len(fitting) == 1:
        return fitting[0]
    all_said = {**shape, "configuration": said.get("configuration")}
    told = ", ".join(f"{name} {value}" for name, value in all_said.items() if value)
    if not fitting:
        raise Unread(f"no configuration in the map has {told}")
    raise Unread(f"{', '.join(c.name for c in fitting)} all have {told}; say which one it is")


def _batch(said: Mapping[str, Scalar], configuration: Configuration) -> int:
    if "batch_global" in said:
        whole, rest = divmod(int(said["batch_global"]), configuration.ranks)
        if rest or int(said.get("batch", whole)) != whole:
            of = f"{said['batch']} times" if "batch" in said else "a multiple of"
            raise Unread(f"a global batch of {said['batch_global']} is not {of} {configuration.ranks} ranks")
    else:
        whole = int(_needed(said, "batch"))
    if not 1 <= whole <= 4096:
        raise Unread(f"batch {whole}: a device takes 1 to 4096 samples in a step")
    return whole


def _option(name: str, value: Scalar, default: Scalar) -> Scalar:
    """The value as the option's default is written: '384' is a number where the default is one."""
    if isinstance(value, str) and not isinstance(default, str):
        try:
            return value.lower() in ("true", "yes", "1") if isinstance(default, bool) else type(default)(value)
        except ValueError:
            raise Unread(f"{name} is '{value}', and the workload's default {default!r} is a number") from None
    return value
