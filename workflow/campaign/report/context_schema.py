"""What the report page is told beside tables, leases and figures: a closed document, checked before anything is laid out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from campaign.spec.earlier_spread import EarlierSpread
from campaign.spec.fields import ClosedModel, VersionedModel
from campaign.spec.race import RaceDocument


class MetricSaid(ClosedModel):
    """A number of a run, and which direction of it is better."""

    name: str = Field(default="throughput_per_s", description="column of the runs table")
    label: str = Field(default="throughput", description="in sentences")
    unit: str = "samples/s"
    better: Literal["higher", "lower"] = "higher"


class LayoutSaid(ClosedModel):
    """Figures that stand open under Answers, in their order, and those that are left out; as the campaign file names them."""

    open: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()


class AnalysisSaid(ClosedModel):
    """A version of the analysis: what is compared and how (`campaign.plan.analysis`)."""

    hash: str
    written: str = Field(description="date and time, UTC; empty for one that no plan was written with")
    runs: int = Field(description="how many runs had a record then")
    changed: tuple[str, ...] = Field(default=(), description="keys that differ from the version before")


class CampaignSaid(ClosedModel):
    """What the campaign says of itself."""

    name: str
    title: str
    question: str
    system: str
    baseline: str
    report: LayoutSaid = LayoutSaid()
    analysis: tuple[AnalysisSaid, ...] = Field(default=(), description="none without a plan")
    metric: MetricSaid = Field(default=MetricSaid(), description="the primary metric")
    metrics: tuple[MetricSaid, ...] = Field(
        default=(), description="it and those whose unit or direction a workload file says"
    )
    protocol: dict[str, Any]
    earlier_spread: tuple[EarlierSpread, ...] = Field(
        default=(), description="how much compositions differed in earlier campaigns on the system"
    )


class OperationSaid(ClosedModel):
    """Recorded seconds of one operation: 5 % quantile, median, 95 % quantile."""

    operation: str
    count: int
    low_s: float
    median_s: float
    high_s: float


class TimesSaid(ClosedModel):
    """Recordings of this kind of fabric."""

    source: str
    operations: tuple[OperationSaid, ...]


class SystemSaid(ClosedModel):
    name: str
    description: str = ""
    fabric: str = Field(description="the kind of fabric")
    currency: str = Field(default="", description="of prices, where there are any")
    times: TimesSaid | None = Field(default=None, description="recorded times of the fabric's operations")


class Excluded(ClosedModel):
    """A rule of the campaign that took cells out of the matrix, why, and how many."""

    rule: str
    why: str
    cells: int


class HostLeftOut(ClosedModel):
    """A host that failed under an allocation, so that the campaign asks for it no more."""

    host: str
    why: str


class SoftwareVersion(ClosedModel):
    name: str
    version: str


class PublishedDocument(ClosedModel):
    """A publication that the campaign is held against."""

    name: str
    title: str
    authors: str
    venue: str = ""
    doi: str = ""
    note: str = ""


class PublishedClaim(ClosedModel):
    """One claim of a publication beside what was measured here, both in words (`campaign.analysis.published.claims`)."""

    id: str
    document: str
    where: str
    figure: str = Field(default="", description="anchor of the figure that shows the same quantity")
    says: str
    published: str = Field(description="the printed number; empty where the claim is a direction")
    told: str = Field(default="", description="what it says with its number, where the words do not hold that")
    conditions: str
    note: str = ""
    verdict: Literal["agrees", "differs", "undecided", "not measured here"]
    other: tuple[str, ...] = Field(default=(), description="conditions here that are not the document's")
    other_program: bool = Field(default=False, description="whether the program is the only one of these")
    here: str = ""
    of: str = Field(default="", description="which cells it is of")
    reason: str = Field(default="", description="why there is nothing here")
    cells: tuple[str, ...] = ()
    off_pct: float | None = Field(
        default=None, description="distance from what agrees, in percent of throughput; null where that means nothing"
    )
    confident: bool = Field(default=False, description="whether the whole interval is outside of what agrees")
    direction: bool = False
    scored: bool = Field(default=False, description="whether it counts: it is about a step")


class PublishedSaid(ClosedModel):
    documents: tuple[PublishedDocument, ...] = ()
    claims: tuple[PublishedClaim, ...] = ()


class ForecastSaid(VersionedModel):
    """Expected and actual duration of a lease that was measured. Null where nothing was known before."""

    gone = frozenset({"parts"})

    lease: str
    configuration: str
    runs_expected: int
    runs: int
    uses: int = Field(description="how often the lease was composed for it")
    expected_s: float | None
    low_s: float | None
    high_s: float | None
    basis: str
    resumed: bool = Field(description="whether it was begun before by a process that was killed")
    actual_s: float


class ContextDocument(VersionedModel):
    """What the page needs beside tables, leases and figures. Unknown keys are errors."""

    gone = frozenset({"inputs", "objectives", "prediction", "questions"})

    campaign: CampaignSaid
    campaign_yaml: str
    system: SystemSaid
    conditions: tuple[str, ...] = Field(
        default=(), description="what stood for hardware, such as 'the fabric is simulated'; in every caption"
    )
    notes: tuple[str, ...] = Field(default=(), description="what every reader should know, e.g. what is emulated")
    excluded: tuple[Excluded, ...] = ()
    hosts_left_out: tuple[HostLeftOut, ...] = ()
    launchers: dict[str, int] = Field(default_factory=dict, description="how many runs each launcher started")
    software: tuple[SoftwareVersion, ...] = ()
    environments: dict[str, dict[str, Any]] = Field(default_factory=dict, description="by hash")
    schema_versions: dict[str, str] = Field(default_factory=dict)
    flags: dict[str, str] = Field(default_factory=dict, description="what a flag of a run means")
    references: tuple[dict[str, Any], ...] = Field(default=(), description="sets of published claims, `published/1`")
    published: PublishedSaid = Field(default=PublishedSaid(), description="the same beside what was measured, in words")
    forecast: tuple[ForecastSaid, ...] = ()
    race: RaceDocument | None = Field(
        default=None,
        description="how the race for the best configuration ended, where the campaign was measured for one",
    )
