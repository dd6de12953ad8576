"""Schema of the recommendation document as it is stored and shown: recommendation/2, a closed document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from campaign.spec.fields import ClosedModel

SCHEMA = "recommendation/2"
UNKNOWN_TIES = "unknown: one composition each"


class Evidence(ClosedModel):
    """Measured cell that supports an answer."""

    cell_id: str
    words: str
    runs: int
    compositions: int


class RecommendedChoice(ClosedModel):
    """Measured configuration, with the value that it achieves for the objective.

    Bounds are 95 %, or from run to run if an answer is not `comparable`; None if there are none.
    """

    configuration: str = Field(description="name of the configuration in the campaign")
    shape: dict[str, Any]
    words: str
    batches: str = Field(description="batch with which the configuration is best; for a mix, one batch per workload")
    value: float
    low: float | None
    high: float | None
    said: str = Field(description="value as text, with its unit and interval")
    evidence: tuple[Evidence, ...]

    @property
    def full_name(self) -> str:
        """Name and description of the configuration, with its batch."""
        return f"{self.configuration} ({self.words}), {self.batches}"

    @property
    def short_text(self) -> str:
        """Name and value without the unit, to be listed next to another choice."""
        value, _, interval = self.value_text.partition(" (")
        return f"{self.configuration} {value.split()[0]}{f' ({interval}' if interval else ''}"

    @property
    def value_text(self) -> str:
        """Value in words without the words '95 % interval', for a table whose heading has them."""
        return self.said.replace("95\u202f% interval ", "")

    def format_compositions(self) -> str:
        """Format the number of compositions of the evidence, such as ' on 3 compositions'."""
        counts = sorted({evidence.compositions for evidence in self.evidence})
        ends = " to ".join(dict.fromkeys(str(count) for count in (counts[0], counts[-1])))
        return f" on {'one composition' if counts == [1] else f'{ends} compositions'}"


class RecommendationAnswer(ClosedModel):
    """Answer to the question which configuration to build, for one objective and one workload or a mix."""

    objective: str
    meaning: str
    about: str
    workloads: tuple[str, ...]
    choice: RecommendedChoice | None = None
    tied: tuple[RecommendedChoice, ...] = Field(
        default=(), description="choices whose difference from the best is shown to be below 5 %"
    )
    tied_total: int = 0
    not_told_apart: tuple[RecommendedChoice, ...] = Field(
        default=(), description="choices that are shown neither to differ from the best nor to tie with it"
    )
    not_told_apart_total: int = 0
    comparable: bool = Field(default=True, description="whether intervals exist that could show a tie")
    sentences: tuple[str, ...]

    @property
    def alternatives(self) -> tuple[RecommendedChoice, ...]:
        """Listed choices that tie with the best one or are indistinguishable from it."""
        return *self.tied, *self.not_told_apart

    def describe_alternatives(self) -> str:
        """Describe the choices that tie with the best one or are indistinguishable from it, with their values.

        Return 'nothing' if all differ from the best one.
        """
        if not self.comparable:
            return UNKNOWN_TIES
        lists = (("tied within 5\u202f%", self.tied), ("indistinguishable", self.not_told_apart))
        parts = [f"{head}: {', '.join(choice.short_text for choice in choices)}" for head, choices in lists if choices]
        unlisted_count = self.tied_total + self.not_told_apart_total - len(self.alternatives)
        return ("; ".join(parts) or "nothing") + (f" and {unlisted_count} more" if unlisted_count > 0 else "")


class RecommendationDocument(ClosedModel):
    """Document with all recommendations of a report. Unknown keys are errors."""

    schema_version: Literal["recommendation/2"] = "recommendation/2"
    basis: tuple[str, ...] = Field(description="sentences on how the answers were obtained")
    constraints: tuple[str, ...] = ()
    answers: tuple[RecommendationAnswer, ...] = ()
    unmeasured: tuple[str, ...] = Field(
        default=(), description="names of shapes that the numbers of hosts and devices allow and that were not measured"
    )
