"""Requirements that a composition has to meet before it is measured: the cells to try, and the check of their runs. Pure.

All cells of the workload on the configuration are tried, whatever part of the campaign is measured.
"""

from __future__ import annotations

from campaign.plan.campaign.resolve import Campaign
from campaign.plan.matrix import expand
from campaign.spec.campaign_file import Requirement
from campaign.spec.cell import Cell
from campaign.spec.expression import parse
from campaign.workloads.protocol import Outcome


def required(campaign: Campaign, configuration: str) -> list[tuple[Requirement, Cell]]:
    """Return the requirements on a configuration's compositions, each with a cell to try."""
    if not campaign.protocol.require:
        return []
    found = []
    for cell in expand(campaign, None, {configuration}).cells:
        axes = cell.axes()
        for index, each in enumerate(campaign.protocol.require):
            if cell.workload == each.workload:
                where = f"protocol.require.{index}.when"
                if each.when is None or parse(each.when, axes.keys(), where)(axes):
                    found.append((each, cell))
    return found


def shortfall(requirement: Requirement, cell: Cell, outcome: Outcome) -> str:
    """Describe how a run misses a requirement, or return '' if it meets the requirement."""
    what = f"protocol.require: {cell.label()}"
    if outcome.status != "ok":
        why = f" ({outcome.failure.reason})" if outcome.failure else ""
        return f"{what} ended with {outcome.status}{why}"
    rate = outcome.throughput_per_s
    values = {**outcome.metrics, **({} if rate is None else {"throughput_per_s": rate})}
    if (value := values.get(requirement.metric)) is None:
        return f"{what} gave no {requirement.metric}; it gave {', '.join(sorted(values)) or 'no number'}"
    factor = cell.configuration.ranks if requirement.per_device else 1
    if requirement.at_least is not None and not value >= requirement.at_least * factor:
        return (
            f"{what}: {requirement.metric} is {value:.6g}, and at least {requirement.at_least * factor:.6g} is required"
        )
    if requirement.at_most is not None and not value <= requirement.at_most * factor:
        return f"{what}: {requirement.metric} is {value:.6g}, and at most {requirement.at_most * factor:.6g} is allowed"
    return ""
