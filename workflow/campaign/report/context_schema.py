"""Context document of the report page: its data besides tables, leases and figures. It is validated before the page is built."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from campaign.spec.earlier_spread import EarlierSpread
from campaign.spec.fields import ClosedModel, VersionedModel
from campaign.spec.race import RaceDocument


class MetricDescription(ClosedModel):
    """A metric of runs, and its better direction."""

    name: str = Field(default="throughput_per_s", description="column of the runs table")
    label: str = Field(default="throughput", description="name in sentences")
    unit: str = "samples/s"
    better: Literal["higher", "lower"] = "higher"


class PageLayout(ClosedModel):
    """Figures that are open under Answers, in this order, and figures that are hidden, by the names in the campaign file."""

    open: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()


class AnalysisVersion(ClosedModel):
    """A version of the analysis, which defines the comparisons and their methods (`campaign.plan.analysis`)."""

    hash: str
    written: str = Field(description="date and time (UTC); empty for a version without a plan")
    runs: int = Field(description="number of runs that had a record at that time")
    changed: tuple[str, ...] = Field(default=(), description="keys that differ from the previous version")


class CampaignContext(ClosedModel):
    """Metadata of the campaign."""

    name: str
    title: str
    question: str
    system: str
    baseline: str
    report: PageLayout = PageLayout()
    analysis: tuple[AnalysisVersion, ...] = Field(
        default=(), description="versions of the analysis; empty without a plan"
    )
    metric: MetricDescription = Field(default=MetricDescription(), description="primary metric")
    metrics: tuple[MetricDescription, ...] = Field(
        default=(), description="the primary metric, and metrics whose unit or direction a workload file declares"
    )
    protocol: dict[str, Any]
    earlier_spread: tuple[EarlierSpread, ...] = Field(
        default=(), description="variation between compositions in earlier campaigns on the system"
    )


class RecordedOperation(ClosedModel):
    """Recorded durations of one operation in seconds: 5 % quantile, median and 95 % quantile."""

    operation: str
    count: int
    low_s: float
    median_s: float
    high_s: float


class RecordedTimes(ClosedModel):
    """Recorded durations of operations of this kind of fabric."""

    source: str
    operations: tuple[RecordedOperation, ...]


class SystemContext(ClosedModel):
    """The system that the campaign ran on."""

    name: str
    description: str = ""
    fabric: str = Field(description="kind of fabric")
    currency: str = Field(default="", description="currency of prices; empty without prices")
    times: RecordedTimes | None = Field(default=None, description="recorded durations of operations of the fabric")


class ExclusionRule(ClosedModel):
    """A rule of the campaign that excluded cells from the matrix, its reason, and the number of these cells."""

    rule: str
    why: str
    cells: int


class ExcludedHost(ClosedModel):
    """A host that failed during an allocation, so that the campaign no longer requests it."""

    host: str
    why: str


class SoftwareVersion(ClosedModel):
    """A package and its version."""

    name: str
    version: str


class PublishedDocument(ClosedModel):
    """A publication that the campaign is compared with."""

    name: str
    title: str
    authors: str
    venue: str = ""
    doi: str = ""
    note: str = ""


class PublishedClaim(ClosedModel):
    """A claim of a publication and the measured result, both as text (`campaign.analysis.published.claims`)."""

    id: str
    document: str
    where: str
    figure: str = Field(default="", description="anchor of the figure that shows the same quantity")
    says: str
    published: str = Field(description="published number; empty if the claim is a direction")
    told: str = Field(default="", description="text of the claim with its number, if `says` does not contain it")
    conditions: str
    note: str = ""
    verdict: Literal["agrees", "differs", "undecided", "not measured here"]
    other: tuple[str, ...] = Field(default=(), description="measured conditions that differ from the document")
    other_program: bool = Field(default=False, description="true if only the program differs")
    here: str = Field(default="", description="measured result")
    of: str = Field(default="", description="cells of the measured result")
    reason: str = Field(default="", description="reason that there is no measured result")
    cells: tuple[str, ...] = ()
    off_pct: float | None = Field(
        default=None, description="distance from the range of agreement, in percent of throughput; null if undefined"
    )
    confident: bool = Field(default=False, description="true if the whole interval is outside the range of agreement")
    direction: bool = Field(default=False, description="true if the claim is a direction instead of a number")
    scored: bool = Field(
        default=False, description="true if the claim counts for the score, because it concerns a step"
    )


class PublishedResults(ClosedModel):
    """Publications and their claims, compared with the measurements."""

    documents: tuple[PublishedDocument, ...] = ()
    claims: tuple[PublishedClaim, ...] = ()


class ForecastOutcome(VersionedModel):
    """Expected and actual duration of a measured lease. Expected values are null if they were unknown."""

    gone = frozenset({"parts"})

    lease: str
    configuration: str
    runs_expected: int
    runs: int
    uses: int = Field(description="number of times that the lease was composed")
    expected_s: float | None
    low_s: float | None
    high_s: float | None
    basis: str
    resumed: bool = Field(description="true if a process that was killed had begun the lease")
    actual_s: float


class ContextDocument(VersionedModel):
    """Data of the page besides tables, leases and figures. Unknown keys are errors."""

    gone = frozenset({"inputs", "objectives", "prediction", "questions"})

    campaign: CampaignContext
    campaign_yaml: str
    system: SystemContext
    conditions: tuple[str, ...] = Field(
        default=(),
        description="replaced hardware, such as 'the fabric is simulated'; stated with every affected figure",
    )
    assumptions: dict[str, str] = Field(
        default_factory=dict,
        description="sentence per subject (precision, links) on values of the system file that an emulation applied",
    )
    notes: tuple[str, ...] = Field(default=(), description="notes for every reader, such as emulated hardware")
    excluded: tuple[ExclusionRule, ...] = ()
    hosts_left_out: tuple[ExcludedHost, ...] = ()
    launchers: dict[str, int] = Field(default_factory=dict, description="number of runs that each launcher started")
    software: tuple[SoftwareVersion, ...] = ()
    environments: dict[str, dict[str, Any]] = Field(default_factory=dict, description="environment documents by hash")
    schema_versions: dict[str, str] = Field(default_factory=dict)
    flags: dict[str, str] = Field(default_factory=dict, description="meanings of the flags of runs")
    references: tuple[dict[str, Any], ...] = Field(default=(), description="sets of published claims (`published/1`)")
    published: PublishedResults = Field(
        default=PublishedResults(), description="published claims and measured results, as text"
    )
    forecast: tuple[ForecastOutcome, ...] = ()
    race: RaceDocument | None = Field(
        default=None,
        description="result of the race for the best configuration, if the campaign was one",
    )
