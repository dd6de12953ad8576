"""Options of sbatch for an allocation, from the system file, its overrides, the profile and the plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from campaign.plan.campaign.resolve_slurm_options import format_gres
from campaign.spec.cell import Configuration
from campaign.spec.system_file import SlurmOptions, SystemFile, normalize_option_name

_WARNING_S = 60  # from Slurm's warning to the time limit of an allocation


def build_sbatch_parameters(
    campaign: str,
    system: SystemFile,
    configuration: Configuration,
    options: SlurmOptions,
    *,
    time_min: int,
    hosts: Collection[str] = (),
    excluded_hosts: Collection[str] = (),
    further: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Build the parameters for submitit's SlurmExecutor, keyed by the option names of sbatch.

    Args:
        campaign: name of the campaign.
        system: system file.
        configuration: configuration to allocate.
        options: Slurm options of the configuration.
        time_min: time limit in minutes, if the options have none.
        hosts: hosts of the composition; empty if Slurm chooses the hosts.
        excluded_hosts: hosts that Slurm must not choose.
        further: sbatch options of the Slurm strategy.
    """
    parameters: dict[str, Any] = {
        "job_name": f"{campaign}/{configuration.name}",
        "nodes": configuration.hosts,
        "ntasks_per_node": configuration.devices_used,
        "time": options.time_min or time_min,
        "use_srun": False,
        # Clusters that check work keys refuse the work key of submitit.
        "wckey": None,
        **options.model_dump(include={"partition", "account", "qos", "constraint"}),
        "nodelist": ",".join(hosts) or None,
        "exclude": ",".join(sorted(excluded_hosts)) or None,
        "exclusive": system.slurm.exclusive or None,
        "cpus_per_task": options.cpus_per_device,
    }
    if gres := format_gres(system, configuration, hosts):
        parameters["gres"] = gres
    if options.memory_gib:
        parameters["mem"] = f"{math.ceil(options.memory_gib * 1024)}M"
    elif system.slurm.exclusive and not any(
        normalize_option_name(name).startswith("mem_per_") for name in options.additional
    ):
        parameters["mem"] = "0"  # all memory of the host
    # In a short allocation the warning comes later, because the driver could not measure anything before it otherwise.
    warning_s = min(_WARNING_S, 60 * parameters["time"] // 4)
    # `B:` sends the signal to the batch script alone, which is the driver. Steps must not get it.
    additional: dict[str, Any] = {"signal": f"B:USR2@{warning_s}", "requeue": True}
    for name, value in {**options.additional, **(further or {})}.items():
        option = normalize_option_name(name)
        if value is False:  # sbatch has no negated options, so the option is left out.
            parameters.pop(option, None)
            additional.pop(option, None)
        else:
            additional[option] = value
    if additional.get("no_requeue"):
        additional.pop("requeue", None)
    parameters["additional_parameters"] = additional
    return {name: value for name, value in parameters.items() if value is not None or name == "wckey"}
