"""Selection of cells by `--where`, from their axes and, if there are records, from the hosts of their runs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import AXES
from campaign.spec.expression import Expression, parse_expression

HOST_NAME = "host"
"""Name that `--where` can use in addition to the axes: a host that a run of the cell used."""


class HostsByCell(Protocol):
    """Hosts that a cell's runs used, by the id of the cell.

    `requested_hosts` holds the hosts of all cells that were looked up.
    """

    requested_hosts: set[str]

    def __call__(self, cell_id: str) -> Collection[str]: ...


def list_axis_names(campaign: Campaign) -> frozenset[str]:
    """Return the names that an expression over this campaign may use."""
    return frozenset(AXES) | set(campaign.file.axes.options)


def parse_host_expression(campaign: Campaign, where: str) -> Expression | None:
    """Parse `where`. The result is None if the expression does not name `host`."""
    names = list_axis_names(campaign)
    expression = parse_expression(where, names | {HOST_NAME}, "--where")
    return expression if HOST_NAME in expression.names - names else None


class CellSelection:
    """Condition of `--where` on the axes of a cell or, if it names `host`, on any host that a run of the cell used.

    A condition that names `host` selects no cell without a run. A selected cell stays selected while it is measured again on
    another host.
    """

    def __init__(self, campaign: Campaign, where: str, hosts: HostsByCell | None) -> None:
        names = list_axis_names(campaign)
        self.hosts = hosts
        self.expression = parse_expression(where, names | {HOST_NAME} if hosts else names, "--where")
        self.by_host = HOST_NAME in self.expression.names - names

    def __call__(self, axes: Mapping[str, Any], cell_id: Callable[[], str]) -> bool:
        if self.hosts is None or not self.by_host:
            return self.expression(axes)
        return any(self.expression({**axes, HOST_NAME: host}) for host in self.hosts(cell_id()))

    def list_known_hosts(self) -> str:
        """Return the part of an error message that lists the hosts with records."""
        if self.hosts is None or not self.by_host:
            return ""
        return f"; hosts with records: {', '.join(sorted(self.hosts.requested_hosts)) or 'none'}"
