"""Checks of a campaign, its systems and its workloads against each other. Each problem has file, line, key and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from campaign.common.errors import ConfigError, collect_problems, suggest_name
from campaign.plan.campaign.expand_shapes import device_models, product
from campaign.plan.campaign.launch_prefix_rules import rules_of
from campaign.plan.campaign.primary_metric import metric_problems
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.cell import AXES, SHAPE_AXES, Configuration
from campaign.spec.expression import parse
from campaign.spec.fields import Precision
from campaign.spec.system_file import DeviceModel, SiteLink, SystemFile
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.command_template import RESERVED
from campaign.workloads.protocol import Surroundings, Workload

FASTEST_GBIT_PER_S = 8.0
"""Up to here two processes on a busy core each fill an emulated link; a faster one would be slowed by the processor instead."""

_RESERVED = "this name is reserved for the campaign; choose another"


@dataclass(frozen=True)
class Sources:
    """The documents behind a campaign, for places in messages."""

    campaign: YamlFile
    systems: Mapping[str, YamlFile]
    workloads: Mapping[str, YamlFile]

    def workload(self, name: str) -> YamlFile:
        return self.workloads.get(name, self.campaign)


def check(
    file: CampaignFile,
    systems: Sequence[SystemFile],
    workloads: Mapping[str, Workload],
    configurations: Sequence[Configuration],
    sources: Sources,
    *,
    stored: bool = False,
) -> None:
    """Raise one ConfigError with everything that does not fit together.

    Args:
        stored: whether the files are those of a stored campaign, which may have options of an earlier version.
    """
    place = sources.campaign.place
    problems = [
        *_configurations(file, configurations, place),
        *_precisions(file, workloads, place),
        *_reference(file, workloads, place),
        *_requirements(file, workloads, place),
        *([] if stored else _options(file, workloads, place)),
        *_expressions(file, place),
        *metric_problems(file, workloads, place),
        *collect_problems(_zips, file, configurations, place),
    ]
    for system in systems:
        source, own = sources.systems[system.name], [c for c in configurations if c.system == system.name]
        problems += [
            *system_problems(system, source, own),
            *_emulation(system, own, source),
            *_launching(system, own, source),
        ]
        for name, workload in workloads.items():
            problems += [] if stored else workload_problems(workload, sources.workload(name), file, system, place)
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def system_problems(system: SystemFile, source: YamlFile, configurations: Sequence[Configuration] = ()) -> list[str]:
    """List contradictions within a system file, and with the configurations if they are given."""
    return [*_devices(system, source), *_slurm_overrides(system, source, configurations)]


def workload_problems(
    workload: Workload,
    source: YamlFile,
    file: CampaignFile | None = None,
    system: SystemFile | None = None,
    place: Callable[..., str] = "".format,
) -> list[str]:
    """List contradictions within a workload file, and with campaign and system if they are given."""
    around = Surroundings(
        place=source.place,
        axis_place=partial(place, "axes", "options"),
        axes=file.axes.options if file else {},
        system=system.name if system else "",
        launcher=system.launcher if system else "slurm",
    )
    reserved = (source.place("options", option) for option in workload.options if option in RESERVED)
    return [*(f"{where}: {_RESERVED}" for where in reserved), *workload.problems(around)]


def _configurations(
    file: CampaignFile, configurations: Sequence[Configuration], place: Callable[..., str]
) -> Iterator[str]:
    names = [configuration.name for configuration in configurations]
    chosen = file.axes.configuration or tuple(names)
    for index, name in enumerate(file.axes.configuration or ()):
        if name not in names:
            where = place("axes", "configuration", index)
            yield f"{where}: configuration '{name}' is not declared; {suggest_name(name, names)}"
    of = {configuration.name: configuration.system for configuration in configurations}
    for system, baseline in file.baselines.items():
        where = place("baseline", system) if system else place("baseline")
        if baseline not in names:
            yield f"{where}: configuration '{baseline}' is not declared; {suggest_name(baseline, names)}"
        elif baseline not in chosen:
            yield f"{where}: '{baseline}' is not measured; add it to axes.configuration"
        elif system not in ("", of[baseline]):
            yield f"{where}: '{baseline}' is on system '{of[baseline]}'; name one on '{system}'"
        elif not system and len(file.systems) > 1:
            yield f"{where}: give one for each system, such as {{{of[baseline]}: {baseline}}}"


def _devices(system: SystemFile, source: YamlFile) -> Iterator[str]:
    # A name that is misspelt here would silently make an emulated device a GPU.
    known = device_models(system)
    known |= {device.model for group in system.hosts for device in group.devices}
    known |= {entry.model for entry in system.pool}
    for model in system.devices:
        if model not in known:
            where = source.place("devices", model)
            yield f"{where}: no host and no pool entry has this device; {suggest_name(model, known)}"


def _emulation(system: SystemFile, configurations: Sequence[Configuration], source: YamlFile) -> Iterator[str]:
    if system.emulation is None:
        return
    where = source.place("emulation")
    yield from _paces(system, system.emulation.pace, configurations, source)
    for model in sorted({configuration.device for configuration in configurations}):
        if system.devices.get(model, DeviceModel()).runs_on != "cpu":
            yield (
                f"{where}: GPUs of one machine would bypass emulated links; set `runs_on: cpu` for '{model}' under "
                "devices, or remove emulation"
            )
    needed = {
        "network": any(configuration.hosts > 1 for configuration in configurations),
        "fabric": any(configuration.fabric_devices_per_host > 0 for configuration in configurations),
        "local": False,
    }
    for name, asked in needed.items():
        link: SiteLink | None = getattr(system.links, name)
        if asked and link is None:
            meaning = "spread over hosts" if name == "network" else "attach devices through the fabric"
            yield f"{where}: configurations {meaning}, but links.{name} has no rate; add gb_per_s there"
        elif link is not None and (rate := link.gb_per_s * 8 * system.emulation.scale) > FASTEST_GBIT_PER_S:
            most = FASTEST_GBIT_PER_S / 8 / link.gb_per_s
            free = ", or remove links.local, and devices of a host share its loopback" if name == "local" else ""
            yield (
                f"{source.place('emulation', 'scale')}: links.{name} would be emulated at {rate:.3g} Gbit/s, which one "
                f"machine may not sustain; use at most {most:.2g}{free}"
            )


def _paces(
    system: SystemFile,
    paces: Mapping[str, Mapping[Precision, float]],
    configurations: Sequence[Configuration],
    source: YamlFile,
) -> Iterator[str]:
    for model, rates in paces.items():
        where = source.place("emulation", "pace", model)
        if model not in (known := device_models(system)):
            yield f"{where}: no host and no pool entry has this device; {suggest_name(model, known)}"
        elif system.devices.get(model, DeviceModel()).runs_on != "cpu":
            yield f"{where}: '{model}' is a GPU and has its own rate; set `runs_on: cpu` for it under devices, or remove its pace"
        if "fp32" not in rates:
            yield f"{where}: has no rate for fp32, which every precision without a rate of its own has; add `fp32: GFLOP/s`"


def _launching(system: SystemFile, configurations: Sequence[Configuration], source: YamlFile) -> Iterator[str]:
    """Yield problems of Slurm settings for devices that are used through a launch prefix.

    Slurm moves no such device, and cannot know the ids on the host that it would choose.
    """
    if not any(rules_of(system, c.device) for c in configurations):
        return
    if system.slurm.strategy == "dynamic":
        where = source.place("slurm", "strategy")
        yield f"{where}: devices that are not attached need no new registration of hosts; use static"
    if system.slurm.placement == "scheduler":
        where = source.place("slurm", "placement")
        yield f"{where}: fabric.launch names devices by host, so the fabric has to choose the hosts; use pinned"


def _precisions(file: CampaignFile, workloads: Mapping[str, Workload], place: Callable[..., str]) -> Iterator[str]:
    supported = {precision for workload in workloads.values() for precision in workload.precisions}
    asked = [(precision, place("axes", "precision", i)) for i, precision in enumerate(file.axes.precision)]
    for index, override in enumerate(file.overrides):
        if override.axes:
            where = place("overrides", index, "axes", "precision")
            asked += [(precision, where) for precision in override.axes.precision or ()]
    for precision, where in asked:
        if precision not in supported:
            yield (
                f"{where}: no workload of this campaign supports '{precision}'; supported: {', '.join(sorted(supported))}"
            )


def _reference(file: CampaignFile, workloads: Mapping[str, Workload], place: Callable[..., str]) -> Iterator[str]:
    if (asked := file.protocol.reference) is None:
        return
    where = partial(place, "protocol", "reference")
    workload = workloads.get(asked.workload)
    if workload is None:
        yield f"{where('workload')}: '{asked.workload}' is no workload of this campaign; {suggest_name(asked.workload, workloads)}"
        return
    if asked.precision not in workload.precisions:
        yield (
            f"{where('precision')}: workload '{workload.name}' does not support '{asked.precision}'; supported: "
            f"{', '.join(workload.precisions)}"
        )
    for option in asked.options:
        if option not in workload.variable_options:
            yield (
                f"{where('options', option)}: workload '{workload.name}' has no such option; "
                f"{suggest_name(option, workload.variable_options)}"
            )


def _requirements(file: CampaignFile, workloads: Mapping[str, Workload], place: Callable[..., str]) -> Iterator[str]:
    for index, each in enumerate(file.protocol.require):
        where = partial(place, "protocol", "require", index)
        if each.workload not in file.axes.workload:
            yield (
                f"{where('workload')}: '{each.workload}' is no workload of this campaign; {suggest_name(each.workload, workloads)} "
                "(add it to axes.workload)"
            )
            continue
        printed = workloads[each.workload].printed_metrics if each.workload in workloads else None
        if printed is not None and each.metric not in (*printed, "throughput_per_s"):
            yield f"{where('metric')}: workload '{each.workload}' gives no such number; {suggest_name(each.metric, printed)}"
        if each.when is not None:
            yield from collect_problems(parse, each.when, {*AXES, *file.axes.options}, where("when"))


def _options(file: CampaignFile, workloads: Mapping[str, Workload], place: Callable[..., str]) -> Iterator[str]:
    for option in file.axes.options:
        where = place("axes", "options", option)
        if option in RESERVED:
            yield f"{where}: {_RESERVED}"
            continue
        for name, workload in workloads.items():
            known = workload.variable_options
            if option not in known:
                yield (
                    f"{where}: workload '{name}' has no such option; {suggest_name(option, known)} "
                    "(an axis varies options with a default in the workload file, and options that every workload of its kind has)"
                )


def _expressions(file: CampaignFile, place: Callable[..., str]) -> Iterator[str]:
    names = {*AXES, *file.axes.options}
    early = {*SHAPE_AXES, "configuration", "workload"}
    for index, exclusion in enumerate(file.exclude):
        yield from collect_problems(parse, exclusion.when, names, place("exclude", index, "when"))
    for index, override in enumerate(file.overrides):
        known = early if override.axes else names
        yield from collect_problems(parse, override.when, known, place("overrides", index, "when"))


def _slurm_overrides(system: SystemFile, source: YamlFile, configurations: Sequence[Configuration]) -> Iterator[str]:
    def decide(text: str, where: str) -> None:
        when = parse(text, SHAPE_AXES, where)
        for configuration in configurations:
            when(configuration.axes())

    for index, override in enumerate(system.slurm.overrides):
        yield from collect_problems(decide, override.when, source.place("slurm", "overrides", index, "when"))


def _zips(file: CampaignFile, configurations: Sequence[Configuration], place: Callable[..., str]) -> None:
    axes: dict[str, Sequence[Any]] = {
        "configuration": file.axes.configuration or configurations,
        "workload": file.axes.workload,
        "batch": file.axes.batch,
        "precision": file.axes.precision,
        **file.axes.options,
    }
    next(product(axes, file.zip, place("zip") if file.zip else place("axes")), None)
