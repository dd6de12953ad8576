"""What the Snakefile needs to know: the plan, the path of every lease's manifest, and who may run beside whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from campaign.cell import content_hash
from campaign.compose import fabric_of, unfit
from campaign.config.load import files_of
from campaign.config.resolve import Campaign, load_campaign
from campaign.config.system_file import SlurmOptions
from campaign.errors import ConfigError
from campaign.history import document_of, read_history
from campaign.matrix import expand
from campaign.paths import Results
from campaign.plan import Plan, PlannedLease, build_plan, host_count, isolation
from campaign.record import Store
from campaign.settled import implied_cells, read_known
from campaign.slurm.options import person

DEFAULT_CAMPAIGN = "config/campaign.yaml"
RESULTS = "results"
_KEYS = {
    "campaign": "path of a campaign file",
    "where": "expression that selects cells",
    "archive": "path of an archive to report from",
    "results": "directory of all results",
    "launcher": "who starts runs: local or slurm; the system file says when left out",
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

    def arguments(self) -> list[str]:
        """What says which campaign is meant, as arguments of the scripts that measure and collect."""
        where = [f"--where={self.where}"] if self.where else []
        implied = ["--run-implied"] if self.run_implied else []
        return [f"--campaign={self.campaign}", f"--results={self.results}", *where, *implied]

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
        person(config.get("slurm")),
        _is_no(config.get("skip_implied")),
    )


def _is_no(value: object) -> bool:
    """Whether a switch is off; `yes` leaves it to the campaign."""
    if value is None or str(value).lower() in ("yes", "true"):
        return False
    if str(value).lower() in ("no", "false"):
        return True
    raise ConfigError(f"--config skip_implied: '{value}' is not one of yes, no")


def read_plan(asked: Request, *, allow_unfit: bool = False) -> Plan:
    """The plan against the records that are there; ConfigError when a configuration can never fit the pool."""
    campaign = asked.load()
    results = Results(asked.results, campaign.name)
    matrix = expand(campaign, asked.where)
    store = Store(results.directory)
    known = read_known(campaign, store)
    with fabric_of(campaign.system, results.system_state(campaign.system.name)) as fabric:
        plan = build_plan(
            campaign,
            matrix,
            known.measured,
            read_history(results),
            known.stops,
            implied_cells(campaign, store, matrix.cells, known),
            where=asked.where,
            unfit=unfit(fabric, campaign),
        )
    if plan.unfit and not allow_unfit:
        told = "\n".join(
            f"{asked.campaign}: configuration {name} does not fit: {why}" for name, why in plan.unfit.items()
        )
        raise ConfigError(f"{told}\nremove the configuration, or correct the system file's hosts and pool")
    return plan


@dataclass(frozen=True)
class Dag:
    """The plan as the Snakefile sees it."""

    asked: Request
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
            if not lease.missing and _whole(path):
                return str(path)
            number += 1
        return str(path)

    @property
    def digest(self) -> str:
        """Changes exactly when the set of planned runs does."""
        return content_hash([(lease.name, lease.digest) for lease in self.plan.leases])

    @property
    def files(self) -> list[str]:
        """The YAML files that say what the campaign is, in its own words too."""
        return [str(path) for path in files_of(self.campaign.file, self.asked.campaign)]

    @property
    def scarce(self) -> dict[str, int]:
        """What leases share: hosts, and devices behind the fabric."""
        pool = sum(entry.count for entry in self.campaign.system.pool if entry.kind not in ("nvme", "nic"))
        return {"pool_hosts": host_count(self.campaign), "pool_devices": pool}

    def pool_devices(self, lease: str) -> int:
        """Devices that a lease takes out of the pool."""
        configuration = self.leases[lease].configuration
        return configuration.fabric_devices_per_host * configuration.hosts

    def threads(self, lease: str, cores: int) -> int:
        """Cores that a lease takes here: all of them where leases must not disturb each other, one a rank elsewhere."""
        if isolation(self.campaign) == "machine":
            return cores
        if self.campaign.system.launcher != "local":
            return 0
        return min(cores, max(1, self.leases[lease].configuration.ranks))

    def order(self, lease: str) -> int:
        """Priority: leases run in the order of the plan."""
        return self._priorities[lease]

    @cached_property
    def _priorities(self) -> dict[str, int]:
        return {name: len(self.leases) - index for index, name in enumerate(self.leases)}

    def told(self) -> str:
        """What a dry run says of every lease."""
        lines = [lease.describe() for lease in self.plan.leases if lease.missing]
        complete = len(self.plan.leases) - len(lines)
        if complete:
            lines.append(f"{complete} lease{'s' * (complete > 1)} complete: every run has a record")
        return "\n".join(lines)


def _whole(path: Path) -> bool:
    return document_of(path).get("missing") == []


def open_dag(asked: Request) -> Dag:
    """The DAG for what was asked; a CampaignError is for the person, without a traceback."""
    return Dag(asked, read_plan(asked))
