"""Expansion of shapes (the hardware in a campaign file) to configurations, and of lists to combinations. Pure."""

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
from campaign.plan.campaign.load import collect_results
from campaign.spec.campaign_file import Shape
from campaign.spec.cell import Attach, Configuration
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import YamlFile

MAX_COMBINATIONS = 1_000_000  # More combinations are probably a mistake, and the plan would not fit into memory.


def combine_values(
    axes: Mapping[str, Sequence[Any]], zips: Sequence[Sequence[str]], where: str
) -> Iterator[dict[str, Any]]:
    """Yield all combinations of axis values. The axes of one zip advance together.

    Raises ConfigError for an invalid zip, or if there are too many combinations.

    Args:
        axes: values of each axis.
        zips: names of the axes of each zip.
        where: place in the file, for messages.
    """
    groups: list[list[dict[str, Any]]] = []
    zipped_names: set[str] = set()
    for names in zips:
        for name in names:
            if name not in axes:
                raise ConfigError(f"{where}: '{name}' is not an axis here; choose from: {', '.join(axes)}")
            if name in zipped_names:
                raise ConfigError(f"{where}: '{name}' appears in two zips; remove it from one of them")
            zipped_names.add(name)
        lengths = {name: len(axes[name]) for name in names}
        if len(set(lengths.values())) > 1:
            lengths_text = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ConfigError(
                f"{where}: the lists must have the same length, but {lengths_text}; give all lists the same number of values"
            )
    grouped_names: set[str] = set()
    for name, values in axes.items():
        if name in grouped_names:
            continue
        group_names = next((names for names in zips if name in names), (name,))
        grouped_names.update(group_names)
        groups.append([{n: axes[n][index] for n in group_names} for index in range(len(values))])
    count = math.prod(len(group) for group in groups)
    if count > MAX_COMBINATIONS:
        raise ConfigError(f"{where}: the lists have {count} combinations; at most {MAX_COMBINATIONS} are allowed")
    for combination in itertools.product(*groups):
        values_by_axis: dict[str, Any] = {}
        for part in combination:
            values_by_axis.update(part)
        yield values_by_axis


@dataclass(frozen=True)
class Impossible:
    """A combination of a shape's lists that cannot exist.

    Args:
        shape: name of the combination.
        why: reason.
        of: position of the shape in the file.
    """

    shape: str
    why: str
    of: int = 0


@dataclass(frozen=True)
class ShapeExpansion:
    """Configurations that result from shapes, and combinations that are impossible."""

    configurations: tuple[Configuration, ...]
    impossible: tuple[Impossible, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """Positions in the file of the shapes that result in a configuration, by its name."""

    def warn_of_repeated_shapes(self, format_location: Callable[..., str]) -> Iterator[str]:
        """Yield a warning per shape that only repeats configurations of earlier shapes."""
        for index in sorted({index for positions in self.shapes.values() for index in positions}):
            first = {name: positions[0] for name, positions in self.shapes.items() if index in positions}
            if index not in first.values():
                name, before = next(iter(first.items()))
                where = format_location("configurations", index)
                yield (
                    f"{where}: '{name}' is the same hardware as in configurations.{before}, so it is measured only once; remove "
                    "one of them"
                )


def expand_shapes(shapes: Sequence[Shape], systems: Sequence[SystemFile], source: YamlFile) -> ShapeExpansion:
    """Expand all shapes to configurations. Hardware that is declared twice results in one configuration.

    With several systems, a shape results in one configuration on each system that can provide it, or on the systems that it
    names. Names then begin with the name of the system, unless a shape has a name and names one system. Raises ConfigError, which
    lists every invalid shape.

    Args:
        shapes: shapes of the campaign file.
        systems: systems of the campaign.
        source: document of the campaign, for locations in messages.
    """
    names = [system.name for system in systems]
    for index, shape in enumerate(shapes):
        if unknown := sorted(set(shape.system or ()) - set(names)):
            where = source.format_location("configurations", index, "system")
            raise ConfigError(
                f"{where}: '{unknown[0]}' is not a system of the campaign; {suggest_name(unknown[0], names)}"
            )
    expansions = collect_results(partial(_expand_on_system, shapes, system, systems, source) for system in systems)
    where = source.format_location("configurations")
    for system, expansion in zip(systems, expansions, strict=True):
        if not expansion.configurations:
            system_text = f" on system '{system.name}'" if len(systems) > 1 else ""
            reasons = (
                "; ".join(f"{item.shape}: {item.why}" for item in expansion.impossible) or "no shape names this system"
            )
            raise ConfigError(f"{where}: no configuration is possible{system_text}: {reasons}")
    impossible = tuple(item for expansion in expansions for item in expansion.impossible)
    used_positions = {index for expansion in expansions for indexes in expansion.shapes.values() for index in indexes}
    for index in set(range(len(shapes))) - used_positions if len(systems) > 1 else ():
        reasons = "; ".join(f"{item.shape}: {item.why}" for item in impossible if item.of == index)
        raise ConfigError(f"{source.format_location('configurations', index)}: no system has this hardware: {reasons}")
    configurations = tuple(item for expansion in expansions for item in expansion.configurations)
    if duplicates := [name for name, count in Counter(item.name for item in configurations).items() if count > 1]:
        position = next((index for index, shape in enumerate(shapes) if shape.name == duplicates[0]), None)
        where = (
            source.format_location("configurations")
            if position is None
            else source.format_location("configurations", position, "name")
        )
        raise ConfigError(f"{where}: two different shapes have the name {', '.join(duplicates)}; rename one")
    return ShapeExpansion(
        configurations,
        impossible,
        {name: places for expansion in expansions for name, places in expansion.shapes.items()},
    )


def _expand_on_system(
    shapes: Sequence[Shape], system: SystemFile, systems: Sequence[SystemFile], source: YamlFile
) -> ShapeExpansion:
    """Expand the shapes to configurations on one of the systems."""
    prefix = f"{system.name}-" if len(systems) > 1 else ""
    shapes_here = [
        (index, shape) for index, shape in enumerate(shapes) if system.name in (shape.system or [system.name])
    ]
    expansions = collect_results(
        partial(_expand_shape, shape, system, systems, source, index) for index, shape in shapes_here
    )
    by_shape: dict[str, Configuration] = {}
    names: dict[str, str] = {}
    impossible: list[Impossible] = []
    positions: defaultdict[str, dict[int, None]] = defaultdict(dict)
    for (index, shape), configurations in zip(shapes_here, expansions, strict=True):
        for configuration in configurations:
            if (
                not isinstance(configuration, Impossible)
                and _may_be_left_out(shape, systems)
                and (reason := describe_lack(system, configuration))
            ):
                configuration = Impossible(shape.name or default_name(configuration), reason)
            if isinstance(configuration, Impossible):
                impossible.append(replace(configuration, shape=f"{prefix}{configuration.shape}", of=index))
                continue
            key = hash_document(configuration.shape())
            positions[key][index] = None
            if shape.name and key in names and by_shape[key].name != shape.name:
                where = source.format_location("configurations", index)
                raise ConfigError(f"{where}: '{shape.name}' is the same hardware as '{by_shape[key].name}'; remove one")
            if shape.name or key not in by_shape:
                by_shape[key] = configuration
            if shape.name:
                names[key] = shape.name if len(shape.system or ()) == 1 else f"{prefix}{shape.name}"
    several = len({configuration.device for configuration in by_shape.values()}) > 1
    result = {
        key: replace(
            configuration_of_key,
            name=names.get(key) or f"{prefix}{default_name(configuration_of_key, several)}",
            system=system.name,
        )
        for key, configuration_of_key in by_shape.items()
    }
    places = {result[key].name: tuple(indexes) for key, indexes in positions.items()}
    return ShapeExpansion(tuple(result.values()), tuple(impossible), places)


def _may_be_left_out(shape: Shape, systems: Sequence[SystemFile]) -> bool:
    """Return whether a shape may be left out on a system that lacks its hardware.

    This holds for shapes of several systems. The plan lists the systems on which they are not measured.
    """
    return len(systems) > 1 and len(shape.system or systems) > 1


def describe_lack(system: SystemFile, configuration: Configuration) -> str | None:
    """Describe the hardware missing from an unused system for a configuration, or return None if nothing is missing."""
    model, local_count = configuration.device, configuration.local_devices_per_host
    groups = [group for group in system.hosts for _ in group.list_names()]
    if len(groups) < configuration.hosts:
        return f"it has only {pluralize(len(groups), 'host')}"
    able_hosts = sum(
        sum(d.count for d in group.devices if d.model == model) >= local_count
        and (configuration.storage != "nvme" or any(d.kind == "nvme" for d in group.devices))
        for group in groups
    )
    if able_hosts < configuration.hosts:
        requirements = [f"{local_count} {model}"] * (local_count > 0) + ["an NVMe drive"] * (
            configuration.storage == "nvme"
        )
        return (
            f"{able_hosts or 'none'} of its {pluralize(len(groups), 'host')} "
            f"{'have' if able_hosts > 1 else 'has'} {' and '.join(requirements)}"
        )
    pool = Counter[str]()
    for entry in system.pool:
        pool["nvme" if entry.kind == "nvme" else entry.model] += entry.count
    drives = configuration.hosts * (configuration.storage == "fabric-nvme")
    for name, number in (("nvme", drives), (model, configuration.fabric_devices)):
        if number > pool[name]:
            return f"its pool has {pool[name]} {name}, but {number} are needed"
    if configuration.p2p and "p2p" not in load_fabric_kind(str(system.fabric["kind"])).offers:
        return f"a fabric of kind {system.fabric['kind']} cannot set peer-to-peer"
    return None


def list_device_models(system: SystemFile) -> set[str]:
    """Return the models of the devices that a run can use, from all hosts and the pool."""
    built_in = {device.model for group in system.hosts for device in group.devices if device.kind == "gpu"}
    return built_in | {entry.model for entry in system.pool if entry.kind == "gpu"}


def _expand_shape(
    shape: Shape, system: SystemFile, systems: Sequence[SystemFile], source: YamlFile, index: int
) -> list[Configuration | Impossible]:
    format_location = partial(source.format_location, "configurations", index)
    models = list_device_models(system)
    all_models = set[str]().union(
        *(
            list_device_models(configuration)
            for configuration in systems
            if configuration.name in (shape.system or [configuration.name])
        )
    )
    configurations: list[Configuration | Impossible] = []
    for model in shape.device or ():
        if model not in all_models:
            subject = f"system '{system.name}' has" if len(systems) == 1 else "the systems have"
            raise ConfigError(
                f"{format_location('device')}: {subject} no device '{model}'; {suggest_name(model, all_models)}"
            )
        if model not in models:
            configurations.append(
                Impossible(shape.name or f"configurations with {model}", f"it has no device '{model}'")
            )
    if len(models) != 1 and not shape.device:
        raise ConfigError(
            f"{format_location()}: the key 'device' is missing; system '{system.name}' has "
            f"{', '.join(sorted(models)) or 'no devices'}"
        )
    configurations += [
        configuration
        for configuration in _combine_shape_values(
            shape, shape.device or tuple(models), format_location("zip") if shape.zip else format_location()
        )
        if isinstance(configuration, Impossible) or configuration.device in models
    ]
    if shape.name and len(configurations) > 1:
        raise ConfigError(
            f"{format_location('name')}: '{shape.name}' would name "
            f"{len(configurations)} configurations; remove the name or the lists"
        )
    return configurations


def _combine_shape_values(shape: Shape, devices: Sequence[str], where: str) -> Iterator[Configuration | Impossible]:
    axes: dict[str, Sequence[Any]] = {
        "hosts": shape.hosts,
        "devices_per_host": shape.devices_per_host,
        "devices_used": shape.devices_used,
        "device": devices,
        "attach": shape.attach,
        "local_devices_per_host": shape.local_devices_per_host or (None,),
        "storage": shape.storage,
    }
    for values in combine_values(axes, shape.zip, where):
        count = values["devices_per_host"]
        used_count = count if values["devices_used"] == "all" else values["devices_used"]
        local = _count_local_devices(values["attach"], count, values["local_devices_per_host"])
        configuration = Configuration(
            name=shape.name or "",
            hosts=values["hosts"],
            devices_per_host=count,
            local_devices_per_host=local if isinstance(local, int) else 0,
            devices_used=used_count,
            device=values["device"],
            attach=values["attach"],
            storage=values["storage"],
        )
        if isinstance(local, str):
            yield Impossible(default_name(configuration), local)
        elif used_count > count:
            yield Impossible(default_name(configuration), f"a run cannot use {used_count} of {count} devices of a host")
        else:
            yield configuration


def _count_local_devices(attach: Attach, count: int, local_count: int | None) -> int | str:
    """Return the number of a host's local devices, or the reason why that number is impossible."""
    kind, _, p2p = attach.partition("-")
    local = count if kind == "local" else 0
    if kind == "hybrid":
        local = count // 2 if local_count is None else local_count
        if not 0 < local < count:
            return f"hybrid needs local and fabric devices, but {local} of {count} devices would be local"
    if p2p and count - local < 2:
        return f"peer-to-peer needs two pooled devices per host, but a host would have {count - local}"
    return local


def default_name(configuration: Configuration, with_device: bool = False) -> str:
    """Return the default name of a configuration, such as '2x4-fabric'."""
    used_prefix = (
        f"{configuration.devices_used}of" if configuration.devices_used != configuration.devices_per_host else ""
    )
    parts = [f"{configuration.hosts}x{used_prefix}{configuration.devices_per_host}", configuration.attach]
    local = configuration.local_devices_per_host
    if configuration.attach.startswith("hybrid") and local * 2 != configuration.devices_per_host:
        parts[-1] += str(local)
    if configuration.storage != "local":
        parts.append(configuration.storage)
    if with_device:
        parts.append(configuration.device)
    return "-".join(parts)
