"""What the report page is told beside tables, leases and figures: a closed document, checked before anything is laid out."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CampaignSaid(_Closed):
    """What the campaign says of itself."""

    name: str
    title: str
    question: str
    system: str
    baseline: str
    protocol: dict[str, Any]


class SystemSaid(_Closed):
    name: str
    description: str = ""
    fabric: str = Field(description="the kind of fabric")


class Excluded(_Closed):
    """A rule of the campaign that took cells out of the matrix, why, and how many."""

    rule: str
    why: str
    cells: int


class HostLeftOut(_Closed):
    """A host that failed under an allocation, so that the campaign asks for it no more."""

    host: str
    why: str


class Software(_Closed):
    name: str
    version: str


class Recommendation(_Closed):
    """An advice of the last section and the measurements it rests on."""

    advice: str
    basis: str


class ContextDocument(_Closed):
    """What the page needs beside tables, leases and figures. Unknown keys are errors."""

    campaign: CampaignSaid
    campaign_yaml: str
    system: SystemSaid
    notes: tuple[str, ...] = Field(default=(), description="what every reader should know, e.g. what is emulated")
    excluded: tuple[Excluded, ...] = ()
    hosts_left_out: tuple[HostLeftOut, ...] = ()
    launchers: dict[str, int] = Field(default_factory=dict, description="how many runs each launcher started")
    software: tuple[Software, ...] = ()
    environments: dict[str, dict[str, Any]] = Field(default_factory=dict, description="by hash")
    schema_versions: dict[str, str] = Field(default_factory=dict)
    flags: dict[str, str] = Field(default_factory=dict, description="what a flag of a run means")
    recommendations: tuple[Recommendation, ...] = ()
