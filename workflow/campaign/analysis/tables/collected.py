"""Records of a results directory that the tables and the report of a campaign use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from campaign.plan.analysis import Analysis
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.matrix import Matrix
from campaign.plan.missing_runs import RecordedRuns
from campaign.spec.earlier_spread import EarlierSpread
from campaign.spec.race import RaceDocument
from campaign.spec.record import Record, RecordStore

if TYPE_CHECKING:
    from campaign.analysis.tables.leases import BusySpan


@dataclass(frozen=True)
class CampaignResults:
    """Records of a campaign, with all other data from which its tables and report are built."""

    campaign: Campaign
    matrix: Matrix
    records: list[Record]
    leases: list[dict[str, Any]]
    missing_reasons: Mapping[str, str]
    """Reason why the runs of a lease have no record, by lease."""
    store: RecordStore
    other_uses: Sequence[BusySpan] = ()
    """Runs of unselected cells on the leases of these records."""
    links: Sequence[Mapping[str, Any]] = ()
    """Measurements of the links of these leases (`campaign.observe.links.lease_links`), each with its configuration."""
    known_runs: RecordedRuns = field(default_factory=RecordedRuns)
    """Recorded runs, and the reasons why cells ended before their maximum number of repetitions."""
    reference: Sequence[Record] = ()
    """Runs of the reference in these leases; `records` are those of the matrix."""
    earlier_spreads: Sequence[EarlierSpread] = ()
    """Spreads of compositions in earlier campaigns on the system."""
    analysis: Sequence[Analysis] = ()
    """Registered analysis, and its later versions."""
    race: RaceDocument | None = None
    """State of the race for the best configuration, if the campaign has one."""
    hosts_left_out: Mapping[str, str] = field(default_factory=dict)
    """Reason why a failed host is no longer requested, by host."""
