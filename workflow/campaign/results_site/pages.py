"""What the pages lay out, in words: pure, from tables and what was asked for in the address."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from campaign import wording
from campaign.documents.cell import AXES
from campaign.documents.expression import parse
from campaign.documents.metric import THROUGHPUT, Metric
from campaign.plan.selection import HOST
from campaign.results_site.results_index import CampaignProgress
from campaign.statistics.comparable_cells import naming_columns, option_columns
from campaign.tables.cells import STATES, shown_states
from campaign.tables.io import Tables

CELLS_ON_PAGE = 100
CHOICES = ("configuration", "workload", "batch", "precision", "state")
"""Axes that a filter chooses values of."""
_MOST_CHOICES = 200


@dataclass(frozen=True)
class Filter:
    """What was asked for. where: an expression over axes, as of `--where`; chosen: values by axis, as text; page: from 1."""

    where: str = ""
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    page: int = 1

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Filter:
        """The filter that the pairs of an address ask for; unknown names are left out."""
        chosen: dict[str, tuple[str, ...]] = {}
        where, page = "", 1
        for name, value in pairs:
            if name == "where":
                where = value.strip()
            elif name == "page" and value.isdecimal() and len(value) < 9:
                page = max(1, int(value))
            elif name in CHOICES and value:
                chosen[name] = (*chosen.get(name, ()), value)
        return cls(where, chosen, page)

    def query(self, **changes: Any) -> str:
        """The address part that asks for this; '' when nothing is asked."""
        new = replace(self, **changes)
        pairs = [(name, value) for name, values in new.chosen.items() for value in values]
        pairs += [("where", new.where)] if new.where else []
        pairs += [("page", str(new.page))] if new.page > 1 else []
        return f"?{urlencode(pairs)}" if pairs else ""

    @property
    def asks(self) -> bool:
        """Whether it leaves anything out."""
        return bool(self.where or self.chosen)


def filtered(tables: Tables, asked: Filter) -> Tables:
    """Tables of the cells that are asked for; ConfigError for an expression that names no axis."""
    cells = tables.cells
    for name, values in asked.chosen.items():
        cells = cells[cells[name].astype(str).isin(values)]
    if asked.where:
        options = option_columns(cells)
        names = frozenset(AXES) | {name.removeprefix("option_") for name in options}
        chosen = parse(asked.where, names | {HOST}, "where")
        rows = cells.rename(columns={name: name.removeprefix("option_") for name in options}).to_dict("records")
        # An axis of that name comes first, as in `--where`.
        hosts = _hosts(tables.runs) if HOST in chosen.names - names else None
        axes = [{str(key): value for key, value in row.items()} for row in rows]
        cells = cells[
            [
                chosen(row) if hosts is None else any(chosen({**row, HOST: each}) for each in hosts[row["cell_id"]])
                for row in axes
            ]
        ]
    kept = set(cells["cell_id"])
    runs = tables.runs[tables.runs["cell_id"].isin(kept)]
    sampled = tables.telemetry
    if "cell_id" in sampled:
        sampled = sampled[sampled["cell_id"].isin(kept)]
    cells, runs, sampled = (frame.reset_index(drop=True) for frame in (cells, runs, sampled))
    return replace(tables, cells=cells, runs=runs, telemetry=sampled)


def _hosts(runs: pd.DataFrame) -> Mapping[str, set[str]]:
    """The hosts that runs of a cell touched, by its id."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for cell_id, names in zip(runs["cell_id"], runs["host_names"], strict=True):
        found[cell_id].update(filter(None, names.split(", ")))
    return found


def choices(tables: Tables, asked: Filter) -> list[dict[str, Any]]:
    """The form: by axis, its values and which are chosen; axes of one value are left out."""
    form = []
    for name in CHOICES:
        values = [str(value) for value in tables.cells[name].drop_duplicates()]
        if len(values) > 1:
            chosen = asked.chosen.get(name, ())
            form.append({"name": name, "values": [(value, value in chosen) for value in values[:_MOST_CHOICES]]})
    return form


def progress_words(progress: CampaignProgress, now_s: float) -> dict[str, Any]:
    """CampaignProgress for a page. done_pct: whole percent; a campaign is not 100 % before its last run."""
    share = 100 * progress.runs_done / progress.runs if progress.runs else 0.0
    ago = "" if progress.last_s is None else f"{wording.duration(max(0.0, now_s - progress.last_s))} ago"
    return {
        "state": progress.state,
        "runs": f"{progress.runs_done:,} of {wording.plural(progress.runs, 'run')}",
        "done_pct": int(share),
        "last": f"{progress.last}, {ago}" if progress.last else ago,
        "leases": progress.leases,
        "live": progress.state == "measuring",
    }


def coverage(cells: pd.DataFrame, query: Filter) -> dict[str, Any]:
    """Configurations by workloads: how many of the planned cells are measured, and the address of these alone."""
    workloads = list(cells["workload"].drop_duplicates())
    grouped = cells.groupby(["configuration", "workload"], sort=False)["state"]
    states = {key: group.value_counts() for key, group in grouped}
    rows = []
    for configuration in cells["configuration"].drop_duplicates():
        entries: list[tuple[str, str, str] | None] = []
        for workload in workloads:
            found = states.get((configuration, workload))
            if found is None:
                entries.append(None)
                continue
            planned, measured = int(found.sum()), int(found.get("measured", 0))
            state = _state(found.to_dict())
            chosen = {**query.chosen, "configuration": (configuration,), "workload": (workload,)}
            entries.append((f"{measured:,}/{planned:,}", state, query.query(chosen=chosen, page=1)))
        rows.append((configuration, entries))
    return {"workloads": workloads, "rows": rows}


def _state(found: Mapping[Any, int]) -> str:
    present = [name for name in STATES if found.get(name)]
    return present[0] if len(present) == 1 else "partly"


def cell_rows(cells: pd.DataFrame, asked: Filter, metric: Metric = THROUGHPUT) -> dict[str, Any]:
    """One page of cells, with the addresses of the pages before and after."""
    pages = max(1, -(-len(cells) // CELLS_ON_PAGE))
    page = min(asked.page, pages)
    part = cells.iloc[(page - 1) * CELLS_ON_PAGE : page * CELLS_ON_PAGE]
    part = part.assign(state=shown_states(part))
    axes = naming_columns(cells)
    rows = [
        (
            wording.describe(row, axes),
            row["state"],
            f"{row['n_ok']} of {row['n_planned']}",
            wording.rate(row["mean"]),
            wording.between(row["ci_low"], row["ci_high"], wording.rate),
            wording.percent(row["cv_pct"]),
            _why(row),
        )
        for row in part.to_dict("records")
    ]
    headings = ("Cell", "State", "Runs", metric.heading, "95 % interval", "CV", "Why, and flags")
    return {
        "headings": headings,
        "rows": rows,
        "total": wording.plural(len(cells), "cell"),
        "page": page,
        "pages": pages,
        "before": asked.query(page=page - 1) if page > 1 else None,
        "after": asked.query(page=page + 1) if page < pages else None,
    }


def _why(row: Mapping[Any, Any]) -> str:
    said = [row["failure_reasons"] or row["failures"], row["missing_reasons"] if row["n_missing"] else "", row["flags"]]
    said += [f"measured window: {row['window']}"] if row.get("window") else []
    return "; ".join(text for text in said if text)


def said_of(tables: Tables) -> Mapping[str, Any]:
    """What the campaign says of itself: title, question, system, notes."""
    context = tables.context
    return {**context["campaign"], "notes": context.get("notes", ())}
