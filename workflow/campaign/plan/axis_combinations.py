"""Combinations of a campaign's axis values, and rules of the campaign that no combination fulfils. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from campaign.common.errors import ConfigError
from campaign.plan.campaign.expand_shapes import combine_values
from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import SHAPE_AXES, Cell, Configuration
from campaign.spec.expression import Expression, parse_expression

_FIRST_AXES = ("configuration", "workload")


class UnusedRules:
    """Rules that no cell has fulfilled so far."""

    def __init__(self, rules: Sequence[Expression]) -> None:
        self._rules = list(rules)

    def add(self, rules: Sequence[Expression]) -> None:
        """Add the rules from other locations in the campaign file."""
        places = {rule.where for rule in self._rules}
        self._rules += [rule for rule in rules if rule.where not in places]

    def drop_fulfilled(self, axes: Mapping[str, Any]) -> None:
        """Drop the rules that are fulfilled by these axis values."""
        if self._rules:
            self._rules = [rule for rule in self._rules if not _holds(rule, axes)]

    def warnings(self) -> Iterator[str]:
        """Yield one warning per rule that no cell has fulfilled."""
        for rule in self._rules:
            yield f"{rule.where}: no cell fulfils '{rule.text}', so the rule does nothing; correct or remove it"


def _holds(rule: Expression, axes: Mapping[str, Any]) -> bool:
    try:
        return rule(axes)
    except ConfigError:
        return False  # Another rule removes the cell before this rule is evaluated.


@dataclass(frozen=True, slots=True)
class _AxisGroup:
    """Axes that are combined with each other, and the zips among them."""

    axes: dict[str, Sequence[Any]]
    zips: list[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _AxisOverride:
    """Axes that replace those of the campaign where a rule holds."""

    rule: Expression
    axes: dict[str, Any]


def combine_axes(
    campaign: Campaign, names: Collection[str], configurations: Collection[str] | None, unused_rules: UnusedRules
) -> Iterator[dict[str, Any]]:
    """Yield the axis values of every cell.

    Args:
        campaign: the campaign.
        names: names that its rules may use.
        configurations: names of configurations to combine; None for all.
        unused_rules: rules that no cell has fulfilled; the rules of overrides are added.
    """
    place = campaign.format_location("zip") if campaign.file.zip else campaign.format_location("axes")
    # Overrides of axes depend on configuration and workload, so both are combined before the other axes.
    first, further = _group_axes(_list_axes(campaign, configurations), campaign.file.zip)
    overrides = _parse_overrides(campaign, names)
    unused_rules.add([override.rule for override in overrides])
    for values in combine_values(first.axes, first.zips, place):
        if configurations is not None and values["configuration"].name not in configurations:
            continue
        axes = _override_axes(further.axes, values, overrides)
        for further_values in combine_values(axes, further.zips, place):
            yield {**values, **further_values}


def _list_axes(campaign: Campaign, configurations: Collection[str] | None) -> dict[str, Sequence[Any]]:
    """Return the values of each axis."""
    axes, configurations_of_axis = campaign.file.axes, campaign.configurations
    # A zip refers to positions in the list of all configurations.
    is_zipped = any("configuration" in names for names in campaign.file.zip)
    if configurations is not None and not is_zipped:
        configurations_of_axis = tuple(
            configuration for configuration in configurations_of_axis if configuration.name in configurations
        )
    return {
        "configuration": configurations_of_axis,
        "workload": axes.workload,
        "batch": axes.batch,
        "precision": axes.precision,
        **axes.options,
    }


def _group_axes(axes: Mapping[str, Sequence[Any]], zips: Sequence[Sequence[str]]) -> tuple[_AxisGroup, _AxisGroup]:
    """Separate configuration, workload and the axes that are zipped with them from all other axes."""
    names = set(_FIRST_AXES)
    for zip_names in zips:
        names |= set(zip_names) if names & set(zip_names) else set()
    first = _AxisGroup(
        {name: values for name, values in axes.items() if name in names},
        [zip_names for zip_names in zips if set(zip_names) <= names],
    )
    further = _AxisGroup(
        {name: values for name, values in axes.items() if name not in names},
        [zip_names for zip_names in zips if not set(zip_names) & names],
    )
    return first, further


def _parse_overrides(campaign: Campaign, names: Collection[str]) -> list[_AxisOverride]:
    """Parse the overrides of axes. Their rules may use the workload and the shape of the configuration only."""
    usable_names = frozenset(names) & {*SHAPE_AXES, *_FIRST_AXES}
    return [
        _AxisOverride(
            parse_expression(override.when, usable_names, campaign.format_location("overrides", index, "when")),
            override.axes.model_dump(exclude_none=True),
        )
        for index, override in enumerate(campaign.file.overrides)
        if override.axes is not None
    ]


def _override_axes(
    axes: Mapping[str, Sequence[Any]], values: Mapping[str, Any], overrides: Sequence[_AxisOverride]
) -> dict[str, Sequence[Any]]:
    """Return the axes of one configuration and workload. Raises ConfigError if an override replaces an axis that is zipped."""
    axes = dict(axes)
    for override in overrides:
        if not override.rule({**_shape_axes(values["configuration"]), "workload": values["workload"]}):
            continue
        clash = set(override.axes) - set(axes)
        if clash:
            raise ConfigError(
                f"{override.rule.where}: this override replaces {', '.join(clash)}, which is zipped with the workload or "
                "configuration; remove the override or the zip"
            )
        axes.update(override.axes)
    return axes


def _shape_axes(configuration: Configuration) -> dict[str, Any]:
    """Return the axis values that a configuration alone determines."""
    return Cell("", configuration, "", 1, "").axes()
