"""Checks of a campaign, its systems and its workloads against each other. Each message has file, line, key and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from campaign.common.errors import ConfigError, collect_problems, suggest_name
from campaign.plan.campaign.expand_shapes import combine_values, list_device_models
from campaign.plan.campaign.launch_prefix_rules import find_launch_rules
from campaign.plan.campaign.primary_metric import find_metric_problems
from campaign.spec.campaign_file import CampaignFile
from campaign.spec.cell import AXES, SHAPE_AXES, Configuration
from campaign.spec.expression import parse_expression
from campaign.spec.fields import Precision
from campaign.spec.system_file import DeviceModel, SiteLink, SystemFile
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.command_template import RESERVED_NAMES
from campaign.workloads.protocol import ValidationContext, Workload

MAX_EMULATED_GBIT_PER_S = 8.0
"""Highest rate at which two processes on busy cores can fill an emulated link. A faster link would be limited by the processor."""

_RESERVED_NAME_MESSAGE = "this name is reserved for the campaign; choose another"


@dataclass(frozen=True)
class Sources:
    """Documents from which a campaign was read, for locations in messages."""

    campaign: YamlFile
    systems: Mapping[str, YamlFile]
    workloads: Mapping[str, YamlFile]

    def workload(self, name: str) -> YamlFile:
        return self.workloads.get(name, self.campaign)


def check_campaign(
    file: CampaignFile,
    systems: Sequence[SystemFile],
    workloads: Mapping[str, Workload],
    configurations: Sequence[Configuration],
    sources: Sources,
    *,
    stored: bool = False,
) -> None:
    """Raise one ConfigError that lists all contradictions.

    A stored campaign (`stored`) may have options of an earlier version, which are not checked.
    """
    format_location = sources.campaign.format_location
    problems = [
        *_check_configurations(file, configurations, format_location),
        *_check_precisions(file, workloads, format_location),
        *_check_reference(file, workloads, format_location),
        *_check_requirements(file, workloads, format_location),
        *([] if stored else _check_options(file, workloads, format_location)),
        *_check_expressions(file, format_location),
        *find_metric_problems(file, workloads, format_location),
        *collect_problems(_check_zips, file, configurations, format_location),
    ]
    for system in systems:
        source, system_configurations = (
            sources.systems[system.name],
            [c for c in configurations if c.system == system.name],
        )
        problems += [
            *find_system_problems(system, source, system_configurations),
            *_check_emulation(system, system_configurations, source),
            *_check_launching(system, system_configurations, source),
        ]
        for name, workload in workloads.items():
            problems += (
                []
                if stored
                else find_workload_problems(workload, sources.workload(name), file, system, format_location)
            )
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def find_system_problems(
    system: SystemFile, source: YamlFile, configurations: Sequence[Configuration] = ()
) -> list[str]:
    """List contradictions within a system file, and between the file and the configurations."""
    return [*_check_devices(system, source), *_check_slurm_overrides(system, source, configurations)]


def find_workload_problems(
    workload: Workload,
    source: YamlFile,
    file: CampaignFile | None = None,
    system: SystemFile | None = None,
    format_location: Callable[..., str] = "".format,
) -> list[str]:
    """List contradictions within a workload file, and with campaign and system if they are given."""
    around = ValidationContext(
        format_location=source.format_location,
        format_axis_location=partial(format_location, "axes", "options"),
        axes=file.axes.options if file else {},
        system=system.name if system else "",
        launcher=system.launcher if system else "slurm",
    )
    reserved_places = (
        source.format_location("options", option) for option in workload.options if option in RESERVED_NAMES
    )
    return [*(f"{where}: {_RESERVED_NAME_MESSAGE}" for where in reserved_places), *workload.problems(around)]


def _check_configurations(
    file: CampaignFile, configurations: Sequence[Configuration], format_location: Callable[..., str]
) -> Iterator[str]:
    names = [configuration.name for configuration in configurations]
    measured_names = file.axes.configuration or tuple(names)
    for index, name in enumerate(file.axes.configuration or ()):
        if name not in names:
            where = format_location("axes", "configuration", index)
            yield f"{where}: configuration '{name}' is not declared; {suggest_name(name, names)}"
    system_by_configuration = {configuration.name: configuration.system for configuration in configurations}
    for system, baseline in file.baselines.items():
        where = format_location("baseline", system) if system else format_location("baseline")
        if baseline not in names:
            yield f"{where}: configuration '{baseline}' is not declared; {suggest_name(baseline, names)}"
        elif baseline not in measured_names:
            yield f"{where}: '{baseline}' is not measured; add it to axes.configuration"
        elif system not in ("", system_by_configuration[baseline]):
            yield (
                f"{where}: '{baseline}' is a configuration of system '{system_by_configuration[baseline]}'; name one of "
                f"'{system}'"
            )
        elif not system and len(file.systems) > 1:
            yield f"{where}: name one baseline per system, such as {{{system_by_configuration[baseline]}: {baseline}}}"


def _check_devices(system: SystemFile, source: YamlFile) -> Iterator[str]:
    # A misspelt name would silently turn an emulated device into a GPU.
    models = list_device_models(system)
    models |= {device.model for group in system.hosts for device in group.devices}
    models |= {entry.model for entry in system.pool}
    for model in system.devices:
        if model not in models:
            where = source.format_location("devices", model)
            yield f"{where}: no host and no pool entry has this device; {suggest_name(model, models)}"


def _check_emulation(system: SystemFile, configurations: Sequence[Configuration], source: YamlFile) -> Iterator[str]:
    if system.emulation is None:
        return
    where = source.format_location("emulation")
    yield from _check_paces(system, system.emulation.pace, configurations, source)
    for model in sorted({configuration.device for configuration in configurations}):
        if system.devices.get(model, DeviceModel()).runs_on != "cpu":
            yield (
                f"{where}: GPUs of one machine would bypass emulated links; set `runs_on: cpu` for '{model}' under "
                "devices, or remove emulation"
            )
    needs_by_link = {
        "network": any(configuration.hosts > 1 for configuration in configurations),
        "fabric": any(configuration.fabric_devices_per_host > 0 for configuration in configurations),
        "local": False,
    }
    for name, is_needed in needs_by_link.items():
        link: SiteLink | None = getattr(system.links, name)
        if is_needed and link is None:
            meaning = "spread over hosts" if name == "network" else "attach devices through the fabric"
            yield f"{where}: configurations {meaning}, but links.{name} has no rate; add gb_per_s there"
        elif link is not None and (rate := link.gb_per_s * 8 * system.emulation.scale) > MAX_EMULATED_GBIT_PER_S:
            max_scale = MAX_EMULATED_GBIT_PER_S / 8 / link.gb_per_s
            loopback_remedy = (
                ", or remove links.local, so that the devices of a host share its loopback" if name == "local" else ""
            )
            yield (
                f"{source.format_location('emulation', 'scale')}: links.{name} would be emulated at {rate:.3g} Gbit/s, which one "
                f"machine may not sustain; use at most {max_scale:.2g}{loopback_remedy}"
            )


def _check_paces(
    system: SystemFile,
    paces: Mapping[str, Mapping[Precision, float]],
    configurations: Sequence[Configuration],
    source: YamlFile,
) -> Iterator[str]:
    for model, rates in paces.items():
        where = source.format_location("emulation", "pace", model)
        if model not in (models := list_device_models(system)):
            yield f"{where}: no host and no pool entry has this device; {suggest_name(model, models)}"
        elif system.devices.get(model, DeviceModel()).runs_on != "cpu":
            yield f"{where}: '{model}' is a GPU with its own rate; set `runs_on: cpu` for it under devices, or remove its pace"
        if "fp32" not in rates:
            yield f"{where}: the rate for fp32 is missing, which applies to precisions without their own rate; add `fp32: GFLOP/s`"


def _check_launching(system: SystemFile, configurations: Sequence[Configuration], source: YamlFile) -> Iterator[str]:
    """Yield problems of Slurm settings for devices that are used through a launch prefix.

    Slurm does not move such devices, and the ids of devices differ between the hosts that it could choose.
    """
    if not any(find_launch_rules(system, c.device) for c in configurations):
        return
    if system.slurm.strategy == "dynamic":
        where = source.format_location("slurm", "strategy")
        yield f"{where}: devices behind a launch prefix are not attached, so hosts need no new registration; use static"
    if system.slurm.placement == "scheduler":
        where = source.format_location("slurm", "placement")
        yield f"{where}: fabric.launch names devices by host, so the fabric has to choose the hosts; use pinned"


def _check_precisions(
    file: CampaignFile, workloads: Mapping[str, Workload], format_location: Callable[..., str]
) -> Iterator[str]:
    supported_precisions = {precision for workload in workloads.values() for precision in workload.precisions}
    requests = [(precision, format_location("axes", "precision", i)) for i, precision in enumerate(file.axes.precision)]
    for index, override in enumerate(file.overrides):
        if override.axes:
            where = format_location("overrides", index, "axes", "precision")
            requests += [(precision, where) for precision in override.axes.precision or ()]
    for precision, where in requests:
        if precision not in supported_precisions:
            yield (
                f"{where}: no workload of this campaign supports '{precision}'; "
                f"supported: {', '.join(sorted(supported_precisions))}"
            )


def _check_reference(
    file: CampaignFile, workloads: Mapping[str, Workload], format_location: Callable[..., str]
) -> Iterator[str]:
    if (reference := file.protocol.reference) is None:
        return
    where = partial(format_location, "protocol", "reference")
    workload = workloads.get(reference.workload)
    if workload is None:
        yield (
            f"{where('workload')}: '{reference.workload}' is not a workload of this campaign; "
            f"{suggest_name(reference.workload, workloads)}"
        )
        return
    if reference.precision not in workload.precisions:
        yield (
            f"{where('precision')}: workload '{workload.name}' does not support '{reference.precision}'; supported: "
            f"{', '.join(workload.precisions)}"
        )
    for option in reference.options:
        if option not in workload.variable_options:
            yield (
                f"{where('options', option)}: workload '{workload.name}' has no such option; "
                f"{suggest_name(option, workload.variable_options)}"
            )


def _check_requirements(
    file: CampaignFile, workloads: Mapping[str, Workload], format_location: Callable[..., str]
) -> Iterator[str]:
    for index, requirement in enumerate(file.protocol.require):
        where = partial(format_location, "protocol", "require", index)
        if requirement.workload not in file.axes.workload:
            yield (
                f"{where('workload')}: '{requirement.workload}' is not a workload of this "
                f"campaign; {suggest_name(requirement.workload, workloads)} "
                "(add it to axes.workload)"
            )
            continue
        metric_names = workloads[requirement.workload].reported_metrics if requirement.workload in workloads else None
        if metric_names is not None and requirement.metric not in (*metric_names, "throughput_per_s"):
            yield (
                f"{where('metric')}: workload '{requirement.workload}' reports no such metric; "
                f"{suggest_name(requirement.metric, metric_names)}"
            )
        if requirement.when is not None:
            yield from collect_problems(parse_expression, requirement.when, {*AXES, *file.axes.options}, where("when"))


def _check_options(
    file: CampaignFile, workloads: Mapping[str, Workload], format_location: Callable[..., str]
) -> Iterator[str]:
    for option in file.axes.options:
        where = format_location("axes", "options", option)
        if option in RESERVED_NAMES:
            yield f"{where}: {_RESERVED_NAME_MESSAGE}"
            continue
        for name, workload in workloads.items():
            variable_options = workload.variable_options
            if option not in variable_options:
                yield (
                    f"{where}: workload '{name}' has no such option; {suggest_name(option, variable_options)} "
                    "(an axis may vary options with a default in the workload file, and options of the workload's kind)"
                )


def _check_expressions(file: CampaignFile, format_location: Callable[..., str]) -> Iterator[str]:
    names = {*AXES, *file.axes.options}
    early = {*SHAPE_AXES, "configuration", "workload"}
    for index, exclusion in enumerate(file.exclude):
        yield from collect_problems(parse_expression, exclusion.when, names, format_location("exclude", index, "when"))
    for index, override in enumerate(file.overrides):
        usable_names = early if override.axes else names
        yield from collect_problems(
            parse_expression, override.when, usable_names, format_location("overrides", index, "when")
        )


def _check_slurm_overrides(
    system: SystemFile, source: YamlFile, configurations: Sequence[Configuration]
) -> Iterator[str]:
    def evaluate_on_all(text: str, where: str) -> None:
        when = parse_expression(text, SHAPE_AXES, where)
        for configuration in configurations:
            when(configuration.axes())

    for index, override in enumerate(system.slurm.overrides):
        yield from collect_problems(
            evaluate_on_all, override.when, source.format_location("slurm", "overrides", index, "when")
        )


def _check_zips(
    file: CampaignFile, configurations: Sequence[Configuration], format_location: Callable[..., str]
) -> None:
    axes: dict[str, Sequence[Any]] = {
        "configuration": file.axes.configuration or configurations,
        "workload": file.axes.workload,
        "batch": file.axes.batch,
        "precision": file.axes.precision,
        **file.axes.options,
    }
    next(combine_values(axes, file.zip, format_location("zip") if file.zip else format_location("axes")), None)
