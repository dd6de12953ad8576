"""Plan for the Snakefile: one job per lease, with its wildcards, files and resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from campaign.common.errors import ConfigError, suggest_name
from campaign.common.files import make_directory, read_json
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.closing_message import print_causes_at_exit
from campaign.plan.concurrency import count_threads, resource_limits, resource_needs
from campaign.plan.lease_plans import hash_plan
from campaign.plan.past_costs import read_lease_document
from campaign.plan.plan import Plan, PlannedLease
from campaign.plan.read import count_unplanned, read_plan
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.spec.run_numbers import list_compositions, without_composition

__all__ = ["Dag", "LeaseParameter", "PlanFiles", "count_unplanned", "open_dag", "read_plan"]


def build_wildcards(campaign: Campaign) -> dict[str, str]:
    """Return the wildcards of the rule `measure` in the order of a lease's path, each with its pattern."""
    wildcards = {} if campaign.part else {"system": _match_any(campaign.systems)}
    wildcards["configuration"] = "[^/]+"
    if campaign.protocol.lease_per != "configuration":
        wildcards["workload"] = _match_any(campaign.workloads)
    if campaign.protocol.lease_per == "cell":
        wildcards["cell"] = "[^/.]+"
    return {**wildcards, "composition": "[0-9]+"}


def _match_any(names: Mapping[str, Any]) -> str:
    """Return the regular expression that matches each of these names."""
    return "|".join(sorted(map(re.escape, names)))


@dataclass(frozen=True)
class Dag:
    """Plan of a campaign as jobs of Snakemake. Methods that take `wildcards` are about the lease of that job."""

    request: PlanRequest
    plan: Plan

    @property
    def campaign(self) -> Campaign:
        """Campaign of the plan."""
        return self.plan.campaign

    @cached_property
    def results(self) -> Results:
        """Results directory of the campaign."""
        return Results(self.request.results, self.campaign.name)

    @cached_property
    def leases(self) -> dict[str, PlannedLease]:
        """Leases of the plan by name."""
        return {lease.name: lease for lease in self.plan.leases}

    @cached_property
    def wildcards(self) -> dict[str, str]:
        """Wildcards of the rule `measure` with their patterns."""
        return build_wildcards(self.campaign)

    @cached_property
    def pattern(self) -> str:
        """Path of a lease's files with wildcards, without its ending: '{system}/{configuration}.c{composition}'."""
        names = [f"{{{name}}}" for name in self.wildcards if name not in ("system", "composition")]
        directory = "{system}/" if "system" in self.wildcards else ""
        return f"{directory}{'.'.join(names)}.c{{composition}}"

    @property
    def manifest(self) -> str:
        """Path of a lease's manifest, with wildcards."""
        return str(self.results.manifest_file(self.pattern))

    def manifest_path(self, lease: PlannedLease) -> str:
        """Return the path of the manifest of this lease."""
        return str(self.results.manifest_file(lease.name, "" if self.campaign.part else lease.configuration.system))

    @cached_property
    def manifests(self) -> list[str]:
        """Paths of the manifests of all leases."""
        return [self.manifest_path(lease) for lease in self.plan.leases]

    @cached_property
    def to_measure(self) -> frozenset[str]:
        """Names of leases with a run without a record, or whose manifest is absent or lists missing runs."""
        return frozenset(
            lease.name
            for lease in self.plan.leases
            if lease.missing or read_lease_document(Path(self.manifest_path(lease))).get("missing") != []
        )

    def is_measured(self, lease: PlannedLease) -> bool:
        """Return whether all runs of the lease are measured."""
        return lease.name not in self.to_measure

    def find_lease(self, wildcards: Any) -> PlannedLease:
        """Return the lease of a job. Raises ConfigError if the plan has no lease of this name."""
        names = [name for name in self.wildcards if name not in ("system", "composition")]
        name = f"{'.'.join(str(getattr(wildcards, name)) for name in names)}.c{wildcards.composition}"
        if name not in self.leases:
            raise ConfigError(f"{name} is not a lease of {self.campaign.path}; {suggest_name(name, self.leases)}")
        return self.leases[name]

    def lease_parameter(self, wildcards: Any) -> LeaseParameter:
        """Return the name of the job's lease, with a description of the job."""
        lease = self.find_lease(wildcards)
        compositions = max(len(list_compositions(without_composition(cell.settings))) for cell in lease.cells)
        return LeaseParameter(lease.name, lease.describe(compositions))

    def job_priority(self, wildcards: Any) -> int:
        """Return the priority of the job, which is higher for leases that come earlier in the plan."""
        return len(self.plan.leases) - self._positions[self.find_lease(wildcards).name]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {lease.name: number for number, lease in enumerate(self.plan.leases)}

    @cached_property
    def limits(self) -> dict[str, int]:
        """Amount of each resource of the systems."""
        return resource_limits(self.campaign)

    @cached_property
    def _needs(self) -> dict[str, dict[str, int]]:
        """Amount of each resource used by a lease, by configuration."""
        return {
            configuration.name: resource_needs(self.campaign, configuration)
            for configuration in self.campaign.configurations
        }

    def job_needs(self, wildcards: Any) -> dict[str, int]:
        """Return the amount of each resource used by the lease."""
        return self._needs[self.find_lease(wildcards).configuration.name]

    def count_job_threads(self, wildcards: Any, cores: int) -> int:
        """Return the number of this machine's cores used by the lease."""
        return count_threads(self.campaign, self.find_lease(wildcards).configuration, cores)

    def check_limits(self, limits: Mapping[str, int]) -> None:
        """Check that no limit is below the needs of an unmeasured lease.

        Snakemake would reduce the needs without a message. Raises ConfigError if a lease needs more of a resource than its
        limit.
        """
        for lease in self.plan.leases:
            needs = self._needs[lease.configuration.name]
            exceeded_names = [name for name in needs if needs[name] > limits.get(name, needs[name])]
            if exceeded_names and not self.is_measured(lease):
                name = exceeded_names[0]
                raise ConfigError(
                    f"--resources {name}={limits[name]}: lease {lease.name} needs {needs[name]}; raise the limit, or exclude the "
                    f"lease: --config where=\"configuration != '{lease.configuration.name}'\""
                )


class LeaseParameter(str):
    """Name of a lease as a parameter of its job. Its description is for people and no part of the parameter's identity."""

    __slots__ = ("words",)

    words: str
    """Description, such as '1x4-fabric, composition 2 of 3: 2 cells, 4 runs, about 3 min'."""

    def __new__(cls, name: str, words: str) -> LeaseParameter:
        lease_name = super().__new__(cls, name)
        lease_name.words = words
        return lease_name


class PlanFiles:
    """Paths of the plan and of the documents of its leases.

    In a dry run, nothing is written into the results. A document that would be written is replaced by an empty file in a temporary
    directory, which is as new as the document would be.

    Args:
        dag: the plan.
        executes: True if jobs will run, so that the documents are written.
    """

    def __init__(self, dag: Dag, executes: bool) -> None:
        self.results = dag.results
        self.stand_ins: TemporaryDirectory[str] | None = (
            None if executes else TemporaryDirectory(prefix="campaign-plan-")
        )
        self.new = {self.results.lease_plan_file(name) for name in dag.to_measure}
        if dag.to_measure or read_json(self.results.plan_file).get("digest") != hash_plan(dag.plan):
            self.new.add(self.results.plan_file)
        if executes:
            make_directory(self.results.directory.resolve())
            write_plan(dag.plan, self.results, dag.to_measure)
            print_causes_at_exit(self.results, dag.campaign.systems)

    @property
    def plan(self) -> str:
        """Path of the plan."""
        return self._path(self.results.plan_file)

    def lease_path(self, lease: PlannedLease) -> str:
        """Return the path of the lease's document."""
        return self._path(self.results.lease_plan_file(lease.name))

    def is_measured(self, lease: PlannedLease) -> bool:
        """Return whether all runs of the lease were measured when the plan was made."""
        return self.results.lease_plan_file(lease.name) not in self.new

    def _path(self, path: Path) -> str:
        if self.stand_ins is None or (path not in self.new and path.exists()):
            return str(path)
        stand_in = Path(self.stand_ins.name) / path.name
        stand_in.touch(exist_ok=True)
        return str(stand_in)


def open_dag(request: PlanRequest) -> Dag:
    """Plan a request for the Snakefile. Raises CampaignError, which the Snakefile shows without a traceback."""
    return Dag(request, read_plan(request))
