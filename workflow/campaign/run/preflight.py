"""Checks before anything is composed. Errors in files are raised, and missing software of this machine is listed."""

from __future__ import annotations

import os
import shutil

from pydantic import BaseModel

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.common.credentials import find_environment_references
from campaign.common.errors import ConfigError, find_missing_package
from campaign.emulators.hosts.network import check_availability
from campaign.fabrics.registry import load_fabric_kind
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.resolve_slurm_options import merge_slurm_options
from campaign.plan.campaign.workload_inputs import find_missing_files
from campaign.slurm.sbatch_options import build_sbatch_parameters
from campaign.spec.system_file import DeviceModel, SystemFile
from campaign.spec.yaml_file import YamlFile


def _check_slurm_commands(system: SystemFile) -> None:
    """Raise ConfigError if Slurm is missing on this machine."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise ConfigError(
            f"system {system.name}: launcher slurm: there is no sbatch on this machine; start the campaign on a login "
            "node, or load the module that provides Slurm's commands. 'snakemake --profile local' measures without Slurm, and "
            "'campaign cluster up' starts a Slurm cluster for practice"
        )


def _check_slurm_options(campaign: Campaign) -> None:
    """Raise ConfigError if Slurm options of a system are invalid."""
    if campaign.system.slurm.strategy == "dynamic" and campaign.system.slurm.slurmd is None:
        raise ConfigError(
            f"system {campaign.system.name}: slurm: strategy dynamic needs the key 'slurmd' with the site's commands that stop "
            "and start the slurmd of a host"
        )
    # This raises an error for invalid overrides and options before anything is composed.
    for configuration in campaign.configurations:
        options = merge_slurm_options(campaign.system, configuration, campaign.person)
        build_sbatch_parameters(campaign.name, campaign.system, configuration, options, time_min=1)


def check_campaign_files(campaign: Campaign) -> None:
    """Check the files of a campaign and the files that they name. The software of this machine has no effect.

    Raises ConfigError for an imported campaign, for invalid Slurm options, and with all missing input files.
    """
    _check_own_files(campaign)
    if problems := find_missing_inputs(campaign):
        raise ConfigError("\n".join(problems))


def refuse_unmeasurable(campaign: Campaign) -> None:
    """Raise ConfigError for an imported campaign, unavailable Slurm, invalid Slurm options, or unset variables."""
    _check_own_files(campaign)
    for part in campaign.parts:
        if part.system.launcher == "slurm":
            _check_slurm_commands(part.system)
    if problems := _find_unset_variables(campaign):
        raise ConfigError("\n".join(problems))


def _check_own_files(campaign: Campaign) -> None:
    """Raise ConfigError for an imported campaign or for invalid Slurm options."""
    if campaign.file.imported:
        raise ConfigError(
            f"campaign {campaign.name}: its records were imported from logs, so it cannot be measured here; import more logs with "
            "'campaign import', or write a campaign for a system and workloads that can be run"
        )
    for part in campaign.parts:
        if part.system.launcher == "slurm":
            _check_slurm_options(part)


def find_missing_software(campaign: Campaign) -> list[str]:
    """Return messages about missing software that this machine needs to measure the campaign, with the remedy.

    Software for the runs counts only if this machine starts them itself.
    """
    if campaign.file.imported:
        return []
    local, kinds = any(part.system.launcher == "local" for part in campaign.parts), _local_device_kinds(campaign)
    problems = (
        [(name, workload.missing_requirements(tuple(kinds))) for name, workload in campaign.workloads.items()]
        if local
        else []
    )
    return [
        *(_prefix_source(campaign, name, missing) for name, missing in problems if missing),
        *(missing for part in campaign.parts if (missing := _find_missing_package(part.system))),
        *(
            missing
            for kind, system in _local_device_kinds(campaign).items()
            if (missing := _find_missing_tool(kind, system))
        ),
        *find_missing_inputs(campaign),
    ]


def find_missing_site_software(system: SystemFile) -> list[str]:
    """Return messages about packages and programs that this machine lacks to measure on a system, with the remedy."""
    specs = (*system.pool, *(spec for host in system.hosts for spec in host.devices))
    models = dict.fromkeys(spec.model for spec in specs if spec.kind == "gpu")
    kinds = dict.fromkeys(system.devices.get(model, DeviceModel()).runs_on for model in models)
    tools = [_find_missing_tool(kind, system) for kind in kinds] if system.launcher == "local" else []
    return [message for message in (_find_missing_package(system), *tools) if message]


def _local_device_kinds(campaign: Campaign) -> dict[AcceleratorKind, SystemFile]:
    """Return the kinds of devices that this machine must have, each with a system that requires it."""
    local = (part for part in campaign.parts if part.system.launcher == "local")
    return {
        part.device_model(configuration).runs_on: part.system for part in local for configuration in part.configurations
    }


def _find_missing_package(system: SystemFile) -> str | None:
    """Return a message if a Python package for composing or submitting on this system is missing, otherwise None."""
    absent = find_missing_package("submitit") if system.launcher == "slurm" else None
    try:
        load_fabric_kind(str(system.fabric["kind"]))
    except ModuleNotFoundError as error:
        absent = find_missing_package(str(error.name)) or str(error)
    return absent and f"system {system.name}: the fabric or the launcher needs the package {absent}"


def _find_missing_tool(kind: AcceleratorKind, system: SystemFile) -> str | None:
    """Return a message if the program that lists devices of this kind is missing, otherwise None.

    Without the program, devices cannot be identified.
    """
    command = ACCELERATORS[kind].list_command
    # Devices that are reached through a launch prefix need not be on this machine.
    if not command or shutil.which(command[0]) or system.fabric["kind"] == "prefix":
        return None
    return (
        f"system {system.name}: '{command[0]}', which lists the devices of `runs_on: {kind}`, was not found on this machine; "
        f"install the driver of {ACCELERATORS[kind].title}s with its tools, or measure on the host of the devices; for devices "
        "that are CPU cores, set `runs_on: cpu`"
    )


def find_missing_inputs(campaign: Campaign) -> list[str]:
    """Return messages about missing programs and input files of workloads; existing records remain valid."""
    if campaign.file.imported:
        return []
    axes, is_remote = campaign.file.axes.options, _uses_only_slurm(campaign)
    problems = find_missing_files(campaign.workloads, axes, campaign.inputs, elsewhere=is_remote)
    return [_prefix_source(campaign, name, missing) for name, missing in problems]


def _uses_only_slurm(campaign: Campaign) -> bool:
    """Return whether all systems of the campaign start their runs with Slurm."""
    return all(part.system.launcher == "slurm" for part in campaign.parts)


def _prefix_source(campaign: Campaign, workload: str, problem: str) -> str:
    """Return the problem prefixed with the location of the workload file."""
    source = campaign.sources.workload(workload)
    return f"{source.format_location() if source.lines else f'workload {workload}'}: {problem}"


def _find_unset_variables(campaign: Campaign) -> list[str]:
    """Return messages about environment variables that files use but that are not set."""
    files: list[tuple[YamlFile, BaseModel]] = [(part.system_source, part.system) for part in campaign.parts]
    files += [(campaign.sources.workload(name), workload) for name, workload in campaign.workloads.items()]
    return [
        f"{source.format_location(*key)}: the environment variable {name} is not set; export it before you start the campaign"
        for source, model in files
        for key, name in find_environment_references(model.model_dump(mode="json"))
        if name not in os.environ
    ]


def describe_missing_emulation(campaign: Campaign) -> str:
    """Return a message if this machine should emulate hosts but cannot, otherwise an empty string."""
    if all(part.system.emulation is None or part.system.launcher != "local" for part in campaign.parts):
        return ""
    reason = check_availability().reason
    return reason and f"links are not emulated, so attachment and the number of hosts will make no difference: {reason}"
