"""Results of campaigns as Python objects, which `campaign.load` returns: data frames, comparisons, figures and recommendations."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as MplFigure

from campaign.analysis.recommend.advise import answer_question
from campaign.analysis.statistics.comparable_cells import list_option_columns
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.leases import build_leases_table
from campaign.common import wording
from campaign.common.errors import ConfigError, RecordError, convert_os_error
from campaign.common.paths import Results, find_figure_files
from campaign.report import plot
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    Figure,
    add_metric_units,
    build_figure_data,
    load_all_figures,
    load_figure,
)
from campaign.report.sources import load_tables
from campaign.spec.metric import read_primary_metric

RATIO_KINDS = ("scaling", "node_spread", "precision", "overhead")
_RUN_KEY = ["cell_id", "repetition"]
_CELL_COLUMNS = ("configuration", "hosts", "devices_used", "workload", "batch", "precision")
_RATIO_COLUMNS = (
    "ratio", "ratio_low", "ratio_high", "p", "p_holm", "tested", "n_pairs", "compositions", "against_compositions", "method",
)  # fmt: skip
_LINK_COLUMNS = (
    "lease_id", "configuration", "when", "from", "to", "kind", "size_bytes",
    "unidirectional_gb_per_s", "bidirectional_gb_per_s", "latency_us",
)  # fmt: skip


def load_results(
    sources: Sequence[str | os.PathLike[str]], results: str | os.PathLike[str] = "results", where: str | None = None
) -> LoadedResults:
    """Load the results of campaigns; `campaign.load` describes the arguments."""
    if not sources:
        raise ConfigError(
            "no source of results is given; campaign.load needs a results directory, campaign file or archive"
        )
    paths = [Path(source) for source in sources]
    for path in paths:
        if not path.exists():
            raise ConfigError(
                f"{path}: no such file or directory; give a results directory, a campaign file or an archive"
            )
    return LoadedResults(tuple(_load_campaign(path, Path(results), where) for path in paths))


def _load_campaign(path: Path, results: Path, where: str | None) -> _LoadedCampaign:
    tables = load_tables(path, results, where)
    directory = path if path.is_dir() else None if path.suffix == ".zip" else Results(results, tables.name).directory
    return _LoadedCampaign(str(path), directory, tables)


@dataclass(frozen=True)
class _LoadedCampaign:
    """Tables of one campaign, the source they come from, and its results directory; None for an archive."""

    source: str
    directory: Path | None
    tables: Tables


@dataclass(frozen=True, repr=False)
class LoadedResults:
    """Results of one or several campaigns.

    Frames are those of the report. The name of a column ends in its unit, as `_s`, `_pct`, `_gb_per_s` or `_per_s`; columns without
    one are counts, names or ratios. If several campaigns were loaded, the first column of each frame is `source`.
    """

    _campaigns: tuple[_LoadedCampaign, ...]

    def __repr__(self) -> str:
        counts = f"{wording.pluralize(len(self.cells), 'cell')}, {wording.pluralize(len(self.runs), 'run')}"
        return f"<results of {self.name}: {counts}>"

    @property
    def campaigns(self) -> tuple[LoadedResults, ...]:
        """Results of each campaign on its own, in the order of the sources."""
        return tuple(LoadedResults((campaign,)) for campaign in self._campaigns)

    @property
    def name(self) -> str:
        """Name of the campaign. Several names are joined by commas."""
        return ", ".join(campaign.tables.name for campaign in self._campaigns)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Cells: one row per combination of configuration, workload, batch, precision and options.

        `mean`, `ci_low` and `ci_high` are the primary metric and its 95 % interval, with the unit of the metric in their names.
        """
        return self._concatenate(
            lambda campaign: add_metric_units(campaign.tables.cells, read_primary_metric(campaign.tables.context))
        )

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Runs: one row per repetition of a cell, with its status, its times and its metrics."""
        return self._concatenate(lambda campaign: campaign.tables.runs)

    @cached_property
    def leases(self) -> pd.DataFrame:
        """Leases: one row per use of a composition, with the seconds of each phase."""
        return self._concatenate(lambda campaign: build_leases_table(campaign.tables.leases))

    @cached_property
    def links(self) -> pd.DataFrame:
        """Links: one row per measurement of an ordered pair of devices, with bandwidths in GB/s and latency in µs."""
        return self._concatenate(lambda campaign: _build_links_frame(campaign.tables.links))

    @cached_property
    def telemetry(self) -> pd.DataFrame:
        """Telemetry: one row per sample. The name in `quantity` ends in the unit of `value`."""
        return self._concatenate(lambda campaign: campaign.tables.telemetry)

    def steps(self, run: Any) -> pd.Series[float]:
        """Return the duration in seconds of each measured step of a run, of its slowest rank.

        Args:
            run: row of `runs`, or a pair of cell id and repetition. Raises RecordError if there is no such run.
        """
        campaign, cell_id, repetition = self._find_run(run)
        steps = campaign.tables.steps
        selected = steps[(steps["cell_id"] == cell_id) & (steps["repetition"] == repetition)]
        return selected["time_s"].reset_index(drop=True)

    def log(self, run: Any) -> str:
        """Return the log of a run. Raises RecordError if there is none, as in an archive.

        Args:
            run: row of `runs`, or a pair of cell id and repetition.
        """
        campaign, cell_id, repetition = self._find_run(run)
        runs = campaign.tables.runs
        name = str(runs.loc[(runs["cell_id"] == cell_id) & (runs["repetition"] == repetition), "log"].iloc[0])
        if not campaign.directory:
            raise RecordError(f"{campaign.source}: an archive has no logs; load the results directory to read {name}")
        if not name:
            raise RecordError(
                f"{campaign.source}: run {repetition} of cell {cell_id} started nothing, so it has no log"
            )
        path = campaign.directory / name
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise convert_os_error(error, path) from error

    def ratios(self, kind: str) -> pd.DataFrame:
        """Return the comparisons of one kind, with their 95 % intervals and p values, as on the page.

        `ratio` is the performance of a cell divided by that of the cell that it is compared with, on `against_configuration`. A
        ratio that was not tested has no p.

        Args:
            kind: `scaling`, `node_spread`, `precision` or `overhead`. Raises ConfigError for any other.
        """
        if kind not in RATIO_KINDS:
            raise ConfigError(f"{kind!r} is no kind of ratio; kinds are {', '.join(RATIO_KINDS)}")
        return self._concatenate(lambda campaign: _select_ratio_columns(kind, LoadedResults((campaign,))))

    def recommend(
        self, objective: str | None = None, constraint: str | None = None, workload: str | None = None
    ) -> pd.DataFrame:
        """Return what to build: one row per objective and workload, as `campaign recommend` answers.

        Raises ConfigError if an argument is invalid.

        Args:
            objective: what to optimise, such as `throughput` or `cheapest-within:5%`; default: those of the report.
            constraint: condition on shapes and their results, such as `devices <= 4`.
            workload: only this workload.
        """
        document = answer_question(
            self._only.tables, *([text] if text else [] for text in (objective, constraint, workload))
        )
        return pd.DataFrame(
            [
                {
                    "objective": answer.objective,
                    "workload": answer.about,
                    "build": answer.choice.full_name if answer.choice else "",
                    "result": answer.choice.said if answer.choice else answer.sentences[0],
                    "alternatives": answer.describe_alternatives() if answer.choice else "",
                }
                for answer in document.answers
            ]
        )

    def figure(self, name: str) -> MplFigure:
        """Draw a figure of the report as a matplotlib figure, which can be changed and saved.

        Args:
            name: name of a figure, such as `scaling`. Raises ConfigError if there is no such figure or if it has no data.
        """
        drawing, figures = self._draw(_find_figure(name))
        if not figures:
            raise ConfigError(
                f"the figure {name} has no picture: {drawing.empty_reason or 'it is a table, see its CSV'}"
            )
        FigureCanvasAgg(figures[0])
        figures[0].patch.set_facecolor("white")
        return figures[0]

    def _repr_html_(self) -> str:
        """Return the overview as HTML: the answers of the page, each with its first finding and its small picture."""
        return "".join(campaign._describe_as_html() for campaign in self.campaigns)

    def _describe_as_html(self) -> str:
        tables = self._only.tables
        count = wording.pluralize
        failed = int((tables.runs["status"] != "ok").sum())
        counts = f"{count(len(tables.cells), 'cell')}, {count(len(tables.runs), 'run')}, {failed} failed"
        cards = []
        for figure in load_all_figures().values():
            if figure.part != ANSWERS:
                continue
            drawing, _ = self._draw(figure)
            if drawing.svg and drawing.findings:
                cards.append(
                    f"<td style='vertical-align:top;text-align:left;width:16em;white-space:normal'><b>{html.escape(figure.title)}"
                    f"</b><br>{drawing.glance or ''}<br>{html.escape(drawing.findings[0])}</td>"
                )
        rows = "".join(f"<tr>{''.join(cards[start : start + 3])}</tr>" for start in range(0, len(cards), 3))
        return f"<h3>{html.escape(tables.name)}</h3><p>{html.escape(counts)}</p><table>{rows}</table>"

    @property
    def _only(self) -> _LoadedCampaign:
        if len(self._campaigns) > 1:
            raise ConfigError(f"{len(self._campaigns)} campaigns are loaded; select one with .campaigns[0] first")
        return self._campaigns[0]

    def _concatenate(self, build: Callable[[_LoadedCampaign], pd.DataFrame]) -> pd.DataFrame:
        frames = [build(campaign) for campaign in self._campaigns]
        if len(frames) == 1:
            return frames[0].copy()
        for frame, campaign in zip(frames, self._campaigns, strict=True):
            frame.insert(0, "source", campaign.source)
        return pd.concat(frames, ignore_index=True)

    def _draw(self, figure: Figure) -> tuple[Drawing, list[MplFigure]]:
        """Return a figure of the report, and its picture."""
        figures: list[MplFigure] = []
        with plot.use_medium(replace(plot.PAGE, figures=figures)):
            return figure.draw(build_figure_data(self._only.tables)), figures

    def _find_run(self, run: Any) -> tuple[_LoadedCampaign, str, int]:
        if isinstance(run, (Mapping, pd.Series)):
            source, (cell_id, repetition) = run.get("source"), (run[name] for name in _RUN_KEY)
        elif hasattr(run, "cell_id"):
            source, (cell_id, repetition) = getattr(run, "source", None), (getattr(run, name) for name in _RUN_KEY)
        else:
            source, (cell_id, repetition) = None, run
        for campaign in self._campaigns:
            runs = campaign.tables.runs
            if source in (None, campaign.source) and len(
                runs[(runs["cell_id"] == cell_id) & (runs["repetition"] == int(repetition))]
            ):
                return campaign, str(cell_id), int(repetition)
        raise RecordError(f"{self.name}: no run {repetition} of cell {cell_id}; .runs lists all runs")


def _find_figure(name: str) -> Figure:
    names = find_figure_files()
    if name not in names:
        raise ConfigError(f"{name!r} is no figure; figures are {', '.join(names)}")
    return load_figure(name)


def _select_ratio_columns(kind: str, results: LoadedResults) -> pd.DataFrame:
    """Return the comparisons of a figure without the columns that `cells` has."""
    figure = _find_figure(kind)
    data = results._draw(figure)[0].data
    own = [name for name in map(str, data) if name not in results._only.tables.cells and name not in _RATIO_COLUMNS]
    percentages = [name for name in own if name.endswith("_pct") or figure.units.get(name) == "pct"]
    names = [
        *(name for name in (*_CELL_COLUMNS, *list_option_columns(results._only.tables.cells)) if name in data),
        *(name for name in ("mean", "ci_low", "ci_high", "against_configuration") if name in data),
        *(name for name in _RATIO_COLUMNS if name in data),
        *percentages,
    ]
    return add_metric_units(data[names], read_primary_metric(results._only.tables.context), figure.units)


def _build_links_frame(links: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    rows = []
    for link in links:
        document = link["document"]
        names = [device["name"] for device in document["devices"]]
        for sender, kinds in enumerate(document["kinds"]):
            for receiver, kind in enumerate(kinds):
                if kind is None or not document["matrices"]:
                    continue
                values = {name: matrix[sender][receiver] for name, matrix in document["matrices"].items()}
                rows.append(
                    {
                        **{name: link[name] for name in ("lease_id", "configuration", "when")},
                        **{"from": names[sender], "to": names[receiver], "kind": kind},
                        **{"size_bytes": document["matrix_size_bytes"], **values},
                    }
                )
    return pd.DataFrame(rows, columns=list(_LINK_COLUMNS))
