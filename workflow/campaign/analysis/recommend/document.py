"""The answers as they are kept and shown: schema recommendation/2, a closed document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from campaign.spec.fields import ClosedModel

SCHEMA = "recommendation/2"
UNKNOWN = "not known: one composition each"


class Evidence(ClosedModel):
    """A measured cell that an answer rests on."""

    cell_id: str
    words: str
    runs: int
    compositions: int


class RecommendedChoice(ClosedModel):
    """A measured configuration, and what it gives. Bounds are 95 %, from run to run where an answer is not `comparable`;
    None where there are none."""

    configuration: str = Field(description="its name in the campaign")
    shape: dict[str, Any]
    words: str
    batches: str = Field(description="the batch that it is best with; by workload for a mix")
    value: float
    low: float | None
    high: float | None
    said: str = Field(description="the value in words, with its unit and interval")
    evidence: tuple[Evidence, ...]

    @property
    def built(self) -> str:
        """The configuration in words, with its batch."""
        return f"{self.configuration} ({self.words}), {self.batches}"

    @property
    def short(self) -> str:
        """Its name and number, without the unit: it stands beside another choice."""
        value, _, interval = self.bare.partition(" (")
        return f"{self.configuration} {value.split()[0]}{f' ({interval}' if interval else ''}"

    @property
    def bare(self) -> str:
        """The value, where what its interval is stands beside."""
        return self.said.replace("95\u202f% interval ", "")

    def compositions(self) -> str:
        """' on 3 compositions', of the cells behind it."""
        counts = sorted({each.compositions for each in self.evidence})
        ends = " to ".join(dict.fromkeys(str(count) for count in (counts[0], counts[-1])))
        return f" on {'one composition' if counts == [1] else f'{ends} compositions'}"


class RecommendationAnswer(ClosedModel):
    """What to build for one objective and one workload as it is run, or for a mix."""

    objective: str
    meaning: str
    about: str
    workloads: tuple[str, ...]
    choice: RecommendedChoice | None = None
    tied: tuple[RecommendedChoice, ...] = Field(
        default=(), description="shown to differ from the best by less than 5 %"
    )
    tied_total: int = 0
    not_told_apart: tuple[RecommendedChoice, ...] = Field(
        default=(), description="neither shown to differ from the best nor to tie with it"
    )
    not_told_apart_total: int = 0
    comparable: bool = Field(default=True, description="whether there are intervals that could tell a tie")
    sentences: tuple[str, ...]

    @property
    def alternatives(self) -> tuple[RecommendedChoice, ...]:
        """What ties with the best and what is not told apart from it, as far as it is listed."""
        return *self.tied, *self.not_told_apart

    def beside(self) -> str:
        """What ties with the best and what is not told apart from it, with values; 'nothing' where all is told apart."""
        if not self.comparable:
            return UNKNOWN
        lists = (("tied within 5\u202f%", self.tied), ("not told apart", self.not_told_apart))
        parts = [f"{head}: {', '.join(each.short for each in choices)}" for head, choices in lists if choices]
        more = self.tied_total + self.not_told_apart_total - len(self.alternatives)
        return ("; ".join(parts) or "nothing") + (f" and {more} more" if more > 0 else "")


class RecommendationDocument(ClosedModel):
    """Everything that the report says of what to build. Unknown keys are errors."""

    schema_version: Literal["recommendation/2"] = "recommendation/2"
    basis: tuple[str, ...] = Field(description="how the answers were made, for readers")
    constraints: tuple[str, ...] = ()
    answers: tuple[RecommendationAnswer, ...] = ()
    unmeasured: tuple[str, ...] = Field(
        default=(), description="names of shapes that the system's hosts and pool allow by number, and nobody measured"
    )
