"""What was read of a campaign's results directory, before tables are made of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from campaign.config.resolve import Campaign
from campaign.documents.earlier_spread import EarlierSpread
from campaign.documents.record import Record, Store
from campaign.documents.rounds import CellIn
from campaign.documents.run_numbers import composition_of
from campaign.plan.matrix import Matrix
from campaign.plan.missing_runs import Known

if TYPE_CHECKING:  # it brings pandas
    from campaign.tables.leases import Busy


@dataclass(frozen=True)
class Collected:
    """Records of a campaign with everything that its tables and its report need."""

    campaign: Campaign
    matrix: Matrix
    records: list[Record]
    leases: list[dict[str, Any]]
    reasons: Mapping[str, str]
    """Why a lease's runs have no record, by lease."""
    store: Store
    beside: Sequence[Busy] = ()
    """What else the leases of these records were busy with: runs of cells that are not asked for."""
    links: Sequence[Mapping[str, Any]] = ()
    """What was measured of the links of these leases (`campaign.observe.links.lease_links`), with the configuration of each."""
    known: Known = field(default_factory=Known)
    """What has a record, and what ended cells before their most repetitions."""
    paid: Mapping[str, int] = field(default_factory=dict)
    """Of cells of which a budget leaves out runs: how many it pays for, in planned order."""
    chosen: Collection[CellIn] | None = None
    """Cells in the compositions that were chosen to answer a question; None where all are to be measured."""
    not_paid: str = ""
    """Why a run that the budget or the question leaves out has no record."""
    reference: Sequence[Record] = ()
    """Runs of the reference in these leases; `records` are those of the matrix."""
    earlier: Sequence[EarlierSpread] = ()
    """How much compositions differed in earlier campaigns on the system."""
    hosts_left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a host that failed is not asked for any more, by host."""

    def is_chosen(self, cell_id: str, run: int) -> bool:
        """Whether a run was to be measured for the question that the campaign is asked."""
        return self.chosen is None or (cell_id, composition_of(run)) in self.chosen
