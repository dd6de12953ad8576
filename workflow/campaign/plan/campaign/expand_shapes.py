"""Expansion of shapes to configurations, the hardware that a campaign file asks for, and of lists to combinations. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from campaign.common.errors import ConfigError, suggest_name
from campaign.common.files import hash_document
from campaign.common.wording import pluralize
from campaign.fabrics.registry import load_fabric_kind
from campaign.plan.campaign.load import gathered
from campaign.spec.campaign_file import Shape
from campaign.spec.cell import Attach, Configuration
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import YamlFile

MAX_COMBINATIONS = 1_000_000  # beyond it a list is a mistake, and the plan would not fit into memory


def product(axes: Mapping[str, Sequence[Any]], zips: Sequence[Sequence[str]], where: str) -> Iterator[dict[str, Any]]:
    """Yield all combinations of axis values. The axes of one zip advance together.

    Raises ConfigError for an invalid zip, or if there are too many combinations.

    Args:
        axes: values of each axis.
        zips: names of the axes of each zip.
        where: place in the file, for messages.
    """
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
    """A shape that a product of lists produced and that cannot exist, with the reason.

    of: position of the shape in the file.
    """

    shape: str
    why: str
    of: int = 0


@dataclass(frozen=True)
class Expanded:
    """Configurations that shapes make, and the impossible ones."""

    configurations: tuple[Configuration, ...]
    impossible: tuple[Impossible, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """Positions in the file of the shapes that make a configuration, by its name."""

    def repeated(self, place: Callable[..., str]) -> Iterator[str]:
        """Yield a warning per shape that only makes configurations of earlier shapes."""
        for index in sorted({index for made in self.shapes.values() for index in made}):
            first = {name: made[0] for name, made in self.shapes.items() if index in made}
            if index not in first.values():
                name, before = next(iter(first.items()))
                where = place("configurations", index)
                yield f"{where}: '{name}' is the same hardware as in configurations.{before}, and is measured once; remove one"


def expand_shapes(shapes: Sequence[Shape], systems: Sequence[SystemFile], source: YamlFile) -> Expanded:
    """Expand all shapes to configurations. Hardware that is declared twice is one configuration.

    With several systems, a shape makes one configuration on each system that can hold it, or on the systems that it names. Names
    then begin with the name of the system, unless a shape has a name and names one system. Raises ConfigError, which lists every
    invalid shape.

    Args:
        shapes: shapes of the campaign file.
        systems: systems of the campaign.
        source: the campaign's document, for places in messages.
    """
    names = [system.name for system in systems]
    for index, shape in enumerate(shapes):
        if unknown := sorted(set(shape.system or ()) - set(names)):
            where = source.place("configurations", index, "system")
            raise ConfigError(
                f"{where}: '{unknown[0]}' is no system of the campaign; {suggest_name(unknown[0], names)}"
            )
    found = gathered(partial(_on_system, shapes, system, systems, source) for system in systems)
    where = source.place("configurations")
    for system, here in zip(systems, found, strict=True):
        if not here.configurations:
            on = f" on system '{system.name}'" if len(systems) > 1 else ""
            whys = "; ".join(f"{each.shape}: {each.why}" for each in here.impossible) or "no shape is for it"
            raise ConfigError(f"{where}: no configuration is possible{on}: {whys}")
    impossible = tuple(each for here in found for each in here.impossible)
    making = {index for here in found for indexes in here.shapes.values() for index in indexes}
    for index in set(range(len(shapes))) - making if len(systems) > 1 else ():
        whys = "; ".join(f"{each.shape}: {each.why}" for each in impossible if each.of == index)
        raise ConfigError(f"{source.place('configurations', index)}: no system can hold it: {whys}")
    configurations = tuple(each for here in found for each in here.configurations)
    if twice := [name for name, count in Counter(each.name for each in configurations).items() if count > 1]:
        named_so = next((index for index, shape in enumerate(shapes) if shape.name == twice[0]), None)
        where = source.place("configurations") if named_so is None else source.place("configurations", named_so, "name")
        raise ConfigError(f"{where}: the name {', '.join(twice)} names two different shapes; rename one")
    return Expanded(
        configurations, impossible, {name: places for here in found for name, places in here.shapes.items()}
    )


def _on_system(
    shapes: Sequence[Shape], system: SystemFile, systems: Sequence[SystemFile], source: YamlFile
) -> Expanded:
    """Expand the shapes to configurations on one of the systems."""
    prefix = f"{system.name}-" if len(systems) > 1 else ""
    asked = [(index, shape) for index, shape in enumerate(shapes) if system.name in (shape.system or [system.name])]
    expanded = gathered(partial(_expanded, shape, system, systems, source, index) for index, shape in asked)
    by_shape: dict[str, Configuration] = {}
    named: dict[str, str] = {}
    impossible: list[Impossible] = []
    making: defaultdict[str, dict[int, None]] = defaultdict(dict)
    for (index, shape), configurations in zip(asked, expanded, strict=True):
        for configuration in configurations:
            if (
                not isinstance(configuration, Impossible)
                and _may_lack(shape, systems)
                and (why := lacks(system, configuration))
            ):
                configuration = Impossible(shape.name or name_of(configuration), why)
            if isinstance(configuration, Impossible):
                impossible.append(replace(configuration, shape=f"{prefix}{configuration.shape}", of=index))
                continue
            key = hash_document(configuration.shape())
            making[key][index] = None
            if shape.name and key in named and by_shape[key].name != shape.name:
                where = source.place("configurations", index)
                raise ConfigError(f"{where}: '{shape.name}' is the same hardware as '{by_shape[key].name}'; remove one")
            if shape.name or key not in by_shape:
                by_shape[key] = configuration
            if shape.name:
                named[key] = shape.name if len(shape.system or ()) == 1 else f"{prefix}{shape.name}"
    several = len({configuration.device for configuration in by_shape.values()}) > 1
    found = {
        key: replace(each, name=named.get(key) or f"{prefix}{name_of(each, several)}", system=system.name)
        for key, each in by_shape.items()
    }
    places = {found[key].name: tuple(indexes) for key, indexes in making.items()}
    return Expanded(tuple(found.values()), tuple(impossible), places)


def _may_lack(shape: Shape, systems: Sequence[SystemFile]) -> bool:
    """Return whether a shape is left out on a system that cannot hold it.

    That is so if the shape is for several systems; the plan lists where it is not measured.
    """
    return len(systems) > 1 and len(shape.system or systems) > 1


def lacks(system: SystemFile, configuration: Configuration) -> str | None:
    """Describe what an unused system lacks for a configuration, or return None if nothing is missing."""
    model, own = configuration.device, configuration.local_devices_per_host
    groups = [group for group in system.hosts for _ in group.names()]
    if len(groups) < configuration.hosts:
        return f"it has {pluralize(len(groups), 'host')}"
    able = sum(
        sum(d.count for d in group.devices if d.model == model) >= own
        and (configuration.storage != "nvme" or any(d.kind == "nvme" for d in group.devices))
        for group in groups
    )
    if able < configuration.hosts:
        what = [f"{own} {model}"] * (own > 0) + ["an NVMe drive"] * (configuration.storage == "nvme")
        return f"{able or 'none'} of its {pluralize(len(groups), 'host')} {'have' if able > 1 else 'has'} {' and '.join(what)}"
    pool = Counter[str]()
    for entry in system.pool:
        pool["nvme" if entry.kind == "nvme" else entry.model] += entry.count
    drives = configuration.hosts * (configuration.storage == "fabric-nvme")
    for name, number in (("nvme", drives), (model, configuration.fabric_devices)):
        if number > pool[name]:
            return f"its pool has {pool[name]} {name}, not {number}"
    if configuration.p2p and "p2p" not in load_fabric_kind(str(system.fabric["kind"])).offers:
        return f"nothing sets peer-to-peer on a fabric of kind {system.fabric['kind']}"
    return None


def device_models(system: SystemFile) -> set[str]:
    """Return the models of the devices that a run can use, from all hosts and the pool."""
    own = {device.model for group in system.hosts for device in group.devices if device.kind == "gpu"}
    return own | {entry.model for entry in system.pool if entry.kind == "gpu"}


def _expanded(
    shape: Shape, system: SystemFile, systems: Sequence[SystemFile], source: YamlFile, index: int
) -> list[Configuration | Impossible]:
    place = partial(source.place, "configurations", index)
    known = device_models(system)
    elsewhere = set[str]().union(
        *(device_models(each) for each in systems if each.name in (shape.system or [each.name]))
    )
    expanded: list[Configuration | Impossible] = []
    for model in shape.device or ():
        if model not in elsewhere:
            named = f"system '{system.name}' has" if len(systems) == 1 else "the systems have"
            raise ConfigError(f"{place('device')}: {named} no device '{model}'; {suggest_name(model, elsewhere)}")
        if model not in known:
            expanded.append(Impossible(shape.name or f"configurations with {model}", f"it has no device '{model}'"))
    if len(known) != 1 and not shape.device:
        raise ConfigError(
            f"{place()}: give a 'device': system '{system.name}' has {', '.join(sorted(known)) or 'none'}"
        )
    expanded += [
        each
        for each in _expand(shape, shape.device or tuple(known), place("zip") if shape.zip else place())
        if isinstance(each, Impossible) or each.device in known
    ]
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
            yield Impossible(name_of(configuration), local)
        elif used > count:
            yield Impossible(name_of(configuration), f"a run cannot use {used} of {count} devices of a host")
        else:
            yield configuration


def _local_devices(attach: Attach, count: int, asked: int | None) -> int | str:
    """Return the number of the host's local devices, or the reason why that number is impossible."""
    kind, _, p2p = attach.partition("-")
    local = count if kind == "local" else 0
    if kind == "hybrid":
        local = count // 2 if asked is None else asked
        if not 0 < local < count:
            return f"hybrid needs local and fabric devices, but {local} of {count} devices would be local"
    if p2p and count - local < 2:
        return f"peer-to-peer is between pooled devices of a host, and it would have {count - local}"
    return local


def name_of(configuration: Configuration, with_device: bool = False) -> str:
    """Return the name of a shape that has none, such as '2x4-fabric'."""
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
