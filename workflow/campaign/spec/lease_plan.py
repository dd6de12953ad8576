"""Plan of one lease as a document (`lease-plan/1`), which contains everything that `campaign measure` needs.

The workflow, or `campaign plan --write`, writes it to `plan/leases/<lease>.json`, and again if a run or the manifest is missing.
`checksum` covers the whole document, so that an edited or truncated file is rejected.
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
"""Parts of a cell's specification that many cells share. The specification contains their hashes."""
_REWRITE_HINT = "write it again with 'campaign plan --write'"


class LeaseCharge(ClosedModel):
    """Resources that a site charges for a lease, and the request of its Slurm allocation."""

    hosts: int
    """Number of hosts of the composition."""
    donors: int = 0
    """Number of further hosts that are held because one of their devices is composed (`home` of a pool entry)."""
    devices: float
    """Maximum number of devices that are held at the same time."""
    devices_idle: float
    """Number of held devices that no run uses."""
    partition: str
    """Partition. Empty for the default partition, and without Slurm."""
    time_limit_min: int | None
    """Time limit of the allocation in minutes. Null without Slurm."""
    gres: str
    """Generic resource (GRES) requested on each host, such as `gpu:4`. Empty without Slurm."""
    exclusive: bool
    """True if whole hosts are requested."""
    device_hours: float | None
    """Expected device-hours held. Null if unknown."""
    host_hours: float | None
    """Expected host-hours held. Null if unknown."""
    price: float | None = None
    """Price of these device-hours, at the mean price of the configuration's devices. Null if a device has no price."""


class LeaseForecast(VersionedModel):
    """Expected duration of the runs that had no record when the plan was made."""

    gone = frozenset({"parts"})

    runs: int
    """Number of these runs."""
    expected_s: float | None
    """Expected duration in seconds, including composing. Null if unknown."""
    low_s: float | None
    """Lower bound of the expected duration, derived from the errors of earlier forecasts. Null if unknown."""
    high_s: float | None
    """Upper bound of the expected duration. Null if unknown."""
    runs_s: float | None
    """Expected duration of the runs and of the time between them, in seconds. Null if unknown."""
    basis: str
    """Basis of the forecast."""


class PlannedCell(ClosedModel):
    """One cell of the lease."""

    id: str
    """Hash of the specification."""
    workload: str
    """Name of the workload."""
    batch: int
    """Samples per device and step."""
    precision: str
    """Number format."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options that are axes of the campaign."""
    settings: Settings
    """Steps, repetitions, compositions, target, seed and time limit."""
    runs: tuple[int, ...] = ()
    """Numbers of its runs in this lease: (composition - 1) x 1000 + 1, 2, .."""
    specification: dict[str, Any]
    """Specification that identifies the cell. `system`, `configuration` and `workload` are hashes of `parts`."""
    reference: str = ""
    """Hash of the lease shape, in the specification of the reference cell, which uses only the first device of the first host.
    Empty for all other cells."""
    memory_key: str
    """Key that is equal for cells that differ only in their batch. It is used in `batches` and for the files in limits/."""


def remove_layout(given: object) -> object:
    """Return a document without the layout number that earlier versions wrote."""
    return drop_layout(given) if isinstance(given, dict) else given


class LeasePlan(ClosedModel):
    """Plan of one lease: the composition, its runs, and their settings."""

    schema_version: Literal["lease-plan/1"] = SCHEMA
    """Version of this format."""
    campaign: str
    """Name of the campaign."""
    lease: str
    """Name of the lease."""
    configuration: Annotated[Configuration, BeforeValidator(remove_layout)]
    """Hardware to compose."""
    composition: int = 1
    """Number of the composition of this configuration, from 1."""
    run_set: str
    """Hash of the runs."""
    cells: tuple[PlannedCell, ...]
    """Cells to measure."""
    parts: dict[str, dict[str, Any]]
    """Parts of specifications, by hash."""
    batches: dict[str, tuple[tuple[int, str], ...]]
    """Batch and cell id of every cell of the campaign, by `memory_key`, including cells of other leases."""
    forecast: LeaseForecast | None
    """Expected duration. Null if nothing is to be measured."""
    charge: LeaseCharge | None = None
    """Resources that a site charges for the lease, and the request of its allocation. Null if nothing is to be measured."""
    slurm: dict[str, Any]
    """Options of the allocation: those of the system file and its overrides, updated by those of the profile or command line."""
    campaign_hash: str
    """Hash of `campaign_as_used`, which is its file name in shared/ of the results."""
    campaign_as_used: dict[str, Any]
    """Campaign, system and workloads with all defaults filled in."""
    token: str = ""
    """Random text that changes whenever a run or the manifest is missing, because Snakemake repeats a job only if the content of
    its input has changed."""
    checksum: str = ""
    """Hash of all other keys."""

    @property
    def digest(self) -> str:
        """Hash of the measurements and their settings, without the forecast."""
        return compute_digest(self.lease, self.run_set, self.slurm, self.campaign_hash)

    @property
    def has_several_systems(self) -> bool:
        """True if the campaign is measured on several systems."""
        return "systems" in self.campaign_as_used

    @cached_property
    def work_cells(self) -> tuple[Cell, ...]:
        """Cells of the lease as `Cell` objects."""
        return tuple(
            Cell(
                c.id,
                self.configuration.with_first_device() if c.reference else self.configuration,
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
    def _cell_by_id(self) -> dict[str, PlannedCell]:
        return {cell.id: cell for cell in self.cells}

    def specification(self, cell: Cell) -> dict[str, Any]:
        """Return the full specification of a cell, from which its id is computed."""
        hashed = self._cell_by_id[cell.id].specification
        return {**hashed, **{part: self.parts[hashed[part]] for part in HASHED_PARTS}}

    def memory_key(self, cell: Cell) -> str:
        """Return the key that a cell shares with cells that differ only in their batch."""
        return self._cell_by_id[cell.id].memory_key

    def format_text(self, campaigns: dict[str, str] | None = None) -> str:
        """Return the content of the file with its checksum, one key per line.

        Args:
            campaigns: cache of the JSON texts of campaigns by hash, shared between leases.
        """
        as_used = {} if campaigns is None else campaigns
        if self.campaign_hash not in as_used:
            as_used[self.campaign_hash] = dump_canonical_json(self.campaign_as_used)
        document = self.model_dump(mode="json", exclude={"campaign_as_used", "checksum"})
        parts = {name: dump_canonical_json(part) for name, part in document.items()}
        parts["campaign_as_used"] = as_used[self.campaign_hash]
        body = ",".join(f'"{name}":{parts[name]}' for name in sorted(parts))
        parts["checksum"] = f'"{hash_text("{" + body + "}")}"'
        return "{\n" + ",\n".join(f'"{name}":{part}' for name, part in parts.items()) + "\n}\n"


def compute_digest(lease: str, run_set: str, slurm: dict[str, Any], campaign_hash: str) -> str:
    """Return the hash described at `LeasePlan.digest`."""
    return hash_document([lease, run_set, slurm, campaign_hash], 12)


def read_lease_plan(path: Path) -> LeasePlan:
    """Read a lease plan from a file. Raises ConfigError with the problem and the remedy if it is invalid."""
    try:
        document = load_json(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); 'campaign plan --write' writes the plans of all leases"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid JSON ({error}); {_REWRITE_HINT}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA:
        raise ConfigError(
            f"{path}: schema_version is {version!r} instead of '{SCHEMA}'; give a file in plan/leases/, or {_REWRITE_HINT}"
        )
    if document.get("checksum") != _compute_checksum(document):
        raise ConfigError(
            f"{path}: was edited or is incomplete (its checksum does not "
            f"match); edit the campaign file instead, then {_REWRITE_HINT}"
        )
    try:
        return LeasePlan.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {format_first_error(error, 'the file')}; {_REWRITE_HINT}") from error


def _compute_checksum(document: dict[str, Any]) -> str:
    return hash_document({name: value for name, value in document.items() if name != "checksum"})
