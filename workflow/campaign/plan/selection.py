"""What `--where` selects: cells by their axes and, where there are records, by the hosts that their runs touched. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import AXES
from campaign.spec.expression import Expression, parse

HOST = "host"
"""What `--where` can name beside the axes: a host that a run of the cell touched."""


class HostsOf(Protocol):
    """The hosts that a cell's runs touched, by its id; `seen` are those of all cells that were asked for."""

    seen: set[str]

    def __call__(self, cell_id: str) -> Collection[str]: ...


def axis_names(campaign: Campaign) -> frozenset[str]:
    """Names that an expression over this campaign may use."""
    return frozenset(AXES) | set(campaign.file.axes.options)


def host_expression(campaign: Campaign, where: str) -> Expression | None:
    """`where`, if it names the hosts that runs touched; None where it asks for axes alone."""
    names = axis_names(campaign)
    expression = parse(where, names | {HOST}, "--where")
    return expression if HOST in expression.names - names else None


class CellSelection:
    """`--where`: holds for a cell by its axes or, where it names `host`, by any host that a run of the cell touched.

    So a cell without a run is not selected by an expression that names `host`, and one that is selected stays so while it is
    measured again elsewhere.
    """

    def __init__(self, campaign: Campaign, where: str, hosts: HostsOf | None) -> None:
        names = axis_names(campaign)
        self.hosts = hosts
        self.expression = parse(where, names | {HOST} if hosts else names, "--where")
        self.by_host = HOST in self.expression.names - names

    def __call__(self, axes: Mapping[str, Any], cell_id: Callable[[], str]) -> bool:
        if self.hosts is None or not self.by_host:
            return self.expression(axes)
        return any(self.expression({**axes, HOST: host}) for host in self.hosts(cell_id()))

    def known(self) -> str:
        """For an error: the hosts that could have been named."""
        if self.hosts is None or not self.by_host:
            return ""
        return f"; hosts with records: {', '.join(sorted(self.hosts.seen)) or 'none'}"
