"""What the Snakefile needs to know: the plan, and of each lease its manifest, its document and what it takes."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from campaign.config.open_fabric import fabric_of, placing
from campaign.config.resolve import Campaign
from campaign.documents.cell import Scalar
from campaign.documents.plan import BudgetChoice
from campaign.documents.record import Store
from campaign.documents.rounds import CellIn, Rounds, kept_rounds, question_key
from campaign.documents.run_numbers import compositions_of, whole
from campaign.documents.superseded import RecordedHosts
from campaign.errors import ConfigError, nearest
from campaign.fabrics.protocol import Fabric
from campaign.files import make_directory, read_json, write_json
from campaign.paths import Results
from campaign.plan.concurrency import limits, needs, threads, wall_s
from campaign.plan.cost.assumption import Assumption
from campaign.plan.cost.budget import Budget, kept_choice, matrix_digest
from campaign.plan.cost.costs import Costs
from campaign.plan.cost.history import document_of, earlier_spread, read_costs
from campaign.plan.lease_plans import plan_digest
from campaign.plan.matrix import Matrix, Removed, expand
from campaign.plan.missing_runs import implied_cells, read_known, without_damaged
from campaign.plan.oom_frontier import campaign_frontier
from campaign.plan.plan import Plan, PlannedLease, build_plan
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.workloads.sample_flops import sample_flops

if TYPE_CHECKING:  # it loads numpy
    from campaign.plan.cost.forecast import Forecaster, SystemTimes


def read_plan(
    asked: PlanRequest, *, allow_unfit: bool = False, checked: bool = True, rounds: Rounds | None = None
) -> Plan:
    """The plan against the records that are there; ConfigError when a configuration can never fit the pool.

    checked: whether damaged records count as none (`without_damaged`). rounds: of the question that is asked; those that were begun
    by default.
    """
    campaign = asked.load()
    results = Results(asked.results, campaign.name)
    store = Store(results.directory)
    matrix = expand(campaign, asked.where, hosts=RecordedHosts(store))
    known = read_known(store, skip_implied=campaign.protocol.skip_implied)
    known = without_damaged(known, store) if checked else known
    known = replace(known, implied=implied_cells(campaign_frontier(campaign, store), matrix.cells, known))
    costs = read_costs(results, asked.learn_from, campaign.path)
    # `snakemake --lint` needs no times, and works where Snakemake is installed alone.
    forecaster = forecaster_of(campaign, costs, asked.assumed) if find_spec("numpy") else None
    with ExitStack() as opened:
        # A system of which nothing is selected may be out of reach here.
        chosen = {cell.configuration.system for cell in matrix.cells}
        fabrics = [(part, _opened(part, results, opened)) for part in campaign.parts if part.part in chosen]
        place = {part.part: placing(fabric, part) for part, fabric in fabrics}

        def planned(only: Collection[CellIn] | None = None) -> Plan:
            return build_plan(campaign, matrix, known, forecaster, lambda each: place[each.system](each), only)

        plan = planned()
        if (
            asked.without_hosts
            and plan.unfit
            and len(plan.unfit) < len({cell.configuration.name for cell in matrix.cells})
        ):
            matrix = _fitting(matrix, plan.unfit, asked.without_hosts)
            plan = replace(planned(), unplanned=plan.unplanned)
        if asked.until and rounds is None:
            rounds = kept_rounds(results, asked.until, asked.where, matrix_digest(matrix.cells))
        wanted: Collection[CellIn] | None = rounds.chosen if asked.until and rounds else None
        choice = None
        if asked.budget and not asked.until:
            there = kept_choice(results.budget)
            same = there is not None and (there.budget, there.matrix) == (
                str(asked.budget),
                matrix_digest(matrix.cells),
            )
            choice = there if same and there else choose(asked.budget, plan)
            wanted = choice.chosen(matrix.cells)
        if wanted is not None:
            recorded = {
                (cell.id, lease.composition) for lease, cell in plan.cells if cell.id not in lease.cells_missing
            }
            some = planned(recorded.union(wanted))
            plan = replace(some, rounds=rounds or Rounds(), budget=choice, unplanned=plan.unplanned)
    plan = replace(
        plan, without_hosts=asked.without_hosts or "", earlier=earlier_spread(costs, campaign.name, campaign.systems)
    )
    if plan.unfit and not allow_unfit:
        raise ConfigError("\n".join(unfit_messages(plan)))
    return plan


def _fitting(matrix: Matrix, unfit: Mapping[str, str], hosts: str) -> Matrix:
    """The matrix without configurations that do not fit what is left of the system, each of which is named."""
    counts = Counter(cell.configuration.name for cell in matrix.cells)
    removed = (Removed(f"{name}, without {hosts}", why, counts[name]) for name, why in unfit.items())
    cells = tuple(cell for cell in matrix.cells if cell.configuration.name not in unfit)
    return replace(matrix, cells=cells, removed=(*matrix.removed, *removed))


def _opened(part: Campaign, results: Results, opened: ExitStack) -> Fabric:
    state, where = results.system_state(part.part), part.system_source.place("fabric")
    return opened.enter_context(fabric_of(part.system, state, where))


def forecaster_of(campaign: Campaign, costs: Sequence[Costs], assumed: Assumption) -> Forecaster:
    """Forecasts for a campaign from what others have cost."""
    from campaign.plan.cost.forecast import Forecaster  # loads numpy

    return Forecaster({part.part: _system_times(part, costs) for part in campaign.parts}, assumed)


def _system_times(campaign: Campaign, costs: Sequence[Costs]) -> SystemTimes:
    from campaign.plan.cost.composing import composing_of
    from campaign.plan.cost.forecast import SystemTimes

    @cache
    def flops(workload: str, options: tuple[tuple[str, Scalar], ...]) -> float | None:
        file = campaign.workloads[workload]
        model = {"kind": file.kind, "model": getattr(file, "model", None)}
        return sample_flops(model, {**file.options, **dict(options)})

    kind = str(campaign.system.fabric["kind"])
    return SystemTimes(
        costs,
        campaign.system.name,
        kind,
        lambda cell: flops(cell.workload, tuple(sorted(cell.options.items()))),
        composing_of(campaign, costs),
    )


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
    """The plan as the Snakefile sees it: one job a lease; with a question, one a lease and round.

    plan: of the whole matrix; rounds: of the question so far, if one is asked.
    """

    asked: PlanRequest
    plan: Plan
    rounds: Rounds = field(default_factory=Rounds)

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
        return {**system, **parts, "composition": "[0-9]+", **({"round": "[0-9]+"} if self.asked.until else {})}

    @cached_property
    def pattern(self) -> str:
        """Path of what belongs to a lease, without its ending, with these wildcards: '{configuration}.c{composition}'."""
        numbers = {"composition": "c", "round": "r"}
        words = {name: f"{numbers.get(name, '')}{{{name}}}" for name in self.wildcards}
        system = f"{words.pop('system')}/" if "system" in words else ""
        return f"{system}{'.'.join(words.values())}"

    @property
    def manifest(self) -> str:
        """Path of a lease's manifest, with these wildcards."""
        return str(self.results.manifest(self.pattern))

    def manifest_of(self, lease: PlannedLease, round_number: int | None = None) -> str:
        """Path of one lease's manifest, in a round of a question."""
        name = lease.name if round_number is None else f"{lease.name}.r{round_number}"
        return str(self.results.manifest(name, "" if self.campaign.part else lease.configuration.system))

    @cached_property
    def manifests(self) -> list[str]:
        return [self.manifest_of(lease) for lease in self.plan.leases]

    def asked_path(self, word: str) -> Path:
        """Path of what an asking gave, which has a number, or of what it is made from (`question`)."""
        key = question_key(self.asked.until or "", self.asked.where, matrix_digest(self.plan.matrix))
        return self.results.directory / "work" / "asked" / f"{key}.{word}.json"

    def manifests_asked(self, path: str) -> list[str] | None:
        """Manifests of the leases that an asking chose; None where it chose none, and ends the question."""
        said = read_json(Path(path))
        if said.get("end"):
            return None
        leases = (self.leases[name] for name in said["leases"])
        return [self.manifest_of(lease, said["round"]) for lease in leases]

    @cached_property
    def to_measure(self) -> frozenset[str]:
        """Names of the leases of which a run has no record, or whose manifest is not there or lists a run as missing."""
        return frozenset(
            lease.name
            for lease in self.plan.leases
            if lease.missing or document_of(Path(self.manifest_of(lease))).get("missing") != []
        )

    def lease(self, wildcards: Any) -> PlannedLease:
        """The lease that a job of `measure` is about. ConfigError: the plan has none of this name."""
        beside = ("system", "composition", "round")
        found = [str(getattr(wildcards, name)) for name in self.wildcards if name not in beside]
        name = f"{'.'.join(found)}.c{wildcards.composition}"
        if name not in self.leases:
            raise ConfigError(f"{name}: is no lease of {self.campaign.path}; {nearest(name, self.leases)}")
        return self.leases[name]

    def named(self, wildcards: Any) -> LeaseName:
        """The lease's name, which says what its job is about."""
        lease = self.lease(wildcards)
        compositions = max(len(compositions_of(whole(cell.settings))) for cell in lease.cells)
        if self.asked.until:
            return LeaseName(lease.name, f"{lease.about(compositions)}, in round {wildcards.round}")
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
    temporary directory, as new as the document would be. again: whether the question is to be asked again, since what is known has
    changed after it was answered.
    """

    def __init__(self, dag: Dag, executes: bool, again: bool = False) -> None:
        self.dag, self.results, self.executes = dag, dag.results, executes
        self.stand_ins: TemporaryDirectory[str] | None = (
            None if executes else TemporaryDirectory(prefix="campaign-plan-")
        )
        if dag.asked.until:
            plan = read_plan(dag.asked, rounds=dag.rounds) if dag.rounds else None
            incomplete = {lease.name for lease in plan.leases if lease.missing} if plan else set()
        else:
            plan, incomplete = dag.plan, set(dag.to_measure)
        self.new = {self.results.lease_plan(name) for name in incomplete}
        written = read_json(self.results.plan_document).get("digest")
        if plan is not None and (incomplete or written != plan_digest(plan)):
            self.new.add(self.results.plan_document)
        if executes:
            make_directory(self.results.directory.resolve())
            if plan is not None:
                write_plan(plan, self.results, incomplete)
        if dag.asked.until:
            self.last = self._last_asked() if again else 0
            if again:
                self.new.add(self.question_document)
            if executes and (again or not self.question_document.exists()):
                write_json(self.question_document, {"question": dag.asked.until, "token": secrets.token_hex(4)})

    @property
    def plan(self) -> str:
        return self._path(self.results.plan_document)

    def lease(self, lease: PlannedLease) -> str:
        return self._path(self.results.lease_plan(lease.name))

    def is_whole(self, lease: PlannedLease) -> bool:
        """Whether nothing of a lease is to be measured, as far as that is known now."""
        return self.results.lease_plan(lease.name) not in self.new

    @property
    def question_document(self) -> Path:
        return self.dag.asked_path("question")

    def question(self, number: int) -> tuple[str, bool]:
        """What the n-th asking is made from, and whether it is as new as it looks."""
        return self._path(self.question_document), number == self.last

    def _last_asked(self) -> int:
        """The asking that found the question answered; 0 for none."""
        number = 1
        while (path := self.dag.asked_path(str(number))).exists():
            if read_json(path).get("end"):
                return number
            number += 1
        return 0

    def _path(self, path: Path) -> str:
        if self.stand_ins is None or (path not in self.new and path.exists()):
            return str(path)
        stand_in = Path(self.stand_ins.name) / path.name
        stand_in.touch(exist_ok=True)
        return str(stand_in)


def open_dag(asked: PlanRequest) -> Dag:
    """The DAG for what was asked; a CampaignError is for the person, without a traceback."""
    if not asked.until:
        return Dag(asked, read_plan(asked))
    plan = read_plan(replace(asked, until=None, budget=None))
    results = Results(asked.results, plan.campaign.name)
    return Dag(asked, plan, kept_rounds(results, asked.until, asked.where, matrix_digest(plan.matrix)))


def choose(budget: Budget, plan: Plan) -> BudgetChoice:
    """The first blocks of the whole plan, as many as the forecast says that the budget pays for.

    ConfigError: costs are unknown, or it pays for no block with missing runs.
    """
    if unknown := plan.forecast.unknown:
        raise ConfigError(
            f"--budget {budget}: {unknown.words()}, so what it pays for cannot be said; {unknown.advice()}"
        )
    missing = [lease for lease in plan.leases if lease.missing]
    blocks = sorted({lease.composition for lease in plan.leases})

    def cost(last: int) -> float:
        leases = [lease for lease in missing if lease.composition <= last]
        if budget.unit == "device-hours":
            return sum((lease.charge and lease.charge.device_hours) or 0.0 for lease in leases)
        return wall_s(plan.campaign, [(lease.configuration, lease.expected_s or 0.0) for lease in leases]) / 3600

    costs = {block: cost(block) for block in blocks}
    paid = max((block for block in blocks if costs[block] <= budget.amount), default=0)
    further = next((block for block in blocks if block > paid and costs[block] > costs.get(paid, 0.0)), None)
    runs = sum(lease.missing for lease in missing if lease.composition <= paid)
    if further is not None and not runs:
        raise ConfigError(
            f"--budget {budget}: pays for no composition of all configurations; composition {further} of {len(blocks)} costs "
            f"{costs[further]:.3g} {budget.unit}. Raise the budget, or measure fewer cells (--where)"
        )
    return BudgetChoice(
        budget=str(budget),
        matrix=matrix_digest(plan.matrix),
        compositions=paid,
        runs=runs,
        cost=costs.get(paid, 0.0),
        runs_left_out=plan.missing - runs,
        next_cost=None if further is None else costs[further] - costs.get(paid, 0.0),
        why=f"left out by the budget of {budget}",
    )
