"""What can be known to fail before anything is composed."""

from __future__ import annotations

import os
import shutil

from pydantic import BaseModel

from campaign.config.resolve import Campaign
from campaign.config.resolve_slurm_options import options_of
from campaign.config.workload_inputs import missing_files
from campaign.config.yaml_file import YamlFile
from campaign.credentials import taken_from_environment
from campaign.errors import ConfigError
from campaign.launch.emulation.network import availability
from campaign.slurm.sbatch_options import sbatch_parameters


def _preflight_slurm(campaign: Campaign) -> None:
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise ConfigError(
            f"system {campaign.system.name}: launcher slurm: there is no sbatch on this machine; start the campaign on a login "
            "node (or load the module that brings Slurm's commands). 'snakemake --profile local' measures on this machine, and "
            "'campaign cluster up' starts a Slurm of one's own to learn with"
        )
    if campaign.system.slurm.strategy == "dynamic" and campaign.system.slurm.slurmd is None:
        raise ConfigError(
            f"system {campaign.system.name}: slurm: strategy dynamic needs 'slurmd', the site's commands that stop and start a "
            "host's slurmd"
        )
    # An override or option that means nothing is named before anything is composed.
    for configuration in campaign.configurations:
        options = options_of(campaign.system, configuration, campaign.person)
        sbatch_parameters(campaign.name, campaign.system, configuration, options, time_min=1)


def preflight(campaign: Campaign) -> None:
    """ConfigError for what this machine lacks: Slurm's commands, or the programs and packages that it is to run itself."""
    if campaign.file.imported:
        raise ConfigError(
            f"campaign {campaign.name}: its records were imported from logs, and nothing of it is measured here; import more logs "
            "with 'campaign import', or write a campaign of your own for a system and workloads that can be run"
        )
    for part in campaign.parts:
        if part.system.launcher == "slurm":
            _preflight_slurm(part)
    if problems := [*missing_software(campaign), *_unset_variables(campaign)]:
        raise ConfigError("\n".join(problems))


def missing_software(campaign: Campaign) -> list[str]:
    """What workloads lack on this machine to be run, with the remedy; of software nothing where Slurm starts the runs."""
    if campaign.file.imported:
        return []
    lacking = [] if _by_slurm(campaign) else [(name, each.missing()) for name, each in campaign.workloads.items()]
    return [*(_told(campaign, name, missing) for name, missing in lacking if missing), *missing_inputs(campaign)]


def missing_inputs(campaign: Campaign) -> list[str]:
    """Programs and input files that are not there, so that nothing can be measured with them; what was measured still counts."""
    if campaign.file.imported:
        return []
    axes, elsewhere = campaign.file.axes.options, _by_slurm(campaign)
    found = missing_files(campaign.workloads, axes, campaign.inputs, elsewhere=elsewhere)
    return [_told(campaign, name, missing) for name, missing in found]


def _by_slurm(campaign: Campaign) -> bool:
    return all(part.system.launcher == "slurm" for part in campaign.parts)


def _told(campaign: Campaign, workload: str, missing: str) -> str:
    source = campaign.sources.workload(workload)
    return f"{source.place() if source.lines else f'workload {workload}'}: {missing}"


def _unset_variables(campaign: Campaign) -> list[str]:
    """Variables that the files take from the environment, and that are not set in it."""
    files: list[tuple[YamlFile, BaseModel]] = [(part.system_source, part.system) for part in campaign.parts]
    files += [(campaign.sources.workload(name), workload) for name, workload in campaign.workloads.items()]
    return [
        f"{source.place(*place)}: the variable {name} is not set here; export it before you start the campaign"
        for source, model in files
        for place, name in taken_from_environment(model.model_dump(mode="json"))
        if name not in os.environ
    ]


def not_emulated(campaign: Campaign) -> str:
    """What to tell a person where hosts are to be emulated on this machine, and it cannot; otherwise empty."""
    if all(part.system.emulation is None or part.system.launcher != "local" for part in campaign.parts):
        return ""
    why = availability().reason
    return why and f"links are not emulated, so attachment and the spread over hosts will make no difference: {why}"
