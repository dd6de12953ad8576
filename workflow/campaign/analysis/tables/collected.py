"""What was read of a results directory for the tables and the report of a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from campaign.plan.analysis import Analysis
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.matrix import Matrix
from campaign.plan.missing_runs import KnownRuns
from campaign.spec.earlier_spread import EarlierSpread
from campaign.spec.race import RaceDocument
from campaign.spec.record import Record, Store

if TYPE_CHECKING:
    from campaign.analysis.tables.leases import BusySpan


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
    beside: Sequence[BusySpan] = ()
    """What else the leases of these records were busy with: runs of cells that are not asked for."""
    links: Sequence[Mapping[str, Any]] = ()
    """What was measured of the links of these leases (`campaign.observe.links.lease_links`), with the configuration of each."""
    known: KnownRuns = field(default_factory=KnownRuns)
    """What has a record, and what ended cells before their most repetitions."""
    reference: Sequence[Record] = ()
    """Runs of the reference in these leases; `records` are those of the matrix."""
    earlier: Sequence[EarlierSpread] = ()
    """How much compositions differed in earlier campaigns on the system."""
    analysis: Sequence[Analysis] = ()
    """The analysis as it was written down, and its later versions."""
    race: RaceDocument | None = None
    """How the race for the best configuration stands, where the campaign was measured for one."""
    hosts_left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a host that failed is not asked for any more, by host."""
