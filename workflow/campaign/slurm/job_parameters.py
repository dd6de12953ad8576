"""Parameters of sbatch for the job of a lease: options of the site, hosts, and a time limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaign.common import files
from campaign.common.errors import ConfigError
from campaign.common.paths import Results, lease_id
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.resolve_slurm_options import (
    compute_time_limit_min,
    merge_slurm_options,
    parse_slurm_options,
)
from campaign.plan.missing_runs import read_recorded_runs
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.cut_short import FirstRunFile
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.slurm.listed_hosts import LIST_TIME_LIMITS_COMMAND, parse_time_limit_min
from campaign.slurm.sbatch_options import build_sbatch_parameters
from campaign.slurm.strategies import open_strategy
from campaign.spec.driver_messages import DriverRequest
from campaign.spec.hardware import Composition
from campaign.spec.lease_plan import LeaseForecast, LeasePlan, read_lease_plan
from campaign.spec.record import RecordStore
from campaign.spec.system_file import SlurmOptions, SystemFile

MAX_TIME_LIMITS_AGE_S = 600.0  # partitions seldom change
# A quality of service may lift the limit of a partition, and these options of sbatch may replace both.
_OPTIONS_THAT_CHANGE_LIMITS = frozenset({"time", "partition", "qos", "clusters", "reservation"})


class JobParameters:
    """Builder of the sbatch parameters for the jobs of a campaign.

    Args:
        campaign: campaign of the jobs.
        results: results directory.
        slurm: runner of Slurm commands.
        report: callback for messages.
        report_once: callback for messages, which drops a message equal to the previous one.
    """

    def __init__(
        self,
        campaign: Campaign,
        results: Results,
        slurm: SlurmCommands,
        report: Callable[[str], None],
        report_once: Callable[[str], None],
    ) -> None:
        self._campaign = campaign
        self._results = results
        self._slurm = slurm
        self._report = report
        self._report_once = report_once

    def build(self, request: DriverRequest) -> dict[str, Any]:
        """Build the parameters for the job of a lease (see `build_sbatch_parameters`)."""
        system = self._campaign.system
        plan = read_lease_plan(Path(request.lease_plan))
        plan_options = parse_slurm_options(plan.slurm)
        options = merge_slurm_options(system, plan.configuration, plan_options)
        self._warn_of_short_job(plan, options)
        hosts = list_pinned_hosts(system, request)
        return build_sbatch_parameters(
            self._campaign.name,
            system,
            plan.configuration,
            plan_options,
            time_min=self._limit_time(options, self._estimate_time_min(request, plan)),
            hosts=hosts,
            excluded_hosts=() if hosts else ExcludedHosts(self._results.slurm_state.resolve()).read_current(),
            # The strategy identifies the lease by this id, as in its method `begin`.
            further=open_strategy(system, self._slurm, self._report).options(lease_id(self._results, request.lease)),
        )

    def build_comment(self, request: DriverRequest, parameters: dict[str, Any]) -> str:
        """Build the comment of a job. Slurm's ResumeProgram reads it."""
        configuration = parameters["job_name"].partition("/")[2]
        return (
            f"campaign={request.lease_plan} results={self._results.root.resolve()} configuration={configuration} "
            f"python={sys.executable}"
        )

    def _estimate_time_min(self, request: DriverRequest, plan: LeasePlan) -> int:
        """Estimate the minutes needed for the runs of a lease that have no record."""
        known_runs = read_recorded_runs(
            RecordStore(self._results.directory), skip_implied=self._campaign.protocol.skip_implied
        )
        missing = known_runs.list_missing_runs(plan.work_cells)
        longest_s = sum(cell.settings.time_limit_s for cell, _ in missing)
        # The forecast is ignored if a run has taken longer than predicted.
        is_outlasted = FirstRunFile(self._results.work_directory(request.lease)).was_cut_short()
        expected_s = None if is_outlasted else _scale_forecast(plan.forecast, len(missing))
        return compute_time_limit_min(expected_s, longest_s)

    def _limit_time(self, options: SlurmOptions, time_min: int) -> int:
        """Cap the time of a job at its partition's limit. The driver then continues in another job.

        Raises ConfigError if the system file sets a longer time than the partition allows.
        """
        if options.qos or _OPTIONS_THAT_CHANGE_LIMITS & options.additional.keys():
            return time_min
        limit_min = parse_time_limit_min(self._read_time_limits(), options.partition)
        if limit_min is None:
            return time_min
        if options.time_min is not None and options.time_min > limit_min:
            raise ConfigError(
                f"system {self._campaign.system.name}: slurm: time_min is {options.time_min} min, but partition "
                f"{options.partition or '(the default)'} allows at most {limit_min} min; lower or remove `slurm.time_min`"
            )
        return min(time_min, limit_min)

    def _read_time_limits(self) -> str:
        """Return the output of TIME_LIMITS. The processes of a campaign share it for MAX_TIME_LIMITS_AGE_S."""
        path = self._results.slurm_state.resolve() / "time_limits.json"
        with files.hold_lock(path.with_suffix(".lock")):
            document = files.read_json(path)
            if not 0 <= time.time() - document.get("time_s", 0.0) < MAX_TIME_LIMITS_AGE_S:
                document = {"time_s": time.time(), "answer": self._slurm(*LIST_TIME_LIMITS_COMMAND).out}
                files.write_json(path, document)
        return str(document["answer"])

    def _warn_of_short_job(self, plan: LeasePlan, options: SlurmOptions) -> None:
        """Report a warning if the time limit of a job is shorter than one of its runs."""
        limit_min, expected_s = options.time_min, _scale_forecast(plan.forecast, runs=1)
        if limit_min is not None and expected_s is not None and expected_s > 60 * limit_min:
            self._report_once(
                f"a run of {plan.configuration.name} is expected to take {expected_s / 60:.3g} min, but its job may take only "
                f"{limit_min} min (slurm.time_min), so the run will be recorded as time_limit; raise or remove slurm.time_min"
            )


def list_pinned_hosts(system: SystemFile, request: DriverRequest) -> list[str]:
    """Return the hosts of the composition, or an empty list if Slurm chooses the hosts."""
    if request.composition is None or not system.are_hosts_pinned:
        return []
    return [host.name for host in Composition.from_document(request.composition).hosts]


def _scale_forecast(forecast: LeaseForecast | None, runs: int) -> float | None:
    """Return the expected duration in seconds of this number of runs of a lease, or None if it is unknown."""
    if forecast is None or not forecast.runs or forecast.runs_s is None:
        return None
    return forecast.runs_s * min(1.0, runs / forecast.runs)
