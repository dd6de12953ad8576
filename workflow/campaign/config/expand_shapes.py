"""From shapes to configurations: the hardware that a campaign file asks for, and combinations of lists. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from campaign.config.campaign_file import Shape
from campaign.config.load import gathered
from campaign.config.system_file import SystemFile
from campaign.config.yaml_file import YamlFile
from campaign.documents.cell import Attach, Configuration
from campaign.errors import ConfigError, nearest
from campaign.files import content_hash

MAX_COMBINATIONS = 1_000_000  # beyond it a list is a mistake, and the plan would not fit into memory


def product(axes: Mapping[str, Sequence[Any]], zips: Sequence[Sequence[str]], where: str) -> Iterator[dict[str, Any]]:
    """All combinations of axis values, where the axes of one zip go together; ConfigError for a zip that cannot be."""
    groups: list[list[dict[str, Any]]] = []
    zipped: set[str] = set()
    for names in zips:
        for name in names:
            if name not in axes:
                raise ConfigError(f"{where}: zip: '{name}' is not an axis here; choose from: {', '.join(axes)}")
            if name in zipped:
                raise ConfigError(f"{where}: zip: '{name}' is in two zips; remove one of them")
            zipped.add(name)
        lengths = {name: len(axes[name]) for name in names}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ConfigError(f"{where}: zip: the lists must have the same length, but {told}")
    done: set[str] = set()
    for name, values in axes.items():
        if name in done:
            continue
        together = next((names for names in zips if name in names), (name,))
        done.update(together)
        groups.append([{n: axes[n][index] for n in together} for index in range(len(values))])
    count = math.prod(len(group) for group in groups)
    if count > MAX_COMBINATIONS:
        raise ConfigError(f"{where}: the lists make {count} combinations; at most {MAX_COMBINATIONS} are possible")
    for combination in itertools.product(*groups):
        merged: dict[str, Any] = {}
        for part in combination:
            merged.update(part)
        yield merged


@dataclass(frozen=True)
class Impossible:
    """A shape that a product of lists produced and that cannot exist, with the reason."""

    shape: str
    why: str


def expand_shapes(
    shapes: Sequence[Shape], system: SystemFile, source: YamlFile
) -> tuple[tuple[Configuration, ...], tuple[Impossible, ...]]:
    """Configurations of all shapes; the same hardware declared twice is one configuration.

    source: the campaign's document, for places in messages. ConfigError lists every shape that cannot be read.
    """
    expanded = gathered(partial(_expanded, shape, system, source, index) for index, shape in enumerate(shapes))
    found = _Found(source)
    for index, (shape, configurations) in enumerate(zip(shapes, expanded, strict=True)):
        for configuration in configurations:
            found.add(configuration, shape.name, index)
    return found.configurations(), tuple(found.impossible)


class _Found:
    """Configurations by their shape, so that the same hardware declared twice is one."""

    def __init__(self, source: YamlFile) -> None:
        self.source = source
        self.by_shape: dict[str, Configuration] = {}
        self.named: set[str] = set()
        self.impossible: list[Impossible] = []

    def add(self, configuration: Configuration | Impossible, name: str | None, index: int) -> None:
        if isinstance(configuration, Impossible):
            self.impossible.append(configuration)
            return
        key = content_hash(configuration.shape())
        if name and key in self.named and self.by_shape[key].name != name:
            raise ConfigError(
                f"{self.source.place('configurations', index)}: '{name}' is the same hardware as "
                f"'{self.by_shape[key].name}'; remove one"
            )
        if name or key not in self.by_shape:
            self.by_shape[key] = configuration
        if name:
            self.named.add(key)

    def configurations(self) -> tuple[Configuration, ...]:
        where = self.source.place("configurations")
        if not self.by_shape:
            why = "; ".join(f"{impossible.shape}: {impossible.why}" for impossible in self.impossible)
            raise ConfigError(f"{where}: no configuration is possible: {why}")
        models = {configuration.device for configuration in self.by_shape.values()}
        result = tuple(
            configuration if key in self.named else replace(configuration, name=_name(configuration, len(models) > 1))
            for key, configuration in self.by_shape.items()
        )
        twice = [name for name, count in Counter(configuration.name for configuration in result).items() if count > 1]
        if twice:
            raise ConfigError(f"{where}: the name {', '.join(twice)} names two different shapes; rename one")
        return result


def device_models(system: SystemFile) -> set[str]:
    """Models of the devices that a run can use, of all hosts and the pool."""
    own = {device.model for group in system.hosts for device in group.devices if device.kind == "gpu"}
    return own | {entry.model for entry in system.pool if entry.kind == "gpu"}


def _expanded(shape: Shape, system: SystemFile, source: YamlFile, index: int) -> list[Configuration | Impossible]:
    place = partial(source.place, "configurations", index)
    known = device_models(system)
    for model in shape.device or ():
        if model not in known:
            raise ConfigError(
                f"{place('device')}: system '{system.name}' has no device '{model}'; {nearest(model, known)}"
            )
    if not shape.device and len(known) != 1:
        raise ConfigError(
            f"{place()}: give a 'device': system '{system.name}' has {', '.join(sorted(known)) or 'none'}"
        )
    expanded = list(_expand(shape, shape.device or tuple(known), place()))
    if shape.name and len(expanded) > 1:
        raise ConfigError(
            f"{place('name')}: '{shape.name}' would name {len(expanded)} configurations; remove the name or the lists"
        )
    return expanded


def _expand(shape: Shape, devices: Sequence[str], where: str) -> Iterator[Configuration | Impossible]:
    axes: dict[str, Sequence[Any]] = {
        "hosts": shape.hosts,
        "devices_per_host": shape.devices_per_host,
        "devices_used": shape.devices_used,
        "device": devices,
        "attach": shape.attach,
        "local_devices_per_host": shape.local_devices_per_host or (None,),
        "storage": shape.storage,
    }
    for values in product(axes, shape.zip, where):
        count = values["devices_per_host"]
        used = count if values["devices_used"] == "all" else values["devices_used"]
        local = _local_devices(values["attach"], count, values["local_devices_per_host"])
        configuration = Configuration(
            name=shape.name or "",
            hosts=values["hosts"],
            devices_per_host=count,
            local_devices_per_host=local if isinstance(local, int) else 0,
            devices_used=used,
            device=values["device"],
            attach=values["attach"],
            storage=values["storage"],
        )
        if isinstance(local, str):
            yield Impossible(_name(configuration, False), local)
        elif used > count:
            yield Impossible(_name(configuration, False), f"a run cannot use {used} of {count} devices of a host")
        else:
            yield configuration


def _local_devices(attach: Attach, count: int, asked: int | None) -> int | str:
    """How many devices are the host's own, or why that cannot be."""
    if attach != "hybrid":
        return count if attach == "local" else 0
    local = count // 2 if asked is None else asked
    if not 0 < local < count:
        return f"hybrid needs local and fabric devices, but {local} of {count} devices would be local"
    return local


def _name(configuration: Configuration, with_device: bool) -> str:
    used = f"{configuration.devices_used}of" if configuration.devices_used != configuration.devices_per_host else ""
    parts = [f"{configuration.hosts}x{used}{configuration.devices_per_host}", configuration.attach]
    if configuration.attach == "hybrid" and configuration.local_devices_per_host * 2 != configuration.devices_per_host:
        parts[-1] += str(configuration.local_devices_per_host)
    if configuration.storage != "local":
        parts.append(configuration.storage)
    if with_device:
        parts.append(configuration.device)
    return "-".join(parts)
