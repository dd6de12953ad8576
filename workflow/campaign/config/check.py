"""A campaign's nouns checked against each other. Every check gives all that it finds, with file, line, key and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from campaign.config.campaign_file import CampaignFile
from campaign.config.load import gathered
from campaign.config.product import product
from campaign.config.remote_devices import rules_of
from campaign.config.shapes import device_models
from campaign.config.system_file import DeviceModel, Link, SystemFile
from campaign.config.yaml_file import YamlFile
from campaign.documents.cell import AXES, SHAPE_AXES, Configuration
from campaign.documents.expression import parse
from campaign.errors import ConfigError, nearest
from campaign.workloads.template import RESERVED, check_template
from campaign.workloads.trainer.options import COMMON_OPTIONS
from campaign.workloads.trainer.spec import model_info, resolve_options
from campaign.workloads.workload_file import (
    CommandWorkload,
    Software,
    SyntheticWorkload,
    TrainWorkload,
    WorkloadFile,
)

Check = Callable[[], object]
FASTEST_GBIT_PER_S = 8.0
"""Up to here two processes on a busy core each fill an emulated link; a faster one would be slowed by the processor instead."""


@dataclass(frozen=True)
class Sources:
    """The documents behind a campaign, for places in messages."""

    campaign: YamlFile
    system: YamlFile
    workloads: Mapping[str, YamlFile]

    def workload(self, name: str) -> YamlFile:
        return self.workloads.get(name, self.campaign)


def check(
    file: CampaignFile,
    system: SystemFile,
    workloads: Mapping[str, WorkloadFile],
    configurations: Sequence[Configuration],
    sources: Sources,
) -> None:
    """Raise one ConfigError with everything that does not fit together."""
    place = sources.campaign.place
    checks: list[Check] = [
        *_configurations(file, configurations, place),
        *_devices(system, sources.system),
        *_emulation(system, configurations, sources.system),
        *_launching(system, configurations, sources.system),
        *_precisions(file, workloads, place),
        *_options(file, workloads, sources),
        *_expressions(file, place),
        partial(_zips, file, configurations, place),
    ]
    for name, workload in workloads.items():
        source = sources.workload(name)
        if isinstance(workload, TrainWorkload):
            checks += _train(file, workload, sources)
        elif isinstance(workload, CommandWorkload):
            checks += _command(workload, source, system)
        else:
            checks += _synthetic(workload, source)
    gathered(checks)


def _refuse(message: str) -> None:
    raise ConfigError(message)


def _configurations(
    file: CampaignFile, configurations: Sequence[Configuration], place: Callable[..., str]
) -> Iterator[Check]:
    names = [configuration.name for configuration in configurations]
    chosen = file.axes.configuration or tuple(names)
    for index, name in enumerate(file.axes.configuration or ()):
        if name not in names:
            where = place("axes", "configuration", index)
            yield partial(_refuse, f"{where}: no configuration '{name}' is declared; {nearest(name, names)}")
    if file.baseline and file.baseline not in names:
        yield partial(
            _refuse, f"{place('baseline')}: no configuration '{file.baseline}'; {nearest(file.baseline, names)}"
        )
    elif file.baseline and file.baseline not in chosen:
        yield partial(_refuse, f"{place('baseline')}: '{file.baseline}' is not measured; add it to axes.configuration")


def _devices(system: SystemFile, source: YamlFile) -> Iterator[Check]:
    # A name that is misspelt here would silently make an emulated device a GPU.
    known = device_models(system)
    known |= {device.model for group in system.hosts for device in group.devices}
    known |= {entry.model for entry in system.pool}
    for model in system.devices:
        if model not in known:
            where = source.place("devices", model)
            yield partial(_refuse, f"{where}: neither a host nor the pool has this device; {nearest(model, known)}")


def _emulation(system: SystemFile, configurations: Sequence[Configuration], source: YamlFile) -> Iterator[Check]:
    if system.emulation is None:
        return
    where = source.place("emulation")
    for model in sorted({configuration.device for configuration in configurations}):
        if system.devices.get(model, DeviceModel()).runs_on != "cpu":
            yield partial(
                _refuse,
                f"{where}: GPUs of one machine reach each other past emulated links; say that '{model}' has `runs_on: cpu` under "
                "devices, or remove emulation",
            )
    needed = {
        "network": any(configuration.hosts > 1 for configuration in configurations),
        "fabric": any(configuration.fabric_devices_per_host > 0 for configuration in configurations),
    }
    for name, asked in needed.items():
        link: Link | None = getattr(system.links, name)
        if asked and link is None:
            meaning = "spread over hosts" if name == "network" else "attach devices through the fabric"
            yield partial(
                _refuse, f"{where}: configurations {meaning}, and links.{name} gives no rate; add gb_per_s there"
            )
        elif link is not None and (rate := link.gb_per_s * 8 * system.emulation.scale) > FASTEST_GBIT_PER_S:
            most = FASTEST_GBIT_PER_S / 8 / link.gb_per_s
            yield partial(
                _refuse,
                f"{source.place('emulation', 'scale')}: links.{name} would be emulated at {rate:.3g} Gbit/s, which a machine may "
                f"not keep up with; at most {most:.2g}",
            )


def _launching(system: SystemFile, configurations: Sequence[Configuration], source: YamlFile) -> Iterator[Check]:
    """Slurm's part in devices that nothing attaches: it moves none, and cannot know which host's ids it would choose."""
    if not any(rules_of(system, model) for model in {configuration.device for configuration in configurations}):
        return
    if system.slurm.strategy == "dynamic":
        where = source.place("slurm", "strategy")
        yield partial(_refuse, f"{where}: hosts need no new registration for devices that nothing attaches; use static")
    if system.slurm.placement == "scheduler":
        where = source.place("slurm", "placement")
        yield partial(
            _refuse, f"{where}: devices are known by host (fabric.launch), so that the fabric chooses; use pinned"
        )


def _precisions(
    file: CampaignFile, workloads: Mapping[str, WorkloadFile], place: Callable[..., str]
) -> Iterator[Check]:
    supported = {precision for workload in workloads.values() for precision in workload.precisions}
    asked = [(precision, place("axes", "precision", i)) for i, precision in enumerate(file.axes.precision)]
    for index, override in enumerate(file.overrides):
        if override.axes:
            where = place("overrides", index, "axes", "precision")
            asked += [(precision, where) for precision in override.axes.precision or ()]
    for precision, where in asked:
        if precision not in supported:
            yield partial(
                _refuse,
                f"{where}: no workload of this campaign supports '{precision}'; supported: {', '.join(sorted(supported))}",
            )


def _options(file: CampaignFile, workloads: Mapping[str, WorkloadFile], sources: Sources) -> Iterator[Check]:
    for name, workload in workloads.items():
        for option in workload.options:
            if option in RESERVED:
                where = sources.workload(name).place("options", option)
                yield partial(_refuse, f"{where}: this name is taken by the campaign itself; choose another")
    for option in file.axes.options:
        where = sources.campaign.place("axes", "options", option)
        if option in RESERVED:
            yield partial(_refuse, f"{where}: this name is taken by the campaign itself; choose another")
            continue
        for name, workload in workloads.items():
            known = {*workload.options, *(COMMON_OPTIONS if isinstance(workload, TrainWorkload) else ())}
            if option not in known:
                yield partial(
                    _refuse,
                    f"{where}: workload '{name}' has no such option; {nearest(option, known)} "
                    f"(an axis varies options that the workload file gives a default, and those that every `train` workload has)",
                )


def _expressions(file: CampaignFile, place: Callable[..., str]) -> Iterator[Check]:
    names = {*AXES, *file.axes.options}
    early = {*SHAPE_AXES, "configuration", "workload"}
    for index, exclusion in enumerate(file.exclude):
        yield partial(parse, exclusion.when, names, place("exclude", index, "when"))
    for index, override in enumerate(file.overrides):
        known = early if override.axes else names
        yield partial(parse, override.when, known, place("overrides", index, "when"))


def _zips(file: CampaignFile, configurations: Sequence[Configuration], place: Callable[..., str]) -> None:
    axes: dict[str, Sequence[Any]] = {
        "configuration": file.axes.configuration or configurations,
        "workload": file.axes.workload,
        "batch": file.axes.batch,
        "precision": file.axes.precision,
        **file.axes.options,
    }
    next(product(axes, file.zip, place("zip") if file.zip else place("axes")), None)


def _train(file: CampaignFile, workload: TrainWorkload, sources: Sources) -> Iterator[Check]:
    source = sources.workload(workload.name)
    try:
        model_info(workload.model)
    except ConfigError as error:
        yield partial(_refuse, f"{source.place('model')}: {error}")
        return
    for option, value in workload.options.items():
        yield partial(_train_option, workload.model, option, value, source.place("options", option))
    for option, values in file.axes.options.items():
        for index, value in enumerate(values):
            where = sources.campaign.place("axes", "options", option, index)
            yield partial(_train_option, workload.model, option, value, where)


def _train_option(model: str, option: str, value: Any, where: str) -> None:
    try:
        resolve_options(model, {option: value})
    except ConfigError as error:
        known = model_info(model).options
        hint = f"; {nearest(option, known)}" if option not in known else ""
        raise ConfigError(f"{where}: {error}{hint}") from None


def _command(workload: CommandWorkload, source: YamlFile, system: SystemFile) -> Iterator[Check]:
    known = RESERVED | set(workload.options)
    for place, text in _templates(workload):
        yield partial(check_template, text, known, source.place(*place))
    if workload.software is not None:
        for place, text in _software_templates(workload.software):
            # The same for every cell of an option's value, so that it is looked at once.
            yield partial(check_template, text, workload.options, source.place("software", *place))
    program = workload.command[0]
    if "/" in program and not program.startswith(("/", "{")):
        yield partial(
            _refuse,
            f"{source.place('command', 0)}: '{program}' is a relative path, but every run starts in a directory of its own; "
            "give the full path, or a program on the PATH",
        )
    if workload.launch == "srun" and system.launcher == "local":
        yield partial(
            _refuse,
            f"{source.place('launch')}: srun starts ranks in a job of Slurm, and on '{system.name}' runs are started with "
            "`launcher: local`; use a system (or a profile) with `launcher: slurm`, or `launch: per_rank`, mpirun or torchrun",
        )


def _templates(workload: CommandWorkload) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Place and text of whatever is filled in with the values of a run."""
    yield from ((("command", index), text) for index, text in enumerate(workload.command))
    yield from ((("launch_options", index), text) for index, text in enumerate(workload.launch_options))
    yield from ((("environment", name), text) for name, text in workload.environment.items())
    for precision, arguments in workload.precision_arguments.items():
        yield from ((("precision_arguments", precision, index), text) for index, text in enumerate(arguments))
    for precision, variables in workload.precision_environment.items():
        yield from ((("precision_environment", precision, name), text) for name, text in variables.items())


def _software_templates(software: Software) -> Iterator[tuple[tuple[str | int, ...], str]]:
    yield from (((name,), text) for name in ("conda", "venv") if (text := getattr(software, name)) is not None)
    if software.apptainer is not None:
        yield ("apptainer", "image"), software.apptainer.image
        yield from ((("apptainer", "binds", index), text) for index, text in enumerate(software.apptainer.binds))


def _synthetic(workload: SyntheticWorkload, source: YamlFile) -> Iterator[Check]:
    for index, failure in enumerate(workload.failures):
        known = {*AXES, *workload.options}
        yield partial(parse, failure.when, known, source.place("failures", index, "when"))
