"""How much of what a figure is about was measured, as a sentence: of planned cells, of leases, or of hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from campaign import wording
from campaign.tables.cells import STATES


def of_cells(planned: pd.DataFrame, told: Iterable[str] | None = None) -> str:
    """By state. planned: rows of the cells table that the figure is about, measured or not.

    told: ids of the cells that the figure has a number of; how many measured ones have none is said too.
    """
    cells = planned.drop_duplicates("cell_id")
    states = cells["state"].value_counts()
    others = "".join(f", {int(states[name]):,} {name}" for name in STATES[1:] if states.get(name, 0))
    # Not every campaign's runs are counted in repetitions beforehand, and those beyond the plan are none of it.
    planned_runs, believed = int(cells["n_planned"].sum()), int(cells[["n_ok", "n_planned"]].min(axis="columns").sum())
    said = f"{int(states.get('measured', 0)):,} of {wording.plural(len(cells), 'planned cell')} measured{others}"
    said += f"; {believed:,} of {wording.plural(planned_runs, 'planned run')} {'is' if planned_runs == 1 else 'are'} believed"
    if told is None:
        return f"{said}."
    untold = int(((cells["state"] == "measured") & ~cells["cell_id"].isin(list(told))).sum())
    return f"{said}; of {wording.plural(untold, 'measured cell')} there is no such number." if untold else f"{said}."


def of_leases(leases: pd.DataFrame, told: Iterable[str], what: str) -> str:
    """leases: those of the campaign; told: ids of those that the figure is of; what: became of them ('got ready')."""
    return _of(set(leases["lease_id"]) if "lease_id" in leases else set(), set(told), "lease", what)


def of_hosts(runs: pd.DataFrame, told: Iterable[str], what: str) -> str:
    """runs: their hosts are those that could have told; told: names of hosts; what: they did."""
    return _of(
        {name for names in runs["host_names"].unique() for name in names.split(", ") if name}, set(told), "host", what
    )


def _of(known: set[str], told: set[str], noun: str, what: str) -> str:
    # A campaign made from others' numbers can know of links or hosts without a lease or a run.
    return f"{len(told):,} of {wording.plural(len(known | told), noun)} {what}."
