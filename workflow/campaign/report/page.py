"""The report page: words and numbers for the template, made from the tables, the leases and the finished figures.

`build_context` is pure and computes everything; the template only lays out. The page is one file: no script, no request,
no clock. All text that comes from campaigns, hosts or logs is escaped by the template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ValidationError

from campaign import wording
from campaign.documents.metric import metric_of
from campaign.documents.record import IMPORTED
from campaign.errors import RecordError, first_problem
from campaign.files import load_json, read_text, reading
from campaign.report import in_page_order, prediction
from campaign.report.context_schema import ContextDocument, Excluded, HostLeftOut
from campaign.report.sections.compositions import compositions, idle
from campaign.report.sections.coverage import coverage, failed_runs, state_counts
from campaign.report.sections.published import beside, published
from campaign.report.sections.question import questions
from campaign.report.sections.recommendation import recommended
from campaign.report.templates import filled, inline

# Of each figure, in the summary; beside the figure are all.
FINDINGS_IN_SUMMARY = 2

_SCHEDULERS = {
    IMPORTED: "unknown: the runs were made without this program",
    "slurm": "Slurm: every allocation was a Slurm job, every run a step in it",
    "local": "none: drivers and runs were processes on the machine where the campaign was started",
}


def assemble(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    leases: Sequence[Mapping[str, Any]],
    context_document: Mapping[str, Any],
    drawings: Mapping[str, Mapping[str, Any]],
    recommendation: Mapping[str, Any] | None = None,
) -> str:
    """The report as HTML. drawings: by figure name, the document of its JSON file with the picture under `svg`; recommendation: as
    `report_recommendation.read_recommendation` gives it.

    Raises RecordError when the context document is not as ContextDocument says.
    """
    return render(build_context(runs, cells, leases, context_document, drawings, recommendation))


def write_report(out: Path, page: str) -> None:
    """Write the page; RecordError when that is not possible."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RecordError(
            f"{out}: the report could not be written ({error.strerror}); give another --output"
        ) from error


class _DrawingDocument(BaseModel):
    """What `figure.page_document` writes."""

    anchor: str
    place: float
    title: str
    section: str
    shown: bool
    picture: bool
    reason: str | None
    coverage: str | None
    caption: str | None
    alt: str | None
    findings: list[str]
    headings: list[str]
    rows: list[list[str]]
    rows_left_out: int


def read_drawings(files: Iterable[tuple[Path, Path]]) -> dict[str, dict[str, Any]]:
    """Finished figures by file name, from their (svg, json) files."""
    drawings = {}
    for svg, words in files:
        with reading(words, "delete the figure and run again"):
            document = load_json(words)
            _DrawingDocument.model_validate(document)
            picture = read_text(svg) if document["shown"] or svg.exists() else ""
            drawings[svg.stem] = {**document, "svg": picture}
    return drawings


def build_context(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    leases: Sequence[Mapping[str, Any]],
    context_document: Mapping[str, Any],
    drawings: Mapping[str, Mapping[str, Any]],
    recommendation: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything the template lays out, already in words. See `assemble` for arguments and errors."""
    try:
        said = ContextDocument.model_validate(context_document)
    except ValidationError as error:
        raise RecordError(f"report context: {first_problem(error)}") from error
    ordered = in_page_order(drawings)
    shown = [
        {**drawing, "svg": inline(drawing["svg"]), "published": beside(said.published, drawing["anchor"])}
        for drawing in ordered
        if drawing["shown"]
    ]
    return {
        "campaign": said.campaign,
        "protocol": wording.protocol(said.campaign.protocol),
        "system": said.system,
        "prediction": said.prediction,
        "notes": said.notes,
        "counts": _counts(runs, cells, said.excluded),
        "remarks": _remarks(runs, cells, said.hosts_left_out),
        "findings": [
            {**drawing, "findings": drawing["findings"][:FINDINGS_IN_SUMMARY]}
            for drawing in shown
            if drawing["findings"]
        ],
        "questions": questions(said.questions),
        "coverage": {
            **coverage(cells, metric_of(context_document)),
            "became": wording.became(prediction.of_cells(cells).basis),
        },
        "failed": failed_runs(runs, cells),
        "excluded": said.excluded,
        "sections": shown,
        "left_out": [drawing for drawing in ordered if not drawing["shown"]],
        "compositions": compositions(leases),
        "idle": idle(runs, cells),
        "hosts_left_out": said.hosts_left_out,
        "scheduler": _scheduler(said.launchers),
        "flags": _flags(runs, said.flags),
        "campaign_yaml": said.campaign_yaml,
        "software": said.software,
        "environments": {name: _json(document) for name, document in sorted(said.environments.items())},
        "schema_versions": sorted(said.schema_versions.items()),
        "recommendation": recommended(recommendation),
        "recommendation_svg": inline(recommendation["svg"]) if recommendation else "",
        "published": published(said.published, {drawing["anchor"] for drawing in shown}),
    }


def render(context: Mapping[str, Any]) -> str:
    """The page for a context made by `build_context`: one file, no script, no request, no clock."""
    return filled("report.html.j2", context)


def _counts(runs: pd.DataFrame, cells: pd.DataFrame, excluded: Iterable[Excluded]) -> list[tuple[str, str]]:
    return [
        ("planned", f"{len(cells):,}"),
        *state_counts(cells),
        ("excluded", f"{sum(rule.cells for rule in excluded):,}"),
        ("runs", f"{len(runs):,}"),
        ("compositions", f"{runs.loc[(runs['status'] == 'ok') & (runs['lease_id'] != ''), 'lease_id'].nunique():,}"),
    ]


def _remarks(runs: pd.DataFrame, cells: pd.DataFrame, hosts_left_out: Sequence[HostLeftOut]) -> list[str]:
    """What the counts alone would hide."""
    short = int(((cells["state"] == "measured") & (cells["n_ok"] < cells["n_planned"])).sum())
    alone = int((cells["n_ok"] == 1).sum())
    strangers = int((~runs["cell_id"].isin(cells["cell_id"])).sum())
    said = []
    if short:
        said.append(f"{wording.plural(short, 'measured cell')} with fewer valid runs than planned.")
    if alone:
        said.append(f"{wording.plural(alone, 'cell')} with one valid run only, so without an interval.")
    if outliers := int(cells["n_outliers"].sum()):
        of = wording.plural(int((cells["n_outliers"] > 0).sum()), "cell")
        said.append(
            f"{wording.plural(outliers, 'run')} of {of} marked as outliers (by a rule with 1 false alarm in 100 cells). They count "
            "like any other run; tables/cells.csv lists them."
        )
    if strangers:
        said.append(f"{wording.plural(strangers, 'run')} of cells that this campaign does not plan, ignored.")
    if hosts_left_out:
        names = ", ".join(each.host for each in hosts_left_out)
        said.append(
            f"{wording.plural(len(hosts_left_out), 'host')} excluded from further allocations after a failure: {names}."
        )
    return said


def _flags(runs: pd.DataFrame, meanings: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Flag, its meaning, and how many runs and cells carry it."""
    carried = runs.loc[runs["flags"] != "", ["cell_id", "flags"]]
    single = carried.assign(flag=carried["flags"].str.split(", ")).explode("flag")
    return [
        (str(flag), meanings.get(str(flag), ""), f"{len(group):,}", f"{group['cell_id'].nunique():,}")
        for flag, group in single.groupby("flag", sort=True)
    ]


def _scheduler(launchers: Mapping[str, int]) -> str:
    """Who started the runs; with their numbers when it was more than one."""
    said = [
        _SCHEDULERS.get(name, name) + (f" ({wording.plural(runs, 'run')})" if len(launchers) > 1 else "")
        for name, runs in sorted(launchers.items())
    ]
    return "; ".join(said)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
