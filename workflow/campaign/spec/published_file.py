"""Keys of a set of published claims (`published/1`), and loading of sets.

A claim is one number or one statement of a document, with its location. `here` describes how a campaign's cells are compared with
the claim, by the same expressions as `--where`. If no campaign can measure the claim, `not_here` has the reason.
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


def _check_bounds(bounds: Bounds) -> Bounds:
    low, high = bounds
    if low is not None and high is not None and low > high:
        raise ValueError(f"the interval [{low:g}, {high:g}] has a lower bound above its upper bound; exchange them")
    return bounds


ClaimInterval = Annotated[Bounds, AfterValidator(_check_bounds)]


class Publication(ClosedModel):
    """Publication from which a set is taken."""

    title: str
    """Title of the publication."""
    authors: str
    """Authors of the publication."""
    venue: str = ""
    """Journal or conference."""
    doi: str = ""
    """DOI of the publication."""
    note: str = ""
    """Remark for readers."""


class ModelHere(ClosedModel):
    """Workloads that correspond to a model of the document."""

    same: tuple[str, ...] = ()
    """Workloads that run the same program as the document."""
    like: tuple[str, ...] = ()
    """Workloads that train the same model with another program, so that conditions differ from those of the document."""
    batch: tuple[int, ...] = ()
    """Samples per device and step in the document, if all claims have the same batch."""

    @property
    def workloads(self) -> tuple[str, ...]:
        """All workloads that correspond to the model."""
        return (*self.same, *self.like)


class CampaignMapping(ClosedModel):
    """Comparison of a campaign's cells with a claim."""

    compute: Compute
    """Quantity to compute (see `campaign.analysis.published.quantities`)."""
    models: tuple[str, ...] = ()
    """Models whose workloads are compared. Default: all workloads."""
    of: str = "True"
    """Expression over the axes that selects the cells."""
    against: str = ""
    """Expression that selects the reference cells of a comparison."""
    against_models: tuple[str, ...] = ()
    """Models of the reference cells. Default: `models`."""
    vary: tuple[str, ...] = ()
    """Axes in which a cell and its reference cell may differ. They are equal in all other axes."""
    keep: tuple[str, ...] = ()
    """Further axes in which a cell and its reference cell are equal, such as `ranks` if `hosts` and `devices` vary."""
    columns: tuple[str, ...] = ()
    """Metrics of runs that are added up."""
    bytes_per_step: tuple[str, ...] = ()
    """Metrics in bytes per step that are added up and divided by the step time (GB/s), for runs without any of `columns`."""
    times_ranks: bool = False
    """Multiply the metric, which is that of one device, by the number of devices in use."""
    along: str = ""
    """Metric or axis with which the value should rise, judged by the rank correlation over cells."""
    ends: tuple[str, ...] = ()
    """Kinds of the two ends of a link, such as [local, fabric]. For a ratio, those of the numerator."""
    against_ends: tuple[str, ...] = ()
    """Kinds of the two ends of the links in the denominator of a ratio."""
    limit: float | None = None
    """Efficiency in percent that counts as near linear, for `near_linear_up_to`."""
    expect: ClaimInterval | None = None
    """Interval of computed values that agree with the wording, in the unit of the computed quantity. It replaces `accept`."""
    under: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    """Conditions of the document, by axis. The cells that miss the fewest conditions are compared, and missed conditions are
    reported."""


class Claim(ClosedModel):
    """One number or one statement of the document."""

    id: str
    """Name of the claim, unique in the set."""
    where: str
    """Location in the document, such as a table or a section."""
    figure: str = ""
    """Anchor of the report's figure that shows the same quantity."""
    quantity: str
    """Quantity that the value measures."""
    unit: str
    """Unit of `value` and `accept`."""
    conditions: dict[str, JsonValue]
    """Conditions that the document states, for readers."""
    value: float | str | tuple[float, ...] | None
    """Printed value. Null if the document has no number."""
    accept: ClaimInterval
    """Closed interval of values that agree with the wording, with null for an open end."""
    kind: Literal["measured", "ratio", "bound", "direction", "setting", "spec", "version"]
    """Kind of the statement. Only `ratio`, `bound` and `direction` apply to other hardware."""
    basis: Literal["rounding", "less_than", "more_than", "almost", "about", "exact", "direction", "nominal"]
    """Rule by which `accept` follows from the wording."""
    note: str = ""
    """Remark for readers."""
    says: str
    """Claim in words."""
    here: CampaignMapping | None = None
    """Comparison of a campaign's cells with the claim."""
    not_here: str = ""
    """Reason why no campaign can measure the claim, instead of `here`."""

    @model_validator(mode="after")
    def _check_comparison(self) -> Claim:
        if (self.here is None) != bool(self.not_here):
            raise ValueError("either `here` or `not_here` is required, and not both")
        return self


class Check(ClosedModel):
    """Arithmetic within the document: the quotient of two claims is a value that a third claim accepts."""

    over: tuple[str, str]
    """Claims of the dividend and the divisor."""
    result: float
    """Quotient of the two values."""
    within: str
    """Claim whose `accept` contains the quotient."""


class ReferenceSet(ClosedModel):
    """Claims of one document."""

    schema_version: Literal["published/1"] = "published/1"
    """Version of this format."""
    name: str
    """Name by which `references` and `campaign compare` select the set."""
    document: Publication
    options: tuple[str, ...] = ()
    """Options of workloads that expressions may use in addition to the axes of every cell."""
    models: dict[str, ModelHere] = Field(default_factory=dict)
    """Models of the document, by name."""
    way: dict[str, tuple[Scalar, ...]] = Field(default_factory=dict)
    """Conditions of all claims, by axis or option. `under` of a claim takes precedence."""
    claims: tuple[Claim, ...]
    """Claims of the document."""
    checks: tuple[Check, ...] = ()
    """Arithmetic that must hold between claims."""
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    """Configurations, workloads, software and hardware as the document describes them, for readers."""

    @model_validator(mode="after")
    def _check_references(self) -> ReferenceSet:
        ids = [claim.id for claim in self.claims]
        if duplicates := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"the ids of claims must be unique; duplicates: {', '.join(duplicates)}")
        check_claim_names = {name for check in self.checks for name in (*check.over, check.within)}
        if unknown := sorted(check_claim_names.difference(ids)):
            raise ValueError(f"'checks' refers to unknown claims: {', '.join(unknown)}")
        for claim in self.claims:
            if claim.here is not None:
                self._check_mapping(claim.id, claim.here)
        if unknown := sorted(self.way.keys() - self.axes):
            raise ValueError(f"'way' has unknown axes: {', '.join(unknown)}; there are: {', '.join(sorted(self.axes))}")
        return self

    def _check_mapping(self, name: str, mapping: CampaignMapping) -> None:
        """Raise ValueError if a mapping has an unknown model, an unknown axis or an invalid expression."""
        if unknown := sorted({*mapping.models, *mapping.against_models}.difference(self.models)):
            raise ValueError(f"{name}: unknown models: {', '.join(unknown)}; add them to 'models' of the set")
        axes = self.axes
        if unknown := sorted({*mapping.vary, *mapping.under, *mapping.keep}.difference(axes)):
            raise ValueError(f"{name}: unknown axes: {', '.join(unknown)}; there are: {', '.join(sorted(axes))}")
        for text in filter(None, (mapping.of, mapping.against)):
            self._check_expression(name, text)

    def _check_expression(self, name: str, text: str) -> None:
        try:
            parse_expression(text, self.axes, name)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @property
    def axes(self) -> frozenset[str]:
        """Names that expressions may use."""
        return frozenset({*AXES, *SHAPE_AXES, *self.options})


def is_check_satisfied(check: Check, claims: Mapping[str, Claim]) -> bool:
    """Return True if the arithmetic of a check holds for the printed values, within their precision."""
    dividend, divisor = (claims[name].value for name in check.over)
    low, high = claims[check.within].accept
    if not isinstance(dividend, float) or not isinstance(divisor, float):
        return False
    ratio = dividend / divisor
    inside = (low is None or ratio >= low) and (high is None or ratio <= high)
    return inside and math.isclose(ratio, check.result, rel_tol=1e-3)


def list_set_names() -> list[str]:
    """Return the names of the sets that come with the project."""
    return sorted(path.stem for path in PUBLISHED_DATA_DIRECTORY.glob("*.yaml"))


def is_set_name(text: str) -> bool:
    """Return True if a text is the name of a set that comes with the project."""
    return text in list_set_names()


def find_set_path(reference: str, directory: Path | None = None) -> Path:
    """Return the path of the file that `load_set` reads."""
    return (
        PUBLISHED_DATA_DIRECTORY / f"{reference}.yaml" if is_set_name(reference) else (directory or Path()) / reference
    )


def load_set(reference: str, directory: Path | None = None, place: str = "") -> ReferenceSet:
    """Load a set of published claims. Raises ConfigError if it does not exist or is invalid.

    Args:
        reference: name of a set, or path of its file.
        directory: directory to which the path is relative.
        place: location of the reference, for messages.
    """
    path = find_set_path(reference, directory)
    if not path.is_file():
        raise ConfigError(
            f"{place}{reference}: there is no such set of published claims; choose one of "
            f"{', '.join(list_set_names())}, or give the path of a YAML file"
        )
    source = read_yaml(path)
    return from_document(source.data, str(path), source.format_location)


def _format_problem_location(name: str, location: tuple[str | int, ...], place: Callable[..., str] | None) -> str:
    return place(*location, name="set") if place else f"{name}: {'.'.join(map(str, location)) or 'set'}"


def _drop_obsolete_keys(document: Mapping[str, object]) -> Mapping[str, object]:
    """Return the document of a set without the keys that earlier versions used for predictions."""
    document_copy = dict(document)
    if isinstance(claims := document_copy.get("claims"), list):
        document_copy["claims"] = [_drop_keys(claim, "by_construction") for claim in claims]
    if isinstance(models := document_copy.get("models"), dict):
        document_copy["models"] = {name: _drop_keys(model, "replayed") for name, model in models.items()}
    return document_copy


def _drop_keys(document: object, *keys: str) -> object:
    """Return a mapping without the given keys. Any value that is not a mapping is returned unchanged."""
    return (
        {key: value for key, value in document.items() if key not in keys} if isinstance(document, dict) else document
    )


def from_document(document: Mapping[str, object], name: str, place: Callable[..., str] | None = None) -> ReferenceSet:
    """Build a set from its document. Raises ConfigError with all problems if the document is invalid.

    Args:
        document: document of the set.
        name: name of the document, for messages.
        place: function that formats the location of a key in its file, or None if the document is a part of results.
    """
    if place is None:
        document = _drop_obsolete_keys(document)
    try:
        return ReferenceSet.model_validate_json(json.dumps(document), strict=True)
    except (ValidationError, TypeError, ValueError) as error:
        if not isinstance(error, ValidationError):
            raise ConfigError(f"{name}: not a valid set of published claims ({error})") from error
        problems = [
            f"{_format_problem_location(name, problem['loc'], place)}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors(include_url=False)[:10]
        ]
        raise ConfigError("\n".join(problems)) from error
