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
                raise ConfigError(f"{where}: '{name}' is not an axis here; choose from: {', '.join(axes)}")
            if name in zipped:
                raise ConfigError(f"{where}: '{name}' is in two zips; remove one of them")
            zipped.add(name)
        lengths = {name: len(axes[name]) for name in names}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ConfigError(f"{where}: the lists must have the same length, but {told}; give each as many values")
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
    by_shape: dict[str, Configuration] = {}
    named: set[str] = set()
    impossible: list[Impossible] = []
    for index, (shape, configurations) in enumerate(zip(shapes, expanded, strict=True)):
        for configuration in configurations:
            if isinstance(configuration, Impossible):
                impossible.append(configuration)
                continue
            key = content_hash(configuration.shape())
            if shape.name and key in named and by_shape[key].name != shape.name:
                where = source.place("configurations", index)
                raise ConfigError(f"{where}: '{shape.name}' is the same hardware as '{by_shape[key].name}'; remove one")
            if shape.name or key not in by_shape:
                by_shape[key] = configuration
            if shape.name:
                named.add(key)
    where = source.place("configurations")
    if not by_shape:
        raise ConfigError(
            f"{where}: no configuration is possible: {'; '.join(f'{each.shape}: {each.why}' for each in impossible)}"
        )
    several = len({configuration.device for configuration in by_shape.values()}) > 1
    found = tuple(
        configuration if key in named else replace(configuration, name=_name(configuration, several))
        for key, configuration in by_shape.items()
    )
    twice = [name for name, count in Counter(configuration.name for configuration in found).items() if count > 1]
    if twice:
        named_so = next((index for index, shape in enumerate(shapes) if shape.name == twice[0]), None)
        where = where if named_so is None else source.place("configurations", named_so, "name")
        raise ConfigError(f"{where}: the name {', '.join(twice)} names two different shapes; rename one")
    return found, tuple(impossible)


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
    expanded = list(_expand(shape, shape.device or tuple(known), place("zip") if shape.zip else place()))
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
    kind, _, p2p = attach.partition("-")
    local = count if kind == "local" else 0
    if kind == "hybrid":
        local = count // 2 if asked is None else asked
        if not 0 < local < count:
            return f"hybrid needs local and fabric devices, but {local} of {count} devices would be local"
    if p2p and count - local < 2:
        return f"peer-to-peer is between pooled devices of a host, and it would have {count - local}"
    return local


def _name(configuration: Configuration, with_device: bool) -> str:
    used = f"{configuration.devices_used}of" if configuration.devices_used != configuration.devices_per_host else ""
    parts = [f"{configuration.hosts}x{used}{configuration.devices_per_host}", configuration.attach]
    local = configuration.local_devices_per_host
    if configuration.attach.startswith("hybrid") and local * 2 != configuration.devices_per_host:
        parts[-1] += str(local)
    if configuration.storage != "local":
        parts.append(configuration.storage)
    if with_device:
        parts.append(configuration.device)
    return "-".join(parts)
