"""Summary of a campaign for one screen: measured runs, findings, and the location of the report."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from pathlib import Path

from campaign.common import wording
from campaign.common.files import load_json, open_regular, read_json, reject_damaged_document
from campaign.common.paths import Results
from campaign.report import sort_by_page_order
from campaign.report.markdown import escape_markdown, format_markdown_list
from campaign.report.sections.race import format_race_lines
from campaign.spec.race import RaceDocument
from campaign.workloads.main_metrics import MAIN_METRICS

UNTESTED_NOTE = "Differences between them are not tested, because the variation between compositions is unknown"

_REMEDY = "delete it and run again"
_MAX_ADVICE = 3
_PRIMARY_METRIC_CANDIDATES = frozenset(chain.from_iterable(MAIN_METRICS.values()))
_MAX_FAILURE_KINDS = 5
_MAX_CELLS_PER_KIND = 3
_MAX_FINDINGS_PER_FIGURE = 1  # The page has all findings.


@dataclass(frozen=True)
class SummarySection:
    """A titled part of a summary. The title is empty for the counts at its beginning."""

    title: str
    lines: tuple[str, ...]


def summarize_campaign(directory: Path, figures: Path | None = None, tables: Path | None = None) -> str:
    """Summarise a campaign as text for a terminal. Same arguments as `list_summary_sections`."""
    return "\n".join(
        line
        for section in list_summary_sections(directory, figures, tables)
        for line in (
            ("", section.title, *(f"  {line}" for line in section.lines)) if section.title else ("", *section.lines)
        )
    )


def summarize_campaign_as_markdown(directory: Path, figures: Path | None = None, tables: Path | None = None) -> str:
    """Summarise a campaign as Markdown. Same arguments as `list_summary_sections`."""
    return "\n\n".join([
        f"## {escape_markdown(Results.from_directory(directory).campaign)}",
        *(
            f"### {escape_markdown(section.title)}\n\n{format_markdown_list(section.lines)}"
            if section.title
            else format_markdown_list(section.lines)
            for section in list_summary_sections(directory, figures, tables)
        ),
    ])  # fmt: skip


def list_summary_sections(
    directory: Path, figures: Path | None = None, tables: Path | None = None
) -> list[SummarySection]:
    """List counts, failed runs, compositions, first findings of figures, recommendation and report path of a campaign.

    Args:
        directory: results directory.
        figures: directory of the figures, next to recommendation/, if not in the results.
        tables: directory of the tables, if not in the results.
    """
    results = Results.from_directory(directory)
    figures, tables = figures or results.figures, tables or results.tables
    with reject_damaged_document(tables, _REMEDY):
        sections = [SummarySection("", tuple(_describe_counts(tables))), *_describe_failures(results, tables)]
    drawings = {}
    for path in figures.glob("*.json"):
        with reject_damaged_document(path, _REMEDY):
            drawings[path.stem] = load_json(path)
    with reject_damaged_document(figures, _REMEDY):
        for drawing in sort_by_page_order(drawings):
            if drawing["shown"] and drawing["findings"]:
                findings = tuple(drawing["findings"][:_MAX_FINDINGS_PER_FIGURE])
                sections.append(SummarySection(drawing["title"], findings))
    recommendation = figures.parent / "recommendation" / "recommendation.json"
    with reject_damaged_document(recommendation, _REMEDY):
        answers = load_json(recommendation)["answers"]
        advice = [" ".join(answer["sentences"]) for answer in answers]
    if advice:
        sections.append(SummarySection("What to build", tuple(advice[:_MAX_ADVICE])))
    with reject_damaged_document(tables, _REMEDY):
        if race := read_json(tables / "context.json").get("race"):
            sections.append(SummarySection("", tuple(format_race_lines(RaceDocument.model_validate(race)))))
    has_report = results.report_file.is_file() or figures == results.figures  # The workflow writes both.
    report_text = (
        f"Report: {results.report_file}"
        if has_report
        else f"There is no report yet; 'campaign report {directory}' makes it"
    )
    return [*sections, SummarySection("", (report_text,))]


def _describe_failures(results: Results, tables: Path) -> list[SummarySection]:
    """Describe failed runs by status and reason, with cells and the log of the first; empty if no run failed."""
    rows_by_failure: defaultdict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in _read_rows(tables / "runs.csv"):
        if row["status"] not in ("ok", "implied"):
            rows_by_failure[row["status"], row["failure_reason"]].append(row)
    lines = []
    for (status, reason), rows in sorted(rows_by_failure.items(), key=lambda item: -len(item[1])):
        cells = list(dict.fromkeys(f"{row['configuration']}, {row['workload']}, batch {row['batch']}" for row in rows))
        more_cells = f" and {len(cells) - _MAX_CELLS_PER_KIND} more" if len(cells) > _MAX_CELLS_PER_KIND else ""
        path = results.directory / (rows[0].get("log") or "none")
        log = f"; log: {path}" if path.is_file() else ""
        lines.append(f"{len(rows)} {status}: {reason} ({'; '.join(cells[:_MAX_CELLS_PER_KIND])}{more_cells}{log})")
    more_kinds = (
        [f"... and {len(lines) - _MAX_FAILURE_KINDS} more kinds of failures"] if len(lines) > _MAX_FAILURE_KINDS else []
    )
    shown_lines = (
        *lines[:_MAX_FAILURE_KINDS],
        *more_kinds,
        f"'campaign logs {results.directory}' shows the ends of the logs",
    )
    return [SummarySection("Failed runs", shown_lines)] if lines else []


def _describe_counts(tables: Path) -> list[str]:
    """Describe the numbers of cells, of runs by outcome, and of compositions."""
    cells = list(_read_rows(tables / "cells.csv"))
    names = ("planned", "ok", "failed", "implied", "missing")
    runs = Counter({name: sum(int(float(row[f"n_{name}"])) for row in cells) for name in names})
    implied_text = f"{runs['implied']} implied, " if runs["implied"] else ""
    return [
        f"{wording.pluralize(len(cells), 'cell')}, {wording.pluralize(runs['planned'], 'run')}: {runs['ok']} measured, "
        f"{runs['failed']} failed, {implied_text}{runs['missing']} missing",
        *_describe_valid_runs(tables),
    ]


def _describe_valid_runs(tables: Path) -> list[str]:
    """Describe how often configurations and cells were composed, and how many runs lack the primary metric.

    Every statement between configurations depends on the compositions of its cells.
    """
    leases: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    runs_without_metric, other_metrics = 0, Counter[str]()
    for row in _read_rows(tables / "runs.csv"):
        if row["status"] == "ok":
            leases[row["configuration"], row["cell_id"]].add(row["lease_id"])
            if row["value"] == "":
                runs_without_metric += 1
                other_metrics.update(name for name, text in row.items() if text and name in _PRIMARY_METRIC_CANDIDATES)
    other_metrics_note = (
        f"; they have {', '.join(other_metrics)}, which the campaign file can name as `metric`" if other_metrics else ""
    )
    verb = "lacks" if runs_without_metric == 1 else "lack"
    sentences = [
        f"{wording.pluralize(runs_without_metric, 'measured run')} {verb} the primary metric and "
        f"{'is' if runs_without_metric == 1 else 'are'} not in its figures{other_metrics_note}"
    ]
    return _describe_compositions(leases) + (sentences if runs_without_metric else [])


def _read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file. Raises ValueError if the file is not valid CSV."""
    with TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
        try:
            yield from csv.DictReader(file)
        except csv.Error as error:
            raise ValueError(f"The file is not valid CSV: {error}") from error


def _describe_compositions(leases: Mapping[tuple[str, str], set[str]]) -> list[str]:
    counts = sorted(len(cell_leases) for cell_leases in leases.values())
    configurations = len({configuration for configuration, _ in leases})
    total = len({(configuration, lease) for (configuration, _), cell_leases in leases.items() for lease in cell_leases})
    if not counts:
        return []
    ends = " to ".join(dict.fromkeys(str(count) for count in (counts[0], counts[-1])))
    per_cell = "each composed once" if total == configurations else f"{total} compositions, {ends} per cell"
    untested_note = f". {UNTESTED_NOTE}" if counts[-1] == 1 and configurations > 1 else ""
    return [f"{wording.pluralize(configurations, 'configuration')} measured, {per_cell}{untested_note}"]


def list_missing_reasons(directory: Path, tables: Path | None = None, *, only_tried: bool = False) -> list[str]:
    """List the leases of plan/plan.json with unrecorded runs, one line per lease with the reason.

    Args:
        directory: results directory.
        tables: directory of the tables, if not in the results.
        only_tried: include only leases that the campaign tried to measure.
    """
    lines, results = [], Results.from_directory(directory)
    if not results.plan_file.exists():  # Results that were merged from parts have no plan.
        missing = sum(int(float(row["n_missing"])) for row in _read_rows((tables or results.tables) / "cells.csv"))
        reason = "unknown, because there is no plan" if results.records.exists() else "not measured yet"
        return [f"{wording.pluralize(missing, 'run')}: {reason}"] if missing else []
    with reject_damaged_document(results.plan_file, _REMEDY):
        planned_leases = load_json(results.plan_file)["leases"]
        leases = [{key: lease[key] for key in ("lease", "runs")} for lease in planned_leases]
    manifests = {}
    for path in sorted(results.list_manifests(), key=lambda path: path.stat().st_mtime):
        with reject_damaged_document(path, _REMEDY):
            manifest = load_json(path)
            manifests[manifest["lease"]] = manifest
    for lease in leases:
        if (manifest := manifests.get(lease["lease"])) is None:
            lines += [] if only_tried else [f"{lease['lease']}: {lease['runs']} runs: not measured yet"]
        elif manifest["missing"]:
            reason = manifest["reason"] or "the driver did not reach them"
            lines.append(f"{manifest['lease']}: {len(manifest['missing'])} of {manifest['runs']} runs: {reason}")
    return lines
