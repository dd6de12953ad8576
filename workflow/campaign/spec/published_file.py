"""The form of a set of published claims (`published/1`), and where sets are found.

A claim is one number or one statement of a document, with its place there. `here` says how a campaign's cells are held against it,
in the same expressions as `--where`; a claim that no campaign can measure says why in `not_here`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, ValidationError, model_validator

from campaign.common.errors import ConfigError
from campaign.common.paths import PUBLISHED_DATA_DIRECTORY
from campaign.spec.cell import AXES, SHAPE_AXES, Scalar
from campaign.spec.expression import parse_expression
from campaign.spec.fields import ClosedModel
from campaign.spec.yaml_file import read_yaml

Compute = Literal[
    "throughput_drop_pct",
    "throughput_gain_pct",
    "throughput_ratio",
    "time_increase_pct",
    "time_ratio",
    "metric",
    "metric_ratio",
    "spread_cv_pct",
    "near_linear_up_to",
    "largest_batch",
    "outcome",
    "planned_runs",
    "link_gb_per_s",
    "link_one_way_gb_per_s",
    "link_latency_us",
    "link_ratio",
    "host_to_device_gb_per_s",
]
Bounds = tuple[float | None, float | None]


def _in_order(bounds: Bounds) -> Bounds:
    low, high = bounds
    if low is not None and high is not None and low > high:
        raise ValueError(f"the interval [{low:g}, {high:g}] ends before it starts")
    return bounds


ClaimInterval = Annotated[Bounds, AfterValidator(_in_order)]


class Publication(ClosedModel):
    """The publication that a set is taken from."""

    title: str
    """Title of the publication."""
    authors: str
    """Its authors."""
    venue: str = ""
    """Where it was published."""
    doi: str = ""
    """Its DOI."""
    note: str = ""
    """A remark for people."""


class ModelHere(ClosedModel):
    """A model of the document among the workloads of campaigns."""

    same: tuple[str, ...] = ()
    """Workloads that run the document's own program."""
    like: tuple[str, ...] = ()
    """Workloads that train the same model with another program: conditions are then others than the document's."""
    batch: tuple[int, ...] = ()
    """Samples a device took in one step in the document, where one batch stands for all its claims."""

    @property
    def workloads(self) -> tuple[str, ...]:
        """All workloads that stand for the model."""
        return (*self.same, *self.like)


class CampaignMapping(ClosedModel):
    """How a campaign's cells are held against a claim."""

    compute: Compute
    """The quantity; see `campaign.analysis.published.quantities`."""
    models: tuple[str, ...] = ()
    """Only workloads of these models; all workloads when left out."""
    of: str = "True"
    """Which cells it is about: an expression over the axes."""
    against: str = ""
    """Which cells these are held against."""
    against_models: tuple[str, ...] = ()
    """Models of the cells that these are held against, where they are others."""
    vary: tuple[str, ...] = ()
    """Axes in which the two may differ; in all others they are equal."""
    keep: tuple[str, ...] = ()
    """Further axes in which the two are equal, such as `ranks` where hosts and devices vary."""
    columns: tuple[str, ...] = ()
    """Metrics of runs, added up."""
    bytes_per_step: tuple[str, ...] = ()
    """Where runs have none of `columns`: their metrics of bytes in a step, added up and divided by the time of a step, in GB/s."""
    times_ranks: bool = False
    """The metric is that of one device and is to be multiplied by the devices in use."""
    along: str = ""
    """The value is to rise with this metric or axis: judged by the rank correlation over cells."""
    ends: tuple[str, ...] = ()
    """Kinds of ends of a link, such as [local, fabric]; of a ratio, those of the numerator."""
    against_ends: tuple[str, ...] = ()
    """Kinds of ends of the links in the denominator of a ratio."""
    limit: float | None = None
    """`near_linear_up_to`: efficiency in percent that counts as near linear."""
    expect: ClaimInterval | None = None
    """What agrees, in the unit of the computed quantity, where the claim's `accept` says nothing: the reading of its words."""
    under: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    """The document's own conditions, by axis. Cells that meet them go before cells that do not, which are called otherwise."""


class Claim(ClosedModel):
    """One number or one statement of the document."""

    id: str
    """Name of the claim, unique in the set."""
    where: str
    """Its place in the document, such as a table or a section."""
    figure: str = ""
    """The figure of a report that shows the same quantity, by its anchor."""
    quantity: str
    """What the number is of."""
    unit: str
    """Unit of `value` and `accept`."""
    conditions: dict[str, JsonValue]
    """The conditions that the document names, for people."""
    value: float | str | tuple[float, ...] | None
    """The printed value; null where the document gives words only."""
    accept: ClaimInterval
    """Closed interval that agrees with the wording; null for an open end."""
    kind: Literal["measured", "ratio", "bound", "direction", "setting", "spec", "version"]
    """What kind of statement it is. Only `ratio`, `bound` and `direction` apply to other hardware."""
    basis: Literal["rounding", "less_than", "more_than", "almost", "about", "exact", "direction", "nominal"]
    """How `accept` follows from the wording."""
    note: str = ""
    """A remark for people."""
    says: str
    """The claim in words."""
    here: CampaignMapping | None = None
    """How a campaign's cells are compared with it."""
    not_here: str = ""
    """Why no campaign can measure it; instead of `here`."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Claim:
        if (self.here is None) != bool(self.not_here):
            raise ValueError("give either `here` or `not_here`: how a campaign is compared with it, or why not")
        return self


class Check(ClosedModel):
    """Arithmetic inside the document: one claim's value over another's lies in what a third one accepts."""

    over: tuple[str, str]
    """Claims: dividend and divisor."""
    result: float
    """The quotient."""
    within: str
    """The claim whose `accept` contains the quotient."""


class ReferenceSet(ClosedModel):
    """The claims of one document."""

    schema_version: Literal["published/1"] = "published/1"
    """Version of this format."""
    name: str
    """Name by which `references` and `campaign compare` select the set."""
    document: Publication
    options: tuple[str, ...] = ()
    """Options of workloads that expressions may name beside the axes of every cell."""
    models: dict[str, ModelHere] = Field(default_factory=dict)
    """The document's models, by name."""
    way: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    """How the document's runs were made, by axis or option: conditions of all claims, as `under` has those of one, which wins."""
    claims: tuple[Claim, ...]
    """The claims."""
    checks: tuple[Check, ...] = ()
    """Arithmetic that must hold between claims."""
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    """What the document says of its configurations, workloads, software and hardware; for people."""

    @model_validator(mode="after")
    def _whole(self) -> ReferenceSet:
        ids = [claim.id for claim in self.claims]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"duplicate claims: {', '.join(twice)}")
        named = {name for check in self.checks for name in (*check.over, check.within)}
        if unknown := sorted(named.difference(ids)):
            raise ValueError(f"checks name unknown claims: {', '.join(unknown)}")
        for claim in self.claims:
            if claim.here is not None:
                self._check(claim.id, claim.here)
        if unknown := sorted(self.way.keys() - self.axes):
            raise ValueError(f"way: not axes: {', '.join(unknown)}; there are: {', '.join(sorted(self.axes))}")
        return self

    def _check(self, name: str, mapping: CampaignMapping) -> None:
        """ValueError for a model, an axis or an expression that means nothing here."""
        if unknown := sorted({*mapping.models, *mapping.against_models}.difference(self.models)):
            raise ValueError(f"{name}: models that the set does not list: {', '.join(unknown)}")
        axes = self.axes
        if unknown := sorted({*mapping.vary, *mapping.under, *mapping.keep}.difference(axes)):
            raise ValueError(f"{name}: not axes: {', '.join(unknown)}; there are: {', '.join(sorted(axes))}")
        for text in filter(None, (mapping.of, mapping.against)):
            self._check_expression(name, text)

    def _check_expression(self, name: str, text: str) -> None:
        try:
            parse_expression(text, self.axes, name)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @property
    def axes(self) -> frozenset[str]:
        """What expressions may name."""
        return frozenset({*AXES, *SHAPE_AXES, *self.options})


def is_check_satisfied(check: Check, claims: Mapping[str, Claim]) -> bool:
    """Return whether the arithmetic of a check holds with the printed values, to the printed digits."""
    dividend, divisor = (claims[name].value for name in check.over)
    low, high = claims[check.within].accept
    if not isinstance(dividend, float) or not isinstance(divisor, float):
        return False
    ratio = dividend / divisor
    inside = (low is None or ratio >= low) and (high is None or ratio <= high)
    return inside and math.isclose(ratio, check.result, rel_tol=1e-3)


def list_set_names() -> list[str]:
    """List the names of the sets that come with the project."""
    return sorted(path.stem for path in PUBLISHED_DATA_DIRECTORY.glob("*.yaml"))


def is_set_name(text: str) -> bool:
    """Return whether a text is the name of a set that comes with the project."""
    return text in list_set_names()


def find_set_path(reference: str, directory: Path | None = None) -> Path:
    """Return the path of the file that `load` would read."""
    return (
        PUBLISHED_DATA_DIRECTORY / f"{reference}.yaml" if is_set_name(reference) else (directory or Path()) / reference
    )


def load_set(reference: str, directory: Path | None = None, place: str = "") -> ReferenceSet:
    """A set by its name, or by the path of its file (relative to the directory `beside`). place: where it is named, for messages.

    ConfigError: there is none, or it is not as this module says; with the place.
    """
    path = find_set_path(reference, directory)
    if not path.is_file():
        raise ConfigError(
            f"{place}{reference}: not a set of published claims; choose from: "
            f"{', '.join(list_set_names())}, or give the path of a YAML file"
        )
    source = read_yaml(path)
    return from_document(source.data, str(path), source.format_location)


def _place(name: str, location: tuple[str | int, ...], place: Callable[..., str] | None) -> str:
    return place(*location, name="set") if place else f"{name}: {'.'.join(map(str, location)) or 'set'}"


def _drop_obsolete_keys(document: Mapping[str, object]) -> Mapping[str, object]:
    """Return a set in results without the keys that sets of earlier versions had for predictions."""
    document_copy = dict(document)
    if isinstance(claims := document_copy.get("claims"), list):
        document_copy["claims"] = [_drop_keys(claim, "by_construction") for claim in claims]
    if isinstance(models := document_copy.get("models"), dict):
        document_copy["models"] = {name: _drop_keys(model, "replayed") for name, model in models.items()}
    return document_copy


def _drop_keys(document: object, *keys: str) -> object:
    """Return a document without some of its keys; anything else as it is."""
    return (
        {key: value for key, value in document.items() if key not in keys} if isinstance(document, dict) else document
    )


def from_document(document: Mapping[str, object], name: str, place: Callable[..., str] | None = None) -> ReferenceSet:
    """The set that a document holds; ConfigError lists what is wrong in it.

    place: names a key of its file and the line. Without it, the document is part of results.
    """
    if place is None:
        document = _drop_obsolete_keys(document)
    try:
        return ReferenceSet.model_validate_json(json.dumps(document), strict=True)
    except (ValidationError, TypeError, ValueError) as error:
        if not isinstance(error, ValidationError):
            raise ConfigError(f"{name}: not a set of published claims ({error})") from error
        problems = [
            f"{_place(name, problem['loc'], place)}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors(include_url=False)[:10]
        ]
        raise ConfigError("\n".join(problems)) from error
