"""The plan of one lease as a document (`lease-plan/1`): everything that `campaign measure` needs, in one file.

The workflow, or `campaign plan --write`, writes it to `plan/leases/<lease>.json`, anew where a run or the manifest is missing.
`checksum` covers all of it: a file that was edited or cut short is refused.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from campaign.common.errors import ConfigError, format_first_error
from campaign.common.files import dump_canonical_json, hash_document, hash_text, load_json
from campaign.spec.cell import Cell, Configuration, Scalar, Settings, drop_layout
from campaign.spec.fields import ClosedModel, VersionedModel

SCHEMA: Literal["lease-plan/1"] = "lease-plan/1"
HASHED_PARTS = ("system", "configuration", "workload")
"""Parts of a cell's specification that many cells share: the specification holds their hashes."""
_AGAIN = "write it again with 'campaign plan --write'"


class LeaseCharge(ClosedModel):
    """What a site charges for a lease, and what its allocation asks of Slurm."""

    hosts: int
    """Hosts of the composition."""
    donors: int = 0
    """Further hosts that are held because a device of theirs is composed (`home` of a pool entry)."""
    devices: float
    """Most devices that are held at a time."""
    devices_idle: float
    """Of the devices held, those that no run uses."""
    partition: str
    """Partition; empty for the default one, and without Slurm."""
    time_limit_min: int | None
    """Time limit of the allocation in minutes; null without Slurm."""
    gres: str
    """Generic resource that is asked for on each host, such as `gpu:4`; empty without Slurm."""
    exclusive: bool
    """Whether whole hosts are asked for."""
    device_hours: float | None
    """Expected device-hours held; null where they are unknown."""
    host_hours: float | None
    """Expected host-hours held; null where they are unknown."""
    price: float | None = None
    """Price of these device-hours, at the mean price of the configuration's devices; null where one has none."""


class LeaseForecast(VersionedModel):
    """Expected duration of the runs that had no record when the plan was made."""

    gone = frozenset({"parts"})

    runs: int
    """Runs that it is about."""
    expected_s: float | None
    """Expected duration in seconds, composing included; null where it is unknown."""
    low_s: float | None
    """Lower end of its interval, by how far earlier forecasts were off; null where it is unknown."""
    high_s: float | None
    """Upper end of it."""
    runs_s: float | None
    """Expected duration of the runs and of what lies between them; null where it is unknown."""
    basis: str
    """What the expectation rests on."""


class PlannedCell(ClosedModel):
    """One cell of the lease."""

    id: str
    """Hash of the specification."""
    workload: str
    """Name of the workload."""
    batch: int
    """Samples a device takes in one step."""
    precision: str
    """Number format."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options that are axes of the campaign."""
    settings: Settings
    """Steps, repetitions and compositions, target, seed and time limit."""
    runs: tuple[int, ...] = ()
    """Numbers of its runs on this lease: (composition - 1) x 1000 + 1, 2, .."""
    specification: dict[str, Any]
    """What makes the cell what it is; `system`, `configuration` and `workload` are hashes of `parts`."""
    reference: str = ""
    """Part of the specification of the control cell, which uses the first device of the first host alone; empty for others."""
    memory_key: str
    """Equal for cells that differ in their batch alone: key of `batches`, and of the files in limits/."""


def _without_layout(given: object) -> object:
    return drop_layout(given) if isinstance(given, dict) else given


class LeasePlan(ClosedModel):
    """One lease: what is composed, which runs are measured on it, and how."""

    schema_version: Literal["lease-plan/1"] = SCHEMA
    """Version of this format."""
    campaign: str
    """Name of the campaign."""
    lease: str
    """Name of the lease."""
    configuration: Annotated[Configuration, BeforeValidator(_without_layout)]
    """Hardware that is composed."""
    composition: int = 1
    """Which composition of the configuration it is, from 1."""
    run_set: str
    """Hash of the runs."""
    cells: tuple[PlannedCell, ...]
    """Cells that are measured."""
    parts: dict[str, dict[str, Any]]
    """Parts of specifications, by hash."""
    batches: dict[str, tuple[tuple[int, str], ...]]
    """By `hash_memory_use`: batch and cell id of every cell of the campaign with this key, in this lease or not."""
    forecast: LeaseForecast | None
    """Expected duration; null where nothing is to be measured."""
    charge: LeaseCharge | None = None
    """What a site charges for it, and what its allocation asks for; null where nothing is to be measured."""
    slurm: dict[str, Any]
    """Options of the allocation: those of the system file and its overrides, with those of the profile or command line."""
    campaign_hash: str
    """Hash of `campaign_as_used`; its name in shared/ of the results."""
    campaign_as_used: dict[str, Any]
    """The campaign, its system and its workloads, with all defaults filled in."""
    token: str = ""
    """Drawn anew whenever a run or the manifest is missing: Snakemake makes no manifest again from a file with the same content."""
    checksum: str = ""
    """Hash of all of the above."""

    @property
    def digest(self) -> str:
        """Hash of what is measured and how, without what is expected of it."""
        return document_digest(self.lease, self.run_set, self.slurm, self.campaign_hash)

    @property
    def is_of_several_systems(self) -> bool:
        """Whether the campaign is measured on several systems."""
        return "systems" in self.campaign_as_used

    @cached_property
    def work(self) -> tuple[Cell, ...]:
        """The cells as the rest of the package knows them."""
        return tuple(
            Cell(
                c.id,
                self.configuration.first_device() if c.reference else self.configuration,
                c.workload,
                c.batch,
                c.precision,
                c.options,
                c.settings,
                c.reference,
            )
            for c in self.cells
        )

    @cached_property
    def _by_id(self) -> dict[str, PlannedCell]:
        return {cell.id: cell for cell in self.cells}

    def specification(self, cell: Cell) -> dict[str, Any]:
        """What is hashed into the id of one of the cells, in full."""
        hashed = self._by_id[cell.id].specification
        return {**hashed, **{part: self.parts[hashed[part]] for part in HASHED_PARTS}}

    def memory_key(self, cell: Cell) -> str:
        return self._by_id[cell.id].memory_key

    def text(self, campaigns: dict[str, str] | None = None) -> str:
        """The file's content, with its checksum: a line a part. campaigns: texts of campaigns by hash, kept from lease to lease."""
        as_used = {} if campaigns is None else campaigns
        if self.campaign_hash not in as_used:
            as_used[self.campaign_hash] = dump_canonical_json(self.campaign_as_used)
        document = self.model_dump(mode="json", exclude={"campaign_as_used", "checksum"})
        parts = {name: dump_canonical_json(part) for name, part in document.items()}
        parts["campaign_as_used"] = as_used[self.campaign_hash]
        whole = ",".join(f'"{name}":{parts[name]}' for name in sorted(parts))
        parts["checksum"] = f'"{hash_text("{" + whole + "}")}"'
        return "{\n" + ",\n".join(f'"{name}":{part}' for name, part in parts.items()) + "\n}\n"


def document_digest(lease: str, run_set: str, slurm: dict[str, Any], campaign_hash: str) -> str:
    """See `LeasePlan.digest`."""
    return hash_document([lease, run_set, slurm, campaign_hash], 12)


def read_lease_plan(path: Path) -> LeasePlan:
    """The document in a file; ConfigError says why it is none, and what to do."""
    try:
        document = load_json(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); 'campaign plan --write' writes a lease plan for every lease"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON ({error}); {_AGAIN}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA:
        raise ConfigError(
            f"{path}: schema_version is {version!r}, not '{SCHEMA}'; give a file of plan/leases/, or {_AGAIN}"
        )
    if document.get("checksum") != _checksum(document):
        raise ConfigError(
            f"{path}: was edited or is not complete: its checksum does not match; change the campaign file, then {_AGAIN}"
        )
    try:
        return LeasePlan.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {format_first_error(error, 'the file')}; {_AGAIN}") from error


def _checksum(document: dict[str, Any]) -> str:
    return hash_document({name: value for name, value in document.items() if name != "checksum"})
