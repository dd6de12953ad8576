"""The sbatch options of an allocation, from the system file, its overrides, the profile and the plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from campaign.plan.campaign.resolve_slurm_options import format_gres
from campaign.spec.cell import Configuration
from campaign.spec.system_file import SlurmOptions, SystemFile, plain_option

_WARNING_S = 60  # from the warning to the end of an allocation at its time limit


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
    """Parameters for submitit's SlurmExecutor, by the names of sbatch.

    hosts: those of the composition, where it chooses; excluded: those to leave out, where Slurm chooses;
    further: sbatch options of the strategy.
    """
    parameters: dict[str, Any] = {
        "job_name": f"{campaign}/{configuration.name}",
        "nodes": configuration.hosts,
        "ntasks_per_node": configuration.devices_used,
        "time": options.time_min or time_min,
        "use_srun": False,
        # submitit's own work key is unknown to clusters that check them.
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
    elif system.slurm.exclusive and not any(plain_option(name).startswith("mem_per_") for name in options.additional):
        parameters["mem"] = "0"  # all of the host's
    # A short allocation is warned later, or it would be warned before it has measured anything.
    warning_s = min(_WARNING_S, 60 * parameters["time"] // 4)
    # To the driver itself, which is the batch script's only process: steps must not be told.
    additional: dict[str, Any] = {"signal": f"B:USR2@{warning_s}", "requeue": True}
    for name, value in {**options.additional, **(further or {})}.items():
        option = plain_option(name)
        if value is False:  # sbatch knows no option's opposite: one that is not wanted is not given
            parameters.pop(option, None)
            additional.pop(option, None)
        else:
            additional[option] = value
    if additional.get("no_requeue"):
        additional.pop("requeue", None)
    parameters["additional_parameters"] = additional
    return {name: value for name, value in parameters.items() if value is not None or name == "wckey"}
