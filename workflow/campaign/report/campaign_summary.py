"""Summary of a campaign for one screen: measured runs, findings, and the location of the report."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from itertools import chain
from pathlib import Path

from campaign.common import wording
from campaign.common.files import load_json, open_regular, read_json, reject_damaged_document
from campaign.common.paths import Results
from campaign.report import in_page_order
from campaign.report.sections.race import race_lines
from campaign.spec.race import RaceDocument
from campaign.workloads.main_metrics import MAIN_METRICS

ALONE = "Differences between them are not tested, since nothing tells how much compositions differ"

_REMEDY = "delete it and run again"
_ADVICE = 3
_MAY_LEAD = frozenset(chain.from_iterable(MAIN_METRICS.values()))
_FAILURES = 5  # kinds of them
_CELLS = 3  # of each kind
_FINDINGS = 1  # of each figure; the page has all of them


def summary(directory: Path, figures: Path | None = None, tables: Path | None = None) -> str:
    """Summarise a campaign: counts, failed runs, compositions, first finding of each figure, recommendation, and the report's
    path.

    Args:
        directory: results directory.
        figures: directory of the figures, next to recommendation/, if not in the results.
        tables: directory of the tables, if not in the results.
    """
    results = Results.from_directory(directory)
    figures, tables = figures or results.figures, tables or results.tables
    with reject_damaged_document(tables, _REMEDY):
        lines = [*_counts(tables), *_failures(results, tables)]
    drawings = {}
    for path in figures.glob("*.json"):
        with reject_damaged_document(path, _REMEDY):
            drawings[path.stem] = load_json(path)
    with reject_damaged_document(figures, _REMEDY):
        for drawing in in_page_order(drawings):
            if drawing["shown"] and drawing["findings"]:
                lines.append(f"\n{drawing['title']}")
                lines += [f"  {finding}" for finding in drawing["findings"][:_FINDINGS]]
    recommendation = figures.parent / "recommendation" / "recommendation.json"
    with reject_damaged_document(recommendation, _REMEDY):
        answers = load_json(recommendation)["answers"]
        advice = [" ".join(each["sentences"]) for each in answers]
    if advice:
        lines += ["\nWhat to build", *(f"  {sentence}" for sentence in advice[:_ADVICE])]
    with reject_damaged_document(tables, _REMEDY):
        if race := read_json(tables / "context.json").get("race"):
            lines += ["", *race_lines(RaceDocument.model_validate(race))]
    there = results.report_file.is_file() or figures == results.figures  # the workflow writes both
    lines.append(f"\nReport: {results.report_file}" if there else f"\nNo report yet: campaign report {directory}")
    return "\n".join(lines)


def _failures(results: Results, tables: Path) -> list[str]:
    """Describe failed runs by status and reason, with cells and the log of the first; empty if no run failed."""
    alike: defaultdict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in _rows(tables / "runs.csv"):
        if row["status"] not in ("ok", "implied"):
            alike[row["status"], row["failure_reason"]].append(row)
    lines = []
    for (status, why), rows in sorted(alike.items(), key=lambda item: -len(item[1])):
        cells = list(dict.fromkeys(f"{row['configuration']}, {row['workload']}, batch {row['batch']}" for row in rows))
        more = f" and {len(cells) - _CELLS} more" if len(cells) > _CELLS else ""
        path = results.directory / (rows[0].get("log") or "none")
        log = f"; log: {path}" if path.is_file() else ""
        lines.append(f"  {len(rows)} {status}: {why} ({'; '.join(cells[:_CELLS])}{more}{log})")
    others = [f"  ... and {len(lines) - _FAILURES} more kinds"] if len(lines) > _FAILURES else []
    shown = [*lines[:_FAILURES], *others, f"  'campaign logs {results.directory}' shows how the logs end"]
    return ["\nFailed runs", *shown] if lines else []


def _counts(tables: Path) -> list[str]:
    """Describe the numbers of cells, of runs by outcome, and of compositions."""
    cells = list(_rows(tables / "cells.csv"))
    names = ("planned", "ok", "failed", "implied", "missing")
    runs = Counter({name: sum(int(float(row[f"n_{name}"])) for row in cells) for name in names})
    implied = f"{runs['implied']} implied, " if runs["implied"] else ""
    return [
        "",
        f"{len(cells)} cells, {runs['planned']} runs: {runs['ok']} measured, {runs['failed']} failed, {implied}"
        f"{runs['missing']} missing",
        *_valid_runs(tables),
    ]


def _valid_runs(tables: Path) -> list[str]:
    """Describe how often configurations and cells were composed, and how many runs lack the primary metric.

    Every statement between configurations depends on the compositions of its cells.
    """
    leases: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    without, others = 0, Counter[str]()
    for row in _rows(tables / "runs.csv"):
        if row["status"] == "ok":
            leases[row["configuration"], row["cell_id"]].add(row["lease_id"])
            if row["value"] == "":
                without += 1
                others.update(name for name, text in row.items() if text and name in _MAY_LEAD)
    they_gave = f"; they gave {', '.join(others)}: name one as `metric` in the campaign file" if others else ""
    said = [f"{wording.pluralize(without, 'measured run')} without the primary metric, in no figure of it{they_gave}"]
    return _compositions(leases) + (said if without else [])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file. Raises ValueError if the file is no CSV."""
    with TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
        try:
            yield from csv.DictReader(file)
        except csv.Error as error:
            raise ValueError(f"no CSV: {error}") from error


def _compositions(leases: Mapping[tuple[str, str], set[str]]) -> list[str]:
    counts = sorted(len(own) for own in leases.values())
    configurations = len({configuration for configuration, _ in leases})
    total = len({(configuration, lease) for (configuration, _), own in leases.items() for lease in own})
    if not counts:
        return []
    ends = " to ".join(dict.fromkeys(str(count) for count in (counts[0], counts[-1])))
    each = "each composed once" if total == configurations else f"{total} compositions, {ends} of each cell"
    alone = f". {ALONE}" if counts[-1] == 1 and configurations > 1 else ""
    return [f"{wording.pluralize(configurations, 'configuration')} measured, {each}{alone}"]


def missing_reasons(directory: Path, tables: Path | None = None, *, tried: bool = False) -> list[str]:
    """Return one line per lease of plan/plan.json that has runs without a record, with the reason.

    Args:
        directory: results directory.
        tables: directory of the tables, if not in the results.
        only_tried: include only leases that the campaign tried to measure.
    """
    lines, results = [], Results.from_directory(directory)
    if not results.plan_file.exists():  # of parts that were merged
        missing = sum(int(float(row["n_missing"])) for row in _rows((tables or results.tables) / "cells.csv"))
        why = "there is no plan that says why" if results.records.exists() else "not measured yet"
        return [f"{wording.pluralize(missing, 'run')}: {why}"] if missing else []
    with reject_damaged_document(results.plan_file, _REMEDY):
        planned = load_json(results.plan_file)["leases"]
        leases = [{key: lease[key] for key in ("lease", "runs")} for lease in planned]
    manifests = {}
    for path in sorted(results.list_manifests(), key=lambda path: path.stat().st_mtime):
        with reject_damaged_document(path, _REMEDY):
            manifest = load_json(path)
            manifests[manifest["lease"]] = manifest
    for lease in leases:
        if (manifest := manifests.get(lease["lease"])) is None:
            lines += [] if tried else [f"{lease['lease']}: {lease['runs']} runs: not measured yet"]
        elif manifest["missing"]:
            why = manifest["reason"] or "the driver did not get to them"
            lines.append(f"{manifest['lease']}: {len(manifest['missing'])} of {manifest['runs']} runs: {why}")
    return lines
