"""What the Snakefile needs to know: the plan, the path of every lease's manifest, and who may run beside whom."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from campaign.config.load import files_of
from campaign.config.open_fabric import fabric_of, hosts_taken, of_each, unfit
from campaign.config.resolve import Campaign, load_campaign
from campaign.config.resolve_slurm_options import given_options
from campaign.config.system_file import SlurmOptions
from campaign.documents.cell import Cell
from campaign.documents.record import Store
from campaign.documents.rounds import CellIn, Rounds, kept_rounds
from campaign.documents.superseded import RecordedHosts
from campaign.errors import ConfigError
from campaign.fabrics.protocol import Fabric
from campaign.fabrics.registry import fabric_kind
from campaign.files import content_hash, read_json
from campaign.paths import Results
from campaign.plan.cost.assumption import NOTHING_ASSUMED, Assumption, parse_assumption
from campaign.plan.cost.budget import Budget, kept_choice, matrix_digest, parse_budget
from campaign.plan.cost.costs import Costs
from campaign.plan.cost.forecast import Forecaster
from campaign.plan.cost.history import document_of, earlier_spread, read_costs
from campaign.plan.cost.recorded_operations import composing_of
from campaign.plan.cost.several_systems import SystemForecasters
from campaign.plan.lease_order import Earlier, order_basis
from campaign.plan.lease_plans import DocumentNames, plan_digest
from campaign.plan.matrix import Matrix, expand
from campaign.plan.missing_runs import implied_cells, read_known, without_damaged
from campaign.plan.oom_frontier import campaign_frontier
from campaign.plan.plan import Plan, PlannedLease, build_plan
from campaign.plan.plan_within_budget import plan_within
from campaign.plan.planned_operations import counting, counting_each
from campaign.workloads.sample_flops import sample_flops

DEFAULT_CAMPAIGN = "config/campaign.yaml"
RESULTS = "results"
_TOLD = 20
"""Leases that a dry run shows."""
_KEYS = {
    "campaign": "path of a campaign file",
    "where": "expression that selects cells",
    "archive": "path of an archive to report from",
    "results": "directory of all results",
    "launcher": "who starts runs: local or slurm; the system file says when left out",
    "until": "a question: leases are measured in rounds until it is answered, such as 'the best configuration is known within 5 %'",
    "budget": "what may be spent on what is still to be measured, such as '500 device-hours' or '8 h'",
    "assume": "times that nothing is known of, such as '10 min a run' or 'bert-large: 2 h a run, 30 s to compose'",
    "learn_from": "archives and results directories to learn costs from, beside those below the results directory",
    "skip_implied": "yes or no: whether batches that a smaller one implies to run out of memory are left out, as the campaign says",
    "slurm": "what allocations ask of Slurm, such as {account: x, partition: y}",
}


@dataclass(frozen=True)
class Request:
    """What a person asked Snakemake for with `--config`."""

    campaign: Path
    results: Path
    where: str | None = None
    archive: Path | None = None
    launcher: str | None = None
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    run_implied: bool = False
    until: str | None = None
    budget: Budget | None = None
    learn_from: tuple[Path, ...] = ()
    assumed: Assumption = NOTHING_ASSUMED

    def arguments(self) -> list[str]:
        """The same as arguments of `campaign plan`."""
        slurm = self.slurm.model_dump_json(exclude_defaults=True)
        given = {
            "where": self.where,
            "until": self.until,
            "budget": self.budget and str(self.budget),
            "assume": self.assumed.text,
            "launcher": self.launcher,
            "slurm": "" if slurm == "{}" else slurm,
        }
        return [
            str(self.campaign),
            f"--results={self.results}",
            *(f"--{name}={value}" for name, value in given.items() if value),
            *(f"--learn-from={path}" for path in self.learn_from),
            *(["--run-implied"] if self.run_implied else []),
        ]

    def load(self) -> Campaign:
        """The campaign as asked for."""
        return load_campaign(self.campaign, self.launcher, self.slurm, run_implied=self.run_implied)


def request(config: Mapping[str, Any]) -> Request:
    """Type Snakemake's configuration at the door; ConfigError for a key that does not exist."""
    for key in config:
        if key not in _KEYS:
            known = "; ".join(f"{name}: {meaning}" for name, meaning in _KEYS.items())
            raise ConfigError(f"--config {key}: no such key; there are: {known}")
    where = config.get("where")
    archive = config.get("archive")
    launcher = config.get("launcher")
    if launcher not in (None, "local", "slurm"):
        raise ConfigError(f"--config launcher: '{launcher}' is not one of local, slurm")
    return Request(
        Path(str(config.get("campaign", DEFAULT_CAMPAIGN))),
        Path(str(config.get("results", RESULTS))),
        None if where in (None, "") else str(where),
        None if archive is None else Path(str(archive)),
        launcher,
        given_options(config.get("slurm")),
        _is_no(config.get("skip_implied")),
        str(config["until"]) if config.get("until") else None,
        parse_budget(str(config["budget"])) if config.get("budget") else None,
        _paths(config.get("learn_from")),
        _assumption(config.get("assume")),
    )


def _assumption(value: object) -> Assumption:
    """'bert-large: 2 h a run' is a mapping to Snakemake."""
    if isinstance(value, Mapping):
        value = ", ".join(f"{name}: {time}" for name, time in value.items())
    return parse_assumption(str(value)) if value else NOTHING_ASSUMED


def _paths(value: object) -> tuple[Path, ...]:
    """One path, or several: a list, or separated by commas."""
    found = value if isinstance(value, list | tuple) else str(value or "").split(",")
    return tuple(Path(str(each).strip()) for each in found if str(each).strip())


def _is_no(value: object) -> bool:
    """Whether a switch is off; `yes` leaves it to the campaign."""
    if value is None or str(value).lower() in ("yes", "true"):
        return False
    if str(value).lower() in ("no", "false"):
        return True
    raise ConfigError(f"--config skip_implied: '{value}' is not one of yes, no")


def read_plan(asked: Request, *, allow_unfit: bool = False, checked: bool = True, rounds: Rounds | None = None) -> Plan:
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
    implied = implied_cells(campaign_frontier(campaign, store), matrix.cells, known)
    costs = read_costs(results, asked.learn_from)
    forecaster = forecaster_of(campaign, costs, asked.assumed)
    with ExitStack() as opened:
        # A system of which nothing is selected may be out of reach here.
        chosen = {cell.configuration.system for cell in matrix.cells}
        fabrics = [(part, _opened(part, results, opened)) for part in campaign.parts if part.part in chosen]
        why_not = of_each({part.part: unfit(fabric, part) for part, fabric in fabrics})
        taken = of_each({part.part: hosts_taken(fabric, part) for part, fabric in fabrics})
        counted = counting_each({part.part: counting(fabric, part) for part, fabric in fabrics})
        earlier = _earlier(results, campaign)

        def planned(of: Matrix, only: Collection[CellIn] | None = None) -> Plan:
            return build_plan(
                campaign, of, known.measured, forecaster, known.stops, implied,
                where=asked.where, unfit=why_not, taken=taken, counted=counted, earlier=earlier, only=only,
            )  # fmt: skip

        plan = planned(matrix)
        if asked.until and rounds is None:
            rounds = kept_rounds(results, asked.until, asked.where, matrix_digest(matrix.cells))
        if asked.until and rounds:
            recorded = {
                (cell.id, lease.composition) for lease, cell in plan.cells if cell.id not in lease.cells_missing
            }
            plan = replace(planned(matrix, recorded | rounds.chosen), rounds=rounds, unplanned=plan.unplanned)
        elif asked.budget:
            choice = kept_choice(results.budget)
            there = choice if choice and choice.is_of(asked.budget, matrix.cells) else None
            plan = plan_within(asked.budget, there, plan, matrix, known, forecaster, planned)
    plan = replace(plan, earlier=earlier_spread(costs, campaign.name, campaign.systems))
    if plan.unfit and not allow_unfit:
        raise ConfigError("\n".join(unfit_messages(plan)))
    return plan


def _opened(part: Campaign, results: Results, opened: ExitStack) -> Fabric:
    state, where = results.system_state(part.part), part.system_source.place("fabric")
    return opened.enter_context(fabric_of(part.system, state, where))


def _earlier(results: Results, campaign: Campaign) -> Earlier:
    """The order in which leases were planned before; empty where that rests on something else, or there is no plan."""
    document = read_json(results.plan_document)
    if document.get("order_basis") != order_basis(campaign):
        return ()
    return [(int(lease["composition"]), str(lease["configuration"])) for lease in document["leases"]]


def forecaster_of(campaign: Campaign, costs: Sequence[Costs], assumed: Assumption) -> Forecaster | SystemForecasters:
    """Forecasts for a campaign from what others have cost."""
    if not campaign.part:
        return SystemForecasters({part.part: _forecaster(part, costs, assumed) for part in campaign.parts})
    return _forecaster(campaign, costs, assumed)


def _forecaster(campaign: Campaign, costs: Sequence[Costs], assumed: Assumption) -> Forecaster:
    flops: dict[str, float | None] = {}

    def of(cell: Cell) -> float | None:
        key = f"{cell.workload} {sorted(cell.options.items())}"
        if key not in flops:
            workload = campaign.workloads[cell.workload]
            model = {"kind": workload.kind, "model": getattr(workload, "model", None)}
            flops[key] = sample_flops(model, {**workload.options, **cell.options})
        return flops[key]

    kind = str(campaign.system.fabric["kind"])
    composing = composing_of(campaign, costs)
    return Forecaster(costs, campaign.system.name, kind, assumed, of, composing, fabric_kind(kind).serial)


def unfit_messages(plan: Plan) -> Iterator[str]:
    """One message for each configuration that does not fit, with its place in the campaign's file."""
    campaign = plan.campaign
    for name, why in plan.unfit.items():
        place = campaign.place("configurations", campaign.shape_of(name))
        yield (
            f"{place}: configuration {name} does not fit: {why.removeprefix('plan: ')}; remove it, or correct hosts and pool in "
            "the system file"
        )


@dataclass(frozen=True)
class Dag:
    """The plan as the Snakefile sees it."""

    asked: Request
    plan: Plan

    @property
    def campaign(self) -> Campaign:
        return self.plan.campaign

    @property
    def by_slurm(self) -> bool:
        """Whether Slurm starts all runs, so that this machine only waits."""
        return all(system.launcher == "slurm" for system in self.campaign.systems.values())

    @cached_property
    def results(self) -> Results:
        return Results(self.asked.results, self.campaign.name)

    @cached_property
    def leases(self) -> dict[str, PlannedLease]:
        return {lease.name: lease for lease in self.plan.leases}

    @cached_property
    def manifests(self) -> list[str]:
        return [self.manifest(lease) for lease in self.plan.leases]

    def manifest(self, lease: PlannedLease) -> str:
        """Path of a lease's manifest: of the one that is there and complete, or of the one to be made.

        The name follows from the set of runs, and from how often it was found incomplete. So a lease is measured again
        exactly when a record is missing, whatever Snakemake remembers of earlier invocations.
        """
        directory = self.results.manifests / lease.name
        number = 1
        while (path := directory / f"{lease.digest}.{number}.json").exists():
            if not lease.missing and document_of(path).get("missing") == []:
                return str(path)
            number += 1
        return str(path)

    @property
    def listing(self) -> str:
        """Path of the list of all manifests, which says that they are there; its name follows from theirs."""
        return str(self.results.listings / f"{content_hash(self.manifests, 12)}.json")

    @property
    def to_measure(self) -> list[PlannedLease]:
        """Leases whose manifest is to be made."""
        return [lease for lease, path in zip(self.plan.leases, self.manifests, strict=True) if not Path(path).exists()]

    @property
    def is_measured(self) -> bool:
        """Whether there is nothing to make: then the listing is nobody's output, whatever Snakemake remembers."""
        return not self.to_measure

    @property
    def measured(self) -> list[str]:
        """What says that all leases are measured: the listing, or the manifests of leases that were measured by hand."""
        return [self.listing] if self.to_measure or Path(self.listing).exists() else self.manifests

    def describe(self) -> str:
        """What a dry run says about the leases that are to be measured."""
        told = self.to_measure
        more = len(told) - _TOLD
        lines = [lease.describe() for lease in (told[:_TOLD] if more > 1 else told)]
        return "\n".join([*lines, *([f"... and {more} more leases; 'campaign plan' shows them"] if more > 1 else [])])

    @cached_property
    def _names(self) -> DocumentNames:
        return DocumentNames(self.campaign)

    def lease_plan(self, lease: str) -> str:
        """Path of a lease's document."""
        return str(self.results.lease_plans / self._names(self.leases[lease]))

    @property
    def files(self) -> list[str]:
        """The YAML files that the plan was made from, and the input files of its workloads."""
        inputs = [file.path for files in self.campaign.inputs.values() for file in files.values()]
        return [*(str(path) for path in files_of(self.campaign.file, self.asked.campaign)), *inputs]

    @cached_property
    def plan_file(self) -> str:
        """Path of the plan's document: of the one that is there, or of the one to be made.

        The name follows from what is planned, and from how often another plan took its place since.
        """
        digest, last, number = plan_digest(self.plan), None, 1
        while (path := self.results.plan / f"plan.{digest}.{number}.json").exists():
            last, number = path, number + 1
        current = read_json(self.results.plan_document).get("digest") == digest
        written = current and all(Path(self.lease_plan(name)).exists() for name in self.leases)
        return str(last if last and written else path)


def open_dag(asked: Request) -> Dag:
    """The DAG for what was asked; a CampaignError is for the person, without a traceback."""
    return Dag(asked, read_plan(asked))
