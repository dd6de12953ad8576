"""The answers as they are kept and shown: schema recommendation/1, a closed document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

UNKNOWN = "not known: one composition each"


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Evidence(_Closed):
    """A measured cell that an answer rests on."""

    cell_id: str
    words: str
    runs: int
    compositions: int = Field(default=0, description="on which it was measured; 0 where nobody knows")


class Choice(_Closed):
    """A configuration that can be built, and what it gives. Bounds are 95 %; None where there are none."""

    configuration: str = Field(description="its name in the campaign, or after its shape")
    shape: dict[str, Any]
    words: str
    batches: str = Field(description="the batch that it is best with; by workload for a mix")
    measured: bool
    replayed: bool = Field(default=False, description="whether its runs were replayed, so that no device was measured")
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
    def how(self) -> str:
        """Where its value comes from, in a word."""
        return "replayed" if self.replayed else "measured" if self.measured else "predicted"

    def compositions(self) -> str:
        """' on 3 compositions', of the cells behind it; '' where nobody knows."""
        counts = sorted({each.compositions for each in self.evidence if each.compositions})
        if not counts:
            return ""
        ends = " to ".join(dict.fromkeys(str(count) for count in (counts[0], counts[-1])))
        return f" on {'one composition' if counts == [1] else f'{ends} compositions'}"


class Answer(_Closed):
    """What to build for one objective and one workload as it is run, or for a mix."""

    objective: str
    meaning: str
    about: str
    workloads: tuple[str, ...]
    choice: Choice | None
    tied: tuple[Choice, ...] = Field(default=(), description="not told from the best by test, after Holm")
    tied_total: int = 0
    comparable: bool = Field(default=True, description="whether there are intervals that could tell a tie")
    beyond: Choice | None = Field(default=None, description="the best of what is extrapolated, where it is better")
    sentences: tuple[str, ...]

    def tied_words(self) -> str:
        """What is not told from the choice, measured before predicted; 'nothing' where all is."""
        if not self.comparable:
            return UNKNOWN
        parts = []
        for word in ("measured", "replayed", "predicted"):
            names = [each.configuration for each in self.tied if each.how == word]
            parts += [f"{', '.join(names)} ({word})"] if names else []
        more = self.tied_total - len(self.tied)
        return ("; ".join(parts) or "nothing") + (f" and {more} more" if more > 0 else "")


class Parameter(_Closed):
    """One parameter of a model with its 95 % interval, in words."""

    name: str
    value: str
    interval: str
    start: str = Field(default="", description="for links: what was known before")


class ModelSaid(_Closed):
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


class RecommendationDocument(_Closed):
    """Everything that the report says of what to build. Unknown keys are errors."""

    schema_version: Literal["recommendation/1"] = "recommendation/1"
    basis: tuple[str, ...] = Field(description="how the answers were made, for readers")
    constraints: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    models: tuple[ModelSaid, ...] = ()
    figure: dict[str, Any] | None = Field(
        default=None, description="`campaign.report.figure.page_document`, picture beside it"
    )
