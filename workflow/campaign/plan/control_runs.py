"""Reference cell of a campaign, which is measured in every lease on the first device of its first host. Pure.

Its id differs between the leases of one composition, because runs are numbered by cell and composition. `hash_hardware` returns
a hash that is equal for the same work on an equal device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from campaign.common.files import hash_document
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.cell_settings import fill_min_durations
from campaign.plan.matrix import Specifications
from campaign.spec.campaign_file import Protocol
from campaign.spec.cell import Cell, Settings
from campaign.spec.run_numbers import get_number_in_composition, list_run_numbers, with_composition


class ReferenceCells:
    """Reference cells of a campaign's leases."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign, self._protocol = campaign, campaign.protocol
        self._identity = Specifications(campaign)

    def build_reference(self, cells: Sequence[Cell], composition: int | None = None) -> Cell | None:
        """Build the reference cell of the leases that these cells share. Returns None if the campaign has no reference.

        Args:
            cells: cells that share their leases.
            composition: composition that the settings are for; None for all compositions together.
        """
        if (reference := self._protocol.reference) is None:
            return None
        first, compositions = cells[0], max(cell.settings.compositions for cell in cells)
        settings = Settings(
            warmup_steps=self._protocol.warmup_steps,
            measured_steps=self._protocol.measured_steps,
            repetitions=reference.repetitions * compositions,
            compositions=compositions,
            seed=self._protocol.seed,
            time_limit_s=self._protocol.time_limit_s,
            warmup_min_s=self._protocol.warmup_min_s,
            measured_min_s=self._protocol.measured_min_s,
        )
        configuration = first.configuration.with_first_device()
        kind = self._campaign.part_on(first.configuration).device_model(configuration).runs_on
        settings = fill_min_durations(settings, self._campaign.workloads[reference.workload], kind)
        cell = Cell(
            id="",
            configuration=configuration,
            workload=reference.workload,
            batch=reference.batch,
            precision=reference.precision,
            options=dict(reference.options),
            settings=settings,
            reference=hash_document([first.configuration.shape(), _sharing_key(self._protocol, first)]),
        )
        name = self._identity(cell, settings)
        lease_settings = (
            settings if composition is None or compositions == 1 else with_composition(settings, composition)
        )
        return replace(cell, id=name, settings=lease_settings)


def _sharing_key(protocol: Protocol, cell: Cell) -> str:
    """Return the key that is equal for all cells of a configuration that share their leases."""
    return {"configuration": "", "workload": cell.workload, "cell": cell.id}[protocol.lease_per]


def collect_references(campaign: Campaign, cells: Iterable[Cell]) -> dict[str, Cell]:
    """Return the reference cells of all leases of some cells, by id."""
    if campaign.protocol.reference is None:
        return {}
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.configuration.name, _sharing_key(campaign.protocol, cell)), []).append(cell)
    references = ReferenceCells(campaign)
    cells_or_none = (references.build_reference(group) for group in groups.values())
    return {cell.id: cell for cell in cells_or_none if cell is not None}


def hash_hardware(specification: Mapping[str, Any]) -> str:
    """Hash a reference run's specification without its lease.

    The hash is equal for the same work on an equal device.
    """
    return hash_document({name: value for name, value in specification.items() if name != "reference"})


def insert_references(
    other_runs: Sequence[tuple[Cell, int]], reference_runs: Collection[tuple[Cell, int]]
) -> list[tuple[Cell, int]]:
    """Insert the reference runs of a lease evenly between its other runs, and return the order.

    The first reference run comes before all other runs, the last one after them.
    """
    result = list(other_runs)
    for cell, run in sorted(reference_runs, key=lambda entry: -entry[1]):
        last = get_number_in_composition(list_run_numbers(cell.settings)[-1])
        share = (get_number_in_composition(run) - 1) / max(1, last - 1)
        result.insert(round(share * len(other_runs)), (cell, run))
    return result
