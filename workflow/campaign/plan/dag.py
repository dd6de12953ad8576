"""What the Snakefile needs to know: the plan, and of each lease its manifest, its document and what it takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from campaign.config.open_fabric import PlannedPlacement, fabric_of, placing
from campaign.config.resolve import Campaign
from campaign.documents.cell import Configuration
from campaign.documents.race import read_race
from campaign.documents.record import Store
from campaign.documents.run_numbers import compositions_of, whole
from campaign.documents.superseded import RecordedHosts
from campaign.errors import ConfigError, nearest
from campaign.files import make_directory, read_json
from campaign.paths import Results
from campaign.plan.closing_message import print_causes_at_exit
from campaign.plan.concurrency import limits, needs, threads
from campaign.plan.control_runs import references_of
from campaign.plan.cost import cost_model
from campaign.plan.lease_plans import plan_digest
from campaign.plan.matrix import Matrix, Removed, expand
from campaign.plan.missing_runs import KnownRuns, implied_cells, read_known, without_damaged
from campaign.plan.oom_frontier import campaign_frontier
from campaign.plan.past_costs import earlier_spread, read_costs, read_lease_document
from campaign.plan.plan import Plan, PlannedLease, build_plan
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan


def read_plan(request: PlanRequest, *, allow_unfit: bool = False, checked: bool = True) -> Plan:
    """Plan a campaign against the records that are there. Raises ConfigError if a configuration can never fit the pool.

    Args:
        request: the campaign, and which of its cells.
        allow_unfit: plan a campaign with a configuration that does not fit.
        checked: whether damaged records count as none (`without_damaged`).
    """
    campaign = request.load()
    results = Results(request.results, campaign.name)
    store = Store(results.directory)
    matrix = expand(campaign, request.where, hosts=RecordedHosts(store))
    if request.until:
        race = read_race(results.race)
        matrix = replace(matrix, compositions=race.compositions if race else {})
    known = _read_known(campaign, matrix, store, checked)
    placements = _place_configurations(campaign, matrix, results)
    planned = _drop_unfit(matrix, placements, request.without_hosts) if request.without_hosts else matrix
    costs = read_costs(results, request.learn_from, campaign.path)
    plan = replace(
        build_plan(campaign, planned, known, cost_model(campaign, costs), placements),
        without_hosts=request.without_hosts or "",
        unplanned=0 if request.where else count_unplanned(campaign, matrix, known),
        earlier=earlier_spread(costs, campaign.name, campaign.systems),
    )
    if plan.unfit and not allow_unfit:
        raise ConfigError("\n".join(unfit_messages(plan)))
    return plan


def _read_known(campaign: Campaign, matrix: Matrix, store: Store, checked: bool) -> KnownRuns:
    """Read which runs have a record, and which are implied by those."""
    known = read_known(store, skip_implied=campaign.protocol.skip_implied)
    known = without_damaged(known, store) if checked else known
    return replace(known, implied=implied_cells(campaign_frontier(campaign, store), matrix.cells, known))


def _place_configurations(campaign: Campaign, matrix: Matrix, results: Results) -> dict[str, PlannedPlacement]:
    """Return where each configuration goes on its system. A system without any may be out of reach here."""
    by_system: dict[str, dict[str, Configuration]] = {}
    for cell in matrix.cells:
        by_system.setdefault(cell.configuration.system, {})[cell.configuration.name] = cell.configuration
    placements: dict[str, PlannedPlacement] = {}
    for part in campaign.parts:
        if (configurations := by_system.get(part.part)) is None:
            continue
        state, where = results.system_state(part.part), part.system_source.place("fabric")
        with fabric_of(part.system, state, where) as fabric:
            place = placing(fabric, part)
            placements |= {name: place(configuration) for name, configuration in configurations.items()}
    return placements


def _drop_unfit(matrix: Matrix, placements: Mapping[str, PlannedPlacement], hosts: str) -> Matrix:
    """Return the matrix without configurations that do not fit what is left of the system, which are named.

    If nothing fits, all of it stays, so that the plan says why.
    """
    unfit = {name: placement.unfit for name, placement in placements.items() if placement.unfit}
    if len(unfit) == len(placements):
        return matrix
    counts = Counter(cell.configuration.name for cell in matrix.cells)
    removed = (Removed(f"{name}, without {hosts}", why, counts[name]) for name, why in unfit.items())
    cells = tuple(cell for cell in matrix.cells if cell.configuration.name not in unfit)
    return replace(matrix, cells=cells, removed=(*matrix.removed, *removed))


def count_unplanned(campaign: Campaign, matrix: Matrix, known: KnownRuns) -> int:
    """Count the cells with records that the campaign does not have any more."""
    measured = {cell_id for cell_id, _ in known.measured}
    planned = {cell.id for cell in matrix.cells} | references_of(campaign, matrix.cells).keys()
    return len(measured - planned)


def unfit_messages(plan: Plan) -> Iterator[str]:
    """One message for each configuration that does not fit, with its place in the campaign's file."""
    campaign = plan.campaign
    for name, why in plan.unfit.items():
        place = campaign.place("configurations", campaign.shape_of(name))
        yield (
            f"{place}: configuration {name} does not fit: {why}; remove it, or correct hosts and pool in "
            "the system file"
        )


@dataclass(frozen=True)
class Dag:
    """The plan as the Snakefile sees it: one job per lease."""

    asked: PlanRequest
    plan: Plan

    @property
    def campaign(self) -> Campaign:
        return self.plan.campaign

    @cached_property
    def results(self) -> Results:
        return Results(self.asked.results, self.campaign.name)

    @cached_property
    def leases(self) -> dict[str, PlannedLease]:
        return {lease.name: lease for lease in self.plan.leases}

    @cached_property
    def wildcards(self) -> dict[str, str]:
        """Wildcards of the rule `measure` in the order of a lease's name, each with the pattern that it may take."""
        parts = {"configuration": "[^/]+"}
        if self.campaign.protocol.lease_per != "configuration":
            parts["workload"] = "|".join(sorted(map(re.escape, self.campaign.workloads)))
        if self.campaign.protocol.lease_per == "cell":
            parts["cell"] = "[^/.]+"
        system = {} if self.campaign.part else {"system": "|".join(sorted(map(re.escape, self.campaign.systems)))}
        return {**system, **parts, "composition": "[0-9]+"}

    @cached_property
    def pattern(self) -> str:
        """Path of what belongs to a lease, without its ending, with these wildcards: '{configuration}.c{composition}'."""
        words = {name: f"{'c' if name == 'composition' else ''}{{{name}}}" for name in self.wildcards}
        system = f"{words.pop('system')}/" if "system" in words else ""
        return f"{system}{'.'.join(words.values())}"

    @property
    def manifest(self) -> str:
        """Path of a lease's manifest, with these wildcards."""
        return str(self.results.manifest(self.pattern))

    def manifest_of(self, lease: PlannedLease) -> str:
        """Path of one lease's manifest."""
        return str(self.results.manifest(lease.name, "" if self.campaign.part else lease.configuration.system))

    @cached_property
    def manifests(self) -> list[str]:
        return [self.manifest_of(lease) for lease in self.plan.leases]

    @cached_property
    def to_measure(self) -> frozenset[str]:
        """Names of the leases of which a run has no record, or whose manifest is not there or lists a run as missing."""
        return frozenset(
            lease.name
            for lease in self.plan.leases
            if lease.missing or read_lease_document(Path(self.manifest_of(lease))).get("missing") != []
        )

    def lease(self, wildcards: Any) -> PlannedLease:
        """The lease that a job of `measure` is about. ConfigError: the plan has none of this name."""
        beside = ("system", "composition")
        found = [str(getattr(wildcards, name)) for name in self.wildcards if name not in beside]
        name = f"{'.'.join(found)}.c{wildcards.composition}"
        if name not in self.leases:
            raise ConfigError(f"{name}: is no lease of {self.campaign.path}; {nearest(name, self.leases)}")
        return self.leases[name]

    def named(self, wildcards: Any) -> LeaseName:
        """The lease's name, which says what its job is about."""
        lease = self.lease(wildcards)
        compositions = max(len(compositions_of(whole(cell.settings))) for cell in lease.cells)
        return LeaseName(lease.name, lease.describe(compositions))

    def needs(self, wildcards: Any) -> dict[str, int]:
        """What a lease takes of each resource."""
        return self._needs[self.lease(wildcards).configuration.name]

    def threads(self, wildcards: Any, cores: int) -> int:
        """What a lease takes of this machine's cores."""
        return threads(self.campaign, self.lease(wildcards).configuration, cores)

    def priority(self, wildcards: Any) -> int:
        """Higher for what comes earlier in the plan."""
        return len(self.plan.leases) - self._places[self.lease(wildcards).name]

    def is_whole(self, lease: PlannedLease) -> bool:
        """Whether nothing of a lease is to be measured."""
        return lease.name not in self.to_measure

    @cached_property
    def limits(self) -> dict[str, int]:
        """What the systems have of each resource."""
        return limits(self.campaign)

    @cached_property
    def _needs(self) -> dict[str, dict[str, int]]:
        return {each.name: needs(self.campaign, each) for each in self.campaign.configurations}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {lease.name: number for number, lease in enumerate(self.plan.leases)}

    def require(self, given: Mapping[str, int]) -> None:
        """ConfigError: a lease needs more of a resource than was given, to which Snakemake would cut it in silence."""
        for lease in self.plan.leases:
            needed = self._needs[lease.configuration.name]
            if (over := [name for name, need in needed.items() if need > given.get(name, need)]) and not self.is_whole(
                lease
            ):
                name = over[0]
                raise ConfigError(
                    f"--resources {name}={given[name]}: {lease.name} needs {needed[name]}; raise the limit, or leave the "
                    f"lease out: --config where=\"configuration != '{lease.configuration.name}'\""
                )


class LeaseName(str):
    """A lease's name as a parameter of its job: what identifies it, with words for people that may change at any time."""

    __slots__ = ("words",)

    words: str
    """'1x4-fabric, composition 2 of 3: 2 cells, 4 runs, about 3 min'"""

    def __new__(cls, name: str, words: str) -> LeaseName:
        made = super().__new__(cls, name)
        made.words = words
        return made


class PlanFiles:
    """Paths of the plan and of the documents of its leases, which are written when the first one is asked for.

    executes: whether jobs will run. Otherwise nothing is written into the results: what would be written anew is an empty file in a
    temporary directory, as new as the document would be.
    """

    def __init__(self, dag: Dag, executes: bool) -> None:
        self.results = dag.results
        self.stand_ins: TemporaryDirectory[str] | None = (
            None if executes else TemporaryDirectory(prefix="campaign-plan-")
        )
        self.new = {self.results.lease_plan(name) for name in dag.to_measure}
        if dag.to_measure or read_json(self.results.plan_document).get("digest") != plan_digest(dag.plan):
            self.new.add(self.results.plan_document)
        if executes:
            make_directory(self.results.directory.resolve())
            write_plan(dag.plan, self.results, dag.to_measure)
            print_causes_at_exit(self.results, dag.campaign.systems)

    @property
    def plan(self) -> str:
        return self._path(self.results.plan_document)

    def lease(self, lease: PlannedLease) -> str:
        return self._path(self.results.lease_plan(lease.name))

    def is_whole(self, lease: PlannedLease) -> bool:
        """Whether nothing of a lease is to be measured, as far as that is known now."""
        return self.results.lease_plan(lease.name) not in self.new

    def _path(self, path: Path) -> str:
        if self.stand_ins is None or (path not in self.new and path.exists()):
            return str(path)
        stand_in = Path(self.stand_ins.name) / path.name
        stand_in.touch(exist_ok=True)
        return str(stand_in)


def open_dag(request: PlanRequest) -> Dag:
    """Plan a request as the Snakefile needs it. A CampaignError is for the person, without a traceback."""
    return Dag(request, read_plan(request))
