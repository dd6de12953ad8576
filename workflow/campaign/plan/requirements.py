"""Requirements that a composition has to meet before it is measured: the cells to try, and the check of their runs. Pure.

All cells of the workload on the configuration are tried, even if only a part of the campaign is measured.
"""

from __future__ import annotations

from campaign.plan.campaign.resolve import Campaign
from campaign.plan.matrix import expand_matrix
from campaign.spec.campaign_file import Requirement
from campaign.spec.cell import Cell
from campaign.spec.expression import parse_expression
from campaign.workloads.protocol import Outcome


def list_required_cells(campaign: Campaign, configuration: str) -> list[tuple[Requirement, Cell]]:
    """Return the requirements on a configuration's compositions, each with a cell to try."""
    if not campaign.protocol.require:
        return []
    cells = []
    for cell in expand_matrix(campaign, None, {configuration}).cells:
        axes = cell.axes()
        for index, requirement in enumerate(campaign.protocol.require):
            if cell.workload == requirement.workload:
                where = f"protocol.require.{index}.when"
                if requirement.when is None or parse_expression(requirement.when, axes.keys(), where)(axes):
                    cells.append((requirement, cell))
    return cells


def describe_shortfall(requirement: Requirement, cell: Cell, outcome: Outcome) -> str:
    """Describe how a run misses a requirement, or return an empty string if the requirement is met."""
    prefix = f"protocol.require: {cell.label()}"
    if outcome.status != "ok":
        reason = f" ({outcome.failure.reason})" if outcome.failure else ""
        return f"{prefix} ended with {outcome.status}{reason}"
    rate = outcome.throughput_per_s
    values = {**outcome.metrics, **({} if rate is None else {"throughput_per_s": rate})}
    if (value := values.get(requirement.metric)) is None:
        return f"{prefix} reported no {requirement.metric}; it reported {', '.join(sorted(values)) or 'no number'}"
    factor = cell.configuration.ranks if requirement.per_device else 1
    if requirement.at_least is not None and not value >= requirement.at_least * factor:
        return f"{prefix}: {requirement.metric} is {value:.6g}, but at least {requirement.at_least * factor:.6g} is required"
    if requirement.at_most is not None and not value <= requirement.at_most * factor:
        return (
            f"{prefix}: {requirement.metric} is {value:.6g}, but at most {requirement.at_most * factor:.6g} is allowed"
        )
    return ""
