"""The answers as they are kept and shown: schema recommendation/1, a closed document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from campaign.documents.fields import ClosedModel

UNKNOWN = "not known: one composition each"


class Evidence(ClosedModel):
    """A measured cell that an answer rests on."""

    cell_id: str
    words: str
    runs: int
    compositions: int = Field(default=0, description="on which it was measured; 0 where nobody knows")


class RecommendedChoice(ClosedModel):
    """A configuration that can be built, and what it gives. Bounds are 95 %, from run to run where an answer is not `comparable`;
    None where there are none."""

    configuration: str = Field(description="its name in the campaign, or after its shape")
    shape: dict[str, Any]
    words: str
    batches: str = Field(description="the batch that it is best with; by workload for a mix")
    measured: bool
    replayed: bool = Field(
        default=False, description="whether its runs were predicted or replayed, so that no device was measured"
    )
    extrapolated: str = Field(default="", description="in what it is outside of what was measured")
    memory: Literal["fits", "unknown"] = "fits"
    value: float
    low: float | None
    high: float | None
    said: str = Field(description="the value in words, with its unit and interval")
    predicted: str = Field(
        default="", description="what the model says without this configuration, where it was measured"
    )
    evidence: tuple[Evidence, ...]
    evidence_total: int

    @property
    def short(self) -> str:
        """Its name and number, without the unit: it stands beside another choice."""
        value, _, interval = self.bare.partition(" (")
        return f"{self.configuration} {value.split()[0]}{f' ({interval}' if interval else ''}"

    @property
    def bare(self) -> str:
        """The value, where what its interval is stands beside."""
        return self.said.replace("95\u202f% interval ", "")

    @property
    def how(self) -> str:
        """Where its value comes from, in a word."""
        return "measured" if self.measured and not self.replayed else "predicted"

    def compositions(self) -> str:
        """' on 3 compositions', of the cells behind it; '' where nobody knows."""
        counts = sorted({each.compositions for each in self.evidence if each.compositions})
        if not counts:
            return ""
        ends = " to ".join(dict.fromkeys(str(count) for count in (counts[0], counts[-1])))
        return f" on {'one composition' if counts == [1] else f'{ends} compositions'}"


class RecommendationAnswer(ClosedModel):
    """What to build for one objective and one workload as it is run, or for a mix."""

    objective: str
    meaning: str
    about: str
    workloads: tuple[str, ...]
    choice: RecommendedChoice | None
    tied: tuple[RecommendedChoice, ...] = Field(
        default=(), description="measured, and shown to differ from the best by less than 5 %"
    )
    tied_total: int = 0
    not_told_apart: tuple[RecommendedChoice, ...] = Field(
        default=(),
        description="measured, and not told from the best by test; predicted, with an interval that reaches the best's",
    )
    not_told_apart_total: int = 0
    comparable: bool = Field(default=True, description="whether there are intervals that could tell a tie")
    beyond: RecommendedChoice | None = Field(
        default=None, description="the best of what is extrapolated, where it is better"
    )
    sentences: tuple[str, ...]

    @property
    def alternatives(self) -> tuple[RecommendedChoice, ...]:
        """What ties with the best and what is not told apart from it, as far as it is listed."""
        return *self.tied, *self.not_told_apart

    def beside(self) -> str:
        """What ties with the best and what is not told apart from it, with values; 'nothing' where all is told apart."""
        if not self.comparable:
            return UNKNOWN
        measured = [each for each in self.not_told_apart if each.measured]
        predicted = [each for each in self.not_told_apart if not each.measured]
        parts = [
            f"{head}: {', '.join(each.short for each in some)}"
            for head, some in (
                ("tied within 5\u202f%", self.tied),
                ("not told apart", measured),
                ("predicted, and may be as good", predicted),
            )
            if some
        ]
        more = self.tied_total + self.not_told_apart_total - len(self.alternatives)
        return ("; ".join(parts) or "nothing") + (f" and {more} more" if more > 0 else "")


class Parameter(ClosedModel):
    """One parameter of a model with its 95 % interval, in words."""

    name: str
    value: str
    interval: str
    start: str = Field(default="", description="for links: what was known before")


class ModelSaid(ClosedModel):
    """The model of one workload on one device model, and how wrong it is about configurations that it was not shown."""

    workload: str
    device: str
    cells: int
    configurations: int
    parts: str
    error_median_pct: float | None
    error_worst_pct: float | None
    trusted: bool
    sentence: str
    parameters: tuple[Parameter, ...] = ()
    by_configuration: dict[str, float | None] = Field(
        default_factory=dict, description="median error left out, percent"
    )


class RecommendationDocument(ClosedModel):
    """Everything that the report says of what to build. Unknown keys are errors."""

    schema_version: Literal["recommendation/1"] = "recommendation/1"
    basis: tuple[str, ...] = Field(description="how the answers were made, for readers")
    constraints: tuple[str, ...] = ()
    answers: tuple[RecommendationAnswer, ...] = ()
    models: tuple[ModelSaid, ...] = ()
    figure: dict[str, Any] | None = Field(
        default=None, description="`campaign.report.figure.page_document`, picture beside it"
    )
