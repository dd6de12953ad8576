'''Figures: their declaration, their data, their drawing, and their files.

A figure is one file in `scripts/figures/`. Every file there is drawn and put on the page; no other file needs a change. Copy this:

    """Figure: how long each configuration was held."""

    from campaign.report.figure import Drawing, FigureData, nothing
    from campaign.report.plot import chart

    TITLE, SECTION = "Held time", "How long were hosts and devices held?"

    def draw(data: FigureData) -> Drawing:
        rows = data.leases.groupby("configuration")["held_s"].mean().dropna().reset_index()
        if rows.empty:
            return nothing("no lease was released")
        return chart(data, rows, lambda axes: axes.bar(rows["configuration"], rows["held_s"]), "Mean over leases.", ["..."])

Optional declarations:

- `PART`: part of the page, `ANSWERS`, `EVIDENCE` (the default) or `APPARATUS`;
- `WITH`: anchor of the figure in whose section it is a panel; `PLACE`: position there (figures without one come last, by name);
- `METHOD`: how its numbers are computed, if the caption has no room for it;
- `RESTS_ON`: subjects of its statements (devices, links, fabric); if one was emulated, the figure states it;
- `UNITS`: unit of each CSV column whose name has none ("" for a number without unit);
- `COUNTERPARTS`: counterparts in published studies (study and figure -> what it shows), for `reports/README.md`.

The name of the file is the name of the figure's files, and with dashes its anchor on the page. A caption has at most 40 words: the
meaning of marks, and the number of runs behind them. Limits of the statements are in `limits`; the page describes once how
everything was measured and tested. `draw` computes nothing: numbers come from `campaign.analysis.tables`, comparisons from
`campaign.analysis.statistics`, words from `campaign.common.wording` and `campaign.analysis.statistics.verdict`. The most
important result is the first of `findings`.

Files of a figure: `<name>.svg` (a picture of its own), `<name>.pdf` (if it fits a sheet), `<name>.csv` (the numbers drawn) and
`<name>.json` (words for the page).
'''

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparisons, verdict
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.statistics.step_times import WINDOW_PROBLEMS
from campaign.analysis.tables.cells import CELL_STATES
from campaign.analysis.tables.io import Tables, write_csv
from campaign.analysis.tables.leases import build_leases_table, build_operations_table
from campaign.common import wording
from campaign.common.errors import RecordError
from campaign.common.intervals import SIGNIFICANCE_LEVEL
from campaign.common.paths import REPORTS, SCRIPTS, find_figure_files
from campaign.report import LAST_PLACE, svg
from campaign.spec.metric import THROUGHPUT, Metric, read_primary_metric

ANSWERS, EVIDENCE, APPARATUS = "answers", "evidence", "apparatus"
"""Parts of the page."""
_PARTS = (ANSWERS, EVIDENCE, APPARATUS)
# Numbers of a picture are in the CSV.
_ROWS_WITHOUT_PICTURE = 12
_MAX_ROWS_IN_WORDS = 300  # More than any page, paper or test uses; the CSV has the numbers.

_SUMMARY_COLUMNS = ("mean", "sd", "ci_low", "ci_high")
"""Numbers of the primary metric, unless the table has a column `unit`."""
_RATE_COLUMNS = ("median", "median_low", "median_high", "min", "max", "against_mean", "against_sd")


@dataclass(frozen=True)
class FigureData:
    """All data that a figure may read.

    The tables are those of `campaign.analysis.tables`. `leases` is the result of `build_leases_table`, `telemetry` that of
    `campaign.analysis.tables.time_series`. `context` is the document of the report (`campaign.report.context_schema`).
    """

    runs: pd.DataFrame
    cells: pd.DataFrame
    leases: pd.DataFrame
    baseline: str
    protocol: Mapping[str, Any]
    links: tuple[Mapping[str, Any], ...] = ()
    """Link measurements: lease_id, lease, configuration, when, document (`campaign.observe.links`)."""
    telemetry: pd.DataFrame = field(default_factory=pd.DataFrame)
    steps: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Times of single steps. If they were read from files, `cell_id` is a category, because there are very many rows."""
    context: Mapping[str, Any] = field(default_factory=dict)
    reference: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Runs of the reference (`campaign.analysis.tables.runs.build_reference_table`)."""
    operations: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Durations of fabric operations (`campaign.analysis.tables.leases.build_operations_table`)."""
    style: Path = REPORTS / "style.mplstyle"
    tables: Tables | None = None
    """Tables that contain the runs; None if they are other runs."""

    @property
    def metric(self) -> Metric:
        """Primary metric of the campaign, which `mean` and the other summaries of cells refer to."""
        return read_primary_metric(self.context)

    @cached_property
    def design(self) -> Design:
        """Experiment design of the runs, by which `campaign.analysis.statistics.comparable_cells` compares cells."""
        if self.tables and self.runs is self.tables.runs:
            return self.tables.design
        campaign = {**self.context.get("campaign", {}), "protocol": self.protocol}
        return comparisons.build_campaign_design(self.runs, campaign, self.reference)


@dataclass(frozen=True)
class Drawing:
    """Drawn figure. Without `svg` it is a table if there are rows; otherwise `empty_reason` is the reason.

    Args:
        caption: meaning of marks, number of runs, interval.
        findings: results that the figure shows, as sentences, alarms first; `alt` consists of the first ones.
        limits: limits of the findings.
        narrow: picture drawn for a phone.
        glance: small picture of the finding.
        headline: sentence on the numbers of the small picture, which is above it.
        data: numbers drawn, for the CSV.
        headings: headings of the table for readers.
        rows: rows of that table, as text; only the first of very many (`rows_total`).
        coverage: measured part of the figure's subject; it also counts items without a number.
        metric: primary metric of the campaign.
        alarm: true if the finding must be known before all others, so that the figure comes first on the page.
        minor: true if nothing differs significantly, so that the page shows the first finding and folds the picture.
    """

    svg: str | None
    caption: str = ""
    alt: str = ""
    findings: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    narrow: str | None = None
    glance: str | None = None
    headline: str = ""
    data: pd.DataFrame = field(default_factory=pd.DataFrame)
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    rows_total: int = 0
    empty_reason: str = ""
    coverage: str = ""
    metric: Metric = THROUGHPUT
    alarm: bool = False
    minor: bool = False


@dataclass(frozen=True)
class Figure:
    """Figure, as declared by a file in scripts/figures/.

    `section` is the introduction to its section; `within` is the anchor of the figure that it continues.
    """

    name: str
    title: str
    section: str
    draw_function: Callable[[FigureData], Drawing]
    method: str = ""
    rests_on: Sequence[str] = ()
    part: str = EVIDENCE
    within: str = ""
    place: int = LAST_PLACE
    units: Mapping[str, str] = field(default_factory=dict)
    counterparts: Mapping[str, str] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """Anchor of the figure on the page."""
        return self.name.replace("_", "-")

    def draw(self, data: FigureData) -> Drawing:
        """Draw the figure, with pictures labelled for screen readers and adapted to any page."""
        drawing = replace(self.draw_function(data), metric=data.metric)
        if drawing.svg is None:
            return drawing
        alt = wording.write_alt_text(drawing.findings)

        def adapt_picture(picture: str | None, suffix: str, alt: str = alt) -> str | None:
            return svg.adapt_svg(picture, f"{self.anchor}{suffix}", self.title, alt) if picture else None

        return replace(
            drawing,
            alt=alt,
            svg=adapt_picture(drawing.svg, ""),
            narrow=adapt_picture(drawing.narrow, "-narrow"),
            glance=adapt_picture(
                drawing.glance, "-glance", ""
            ),  # it is placed below the sentence with the same content
        )

    def write_csv(self, drawing: Drawing, path: Path) -> None:
        """Write the drawn numbers as CSV. Raises OSError if that fails.

        Their units are in the names of columns, or in a column `unit`, `size_unit` or `cost_unit`.
        """
        with path.open("wb") as file:
            write_csv(add_metric_units(drawing.data, drawing.metric, self.units), file)


def add_metric_units(
    table: pd.DataFrame, metric: Metric, units: Mapping[str, str] = MappingProxyType({})
) -> pd.DataFrame:
    """Return a table with units in the names of the columns that have the metric's or a declared unit.

    Args:
        table: cells or compared cells. A column `unit` gives the unit of each row's mean.
        metric: primary metric of the campaign.
        units: units of further columns.
    """
    rates = _RATE_COLUMNS if "unit" in table else (*_RATE_COLUMNS, *_SUMMARY_COLUMNS)
    suffixes = {**dict.fromkeys(rates, metric.unit_suffix), **units}
    return table.rename(columns={name: f"{name}_{unit}" for name, unit in suffixes.items() if unit})


def load_figure(name: str, scripts: Path = SCRIPTS) -> Figure:
    """Load the figure that a file of scripts/figures/ declares.

    Raises RecordError if the declaration is incomplete.
    """
    path = find_figure_files(scripts)[name]
    spec = importlib.util.spec_from_file_location(f"campaign_figure_{name}", path)
    if spec is None or spec.loader is None:
        raise RecordError(f"{path}: the figure cannot be loaded; reinstall the package or use a checkout")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _figure_from_module(name, path, module)


def _figure_from_module(name: str, path: Path, module: ModuleType) -> Figure:
    """Build the figure from the attributes of its module. Raises RecordError if one is missing or invalid."""
    missing = [attribute for attribute in ("TITLE", "SECTION", "draw") if not hasattr(module, attribute)]
    if missing:
        raise RecordError(f"{path}: a figure must declare TITLE, SECTION and draw(data); missing: {', '.join(missing)}")
    optional = {
        key.lower(): getattr(module, key)
        for key in ("METHOD", "RESTS_ON", "PART", "PLACE", "UNITS", "COUNTERPARTS")
        if hasattr(module, key)
    }
    optional |= {"within": getattr(module, "WITH", "")}
    if optional.get("part", EVIDENCE) not in _PARTS:
        raise RecordError(f"{path}: PART is {optional['part']!r}, but must be one of {', '.join(_PARTS)}")
    return Figure(name, module.TITLE, module.SECTION, module.draw, **optional)


def list_figure_names(scripts: Path = SCRIPTS) -> list[str]:
    """Return the names of the figures, one per file in scripts/figures/."""
    return list(find_figure_files(scripts))


def load_all_figures(scripts: Path = SCRIPTS) -> dict[str, Figure]:
    """Load the figures of scripts/figures/ by name, in the order of the page."""
    figures = [load_figure(name, scripts) for name in list_figure_names(scripts)]
    return {figure.name: figure for figure in sorted(figures, key=lambda figure: (figure.place, figure.name))}


def nothing(reason: str) -> Drawing:
    """Return an empty drawing, for a figure that has no data.

    Args:
        reason: reason that completes 'left out because ...'.
    """
    return Drawing(svg=None, empty_reason=reason)


def build_page_document(figure: Figure, drawing: Drawing) -> dict[str, Any]:
    """Build the JSON-serialisable document of a figure for the page.

    The picture is a file of its own.
    """
    return {
        "anchor": figure.anchor,
        "part": figure.part,
        "within": figure.within,
        "place": 0 if drawing.alarm else figure.place,
        "title": figure.title,
        "section": figure.section,
        "method": figure.method,
        "rests_on": list(figure.rests_on),
        "shown": drawing.svg is not None or bool(drawing.rows),
        "minor": drawing.minor,
        "picture": drawing.svg is not None,
        "reason": drawing.empty_reason,
        "coverage": drawing.coverage,
        "caption": drawing.caption,
        "alt": drawing.alt,
        "findings": list(drawing.findings),
        "limits": list(drawing.limits),
        "tested": _count_tests(drawing.data),
        "narrow": drawing.narrow,
        "glance": drawing.glance,
        "headline": drawing.headline,
        **_shorten_table(drawing),
    }


def _count_tests(rows: pd.DataFrame) -> dict[str, int]:
    """Count the comparisons of a figure by method, and those with a significant difference (`differ`).

    The page sums these counts over all figures.
    """
    if not {"p", "p_holm", "method"} <= set(rows):
        return {}
    tested_rows = rows[rows["p"].notna()]
    methods = tested_rows["method"].str.removesuffix(", 95 %").value_counts(sort=False)
    return {
        "differ": int((tested_rows["p_holm"] < SIGNIFICANCE_LEVEL).sum()),
        **{str(name): int(n) for name, n in methods.items()},
    }


def _shorten_table(drawing: Drawing) -> dict[str, Any]:
    """Shorten the table of a drawing for the page.

    Columns that are empty, or the same in all of several rows, are left out. A drawing with a picture has no rows on the page,
    because they are in its CSV; without a picture, the first rows are included.
    """
    headings, rows = drawing.headings, drawing.rows
    total = max(drawing.rows_total, len(rows))
    values = [{row[index] for row in rows} for index in range(len(headings))]
    kept_columns = [
        index for index, texts in enumerate(values) if texts - _EMPTY_TEXTS and (len(rows) == 1 or len(texts) > 1)
    ]
    shown_rows = () if drawing.svg else rows[:_ROWS_WITHOUT_PICTURE]
    return {
        "headings": [headings[index] for index in kept_columns],
        "rows": [[row[index] for index in kept_columns] for row in shown_rows],
        "rows_left_out": total - len(shown_rows),
    }


_EMPTY_TEXTS = {"", "0", wording.NO_VALUE}


def build_page_table(rows: pd.DataFrame, columns: Mapping[str, Callable[[Any], str]]) -> dict[str, Any]:
    """Build the headings and rows of a Drawing.

    A last column is added if cells have problems of their measured windows (`campaign.analysis.statistics.step_times`).

    Args:
        rows: rows of the table.
        columns: function of each column, by heading, that formats a row.
    """
    if "window" in rows and (rows["window"].fillna("") != "").any():
        columns = {**columns, "Measured window": lambda row: row["window"] or wording.NO_VALUE}
    texts = [
        tuple(format_cell(row) for format_cell in columns.values())
        for row in rows.head(_MAX_ROWS_IN_WORDS).to_dict("records")
    ]
    return {"headings": tuple(columns), "rows": tuple(texts), "rows_total": len(rows)}


def select_distinguishing_columns(rows: pd.DataFrame, columns: Iterable[str], default: str = "workload") -> list[str]:
    """Select the columns in which rows differ, or `default` alone if rows do not differ."""
    return [column for column in columns if rows[column].nunique() > 1] or [default]


def select_first_and_last(sorted_rows: pd.DataFrame) -> list[Any]:
    """Select the first and the last of sorted rows; a single row is returned once."""
    return [sorted_rows.iloc[0]] if len(sorted_rows) == 1 else [sorted_rows.iloc[0], sorted_rows.iloc[-1]]


def describe_undrawn(count: int, noun: str, location: str = "data table") -> str:
    """State in a caption sentence, after a space, how many items are not drawn; empty if all are drawn."""
    verb = "is" if count == 1 else "are"
    return f" {wording.pluralize(count, f'further {noun}')} {verb} only in the {location}." if count > 0 else ""


def describe_marks(mark: str, counts: Iterable[int], methods: Iterable[str]) -> str:
    """Return the sentence of a caption that explains marks.

    An example is 'Each bar is one cell (3 runs) with its 95 % interval.'

    Args:
        mark: what a cell is drawn as, such as 'bar'.
        counts: numbers of runs of the cells.
        methods: interval method of each cell.
    """
    runs = wording.format_run_counts(list(counts)).removeprefix("n = ")
    if wording.format_interval_methods(methods):
        return f"Each {mark} is one cell ({runs}) with its 95\u202f% interval."
    return f"Each {mark} is one cell ({runs}, {'so ' if runs == '1 run' else ''}no interval)."


def build_figure_data(tables: Tables, style: Path | None = None) -> FigureData:
    """Build the data of figures from the tables of a campaign."""
    campaign = tables.context["campaign"]
    optional: dict[str, Any] = {"style": style} if style else {}
    return FigureData(
        tables.runs,
        tables.cells,
        build_leases_table(tables.leases),
        campaign["baseline"],
        campaign["protocol"],
        tuple(tables.links),
        tables.telemetry,
        tables.steps,
        tables.context,
        tables.reference,
        build_operations_table(tables.leases),
        tables=tables,
        **optional,
    )


def write_figure(figure: Figure, data: FigureData, directory: Path) -> None:
    """Draw one figure and write its files into a directory.

    If the figure has no data, only its document is written, with the reason. Raises RecordError if a file cannot be written.
    """
    drawing = figure.draw(data)
    words = json.dumps(build_page_document(figure, drawing), indent=1, sort_keys=True, ensure_ascii=False)
    out = directory / figure.name
    try:
        for suffix in (".svg", ".csv"):
            out.with_suffix(suffix).unlink(missing_ok=True)
        if drawing.svg or drawing.rows:
            picture = drawing.svg or svg.render_notice(figure.anchor, f"{figure.title}: see its table")
            out.with_suffix(".svg").write_text(svg.DECLARATION + picture, encoding="utf-8")
            figure.write_csv(drawing, out.with_suffix(".csv"))
        out.with_suffix(".json").write_text(words + "\n", encoding="utf-8")
    except OSError as error:
        raise RecordError(f"Figure {figure.anchor} could not be written: {error.strerror or error}") from error


def list_limits(data: FigureData, rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the limits of a figure's findings, as sentences on comparisons and on irregular measured windows."""
    comparison_limits = verdict.list_limitations(rows, data.protocol) if {"p_holm", "method"} <= set(rows) else ()
    return *comparison_limits, _describe_windows(data.cells, rows) if "cell_id" in rows else ""


def _describe_windows(cells: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Describe how many cells have each problem of the measured window; empty if none or unknown."""
    marked_cells = cells[cells.get("window", pd.Series("", cells.index)) != ""]
    if marked_cells.empty:
        return ""
    is_shown = (
        marked_cells["cell_id"].astype(object).isin(rows["cell_id"])
    )  # Searching a column of Arrow's strings is slow.
    texts = marked_cells[is_shown].drop_duplicates("cell_id")["window"].value_counts()
    counts = {
        mark: sum(int(count) for text, count in texts.items() if mark in str(text).split(", "))
        for mark in WINDOW_PROBLEMS
    }
    return " ".join(
        f"Measured window {mark}: {wording.pluralize(count, 'cell')}." for mark, count in counts.items() if count
    )


def describe_cell_coverage(
    planned_cells: pd.DataFrame, shown_cell_ids: Iterable[str] | None = None, reason: str = ""
) -> str:
    """Describe how many planned cells and runs of a figure were measured, by state.

    Args:
        planned_cells: rows of the cells table, measured or not.
        shown_cell_ids: ids of the cells that have a number in the figure; the measured cells without one are counted as well.
        reason: reason that measured cells have no number in the figure.
    """
    cells = planned_cells.drop_duplicates("cell_id")
    states = cells["state"].value_counts()
    other_counts = [f"{int(states[name]):,} {name}" for name in CELL_STATES[1:] if states.get(name, 0)]
    other_states = f" ({', '.join(other_counts)})" if other_counts else ""
    # Some campaigns do not plan repetitions beforehand, and runs beyond the plan do not count.
    planned_runs, valid = int(cells["n_planned"].sum()), int(cells[["n_ok", "n_planned"]].min(axis="columns").sum())
    cells_text = f"{wording.pluralize(len(cells), 'planned cell')} {'was' if len(cells) == 1 else 'were'} measured"
    runs_text = f"{wording.pluralize(planned_runs, 'planned run')} {'is' if planned_runs == 1 else 'are'} valid"
    text = f"{int(states.get('measured', 0)):,} of {cells_text}{other_states}; {valid:,} of {runs_text}"
    if shown_cell_ids is None:
        return f"{text}."
    count_without_value = len(set(cells.loc[cells["state"] == "measured", "cell_id"]).difference(shown_cell_ids))
    verb = "is" if count_without_value == 1 else "are"
    return (
        f"{text}; {wording.pluralize(count_without_value, 'measured cell')} {verb} not shown{reason and ': '}{reason}."
        if count_without_value
        else f"{text}."
    )


def describe_lease_coverage(leases: pd.DataFrame, shown_lease_ids: Iterable[str], outcome: str) -> str:
    """Describe how many leases a figure covers.

    Args:
        leases: leases of the campaign.
        shown_lease_ids: ids of the leases in the figure.
        outcome: outcome of these leases, such as 'became ready'.
    """
    return _describe_coverage(
        set(leases["lease_id"]) if "lease_id" in leases else set(), set(shown_lease_ids), "lease", outcome
    )


def describe_host_coverage(runs: pd.DataFrame, shown_hosts: Iterable[str], outcome: str) -> str:
    """Describe how many hosts a figure covers.

    Args:
        runs: runs whose hosts could be shown.
        shown_hosts: names of the hosts in the figure.
        outcome: outcome of these hosts.
    """
    hosts = {name for names in runs["host_names"].unique() for name in names.split(", ") if name}
    return _describe_coverage(hosts, set(shown_hosts), "host", outcome)


def _describe_coverage(all_names: set[str], shown_names: set[str], noun: str, outcome: str) -> str:
    """Describe how many of all names are shown."""
    # A campaign with imported numbers can have links or hosts without a lease or a run.
    return f"{len(shown_names):,} of {wording.pluralize(len(all_names | shown_names), noun)} {outcome}."
