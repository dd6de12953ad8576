"""Report page: words and numbers for the template, made from the tables, the leases and the finished figures.

`build_context` is pure and computes everything; the template only does the layout. The page is one file: no request, no clock,
and one script, which saves pictures and their numbers. The template escapes all text from campaigns, hosts or logs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ValidationError

from campaign.analysis.recommend.document import RecommendationDocument
from campaign.analysis.tables import measured_protocol
from campaign.common import wording
from campaign.common.errors import RecordError, format_first_error
from campaign.common.files import load_json, read_text, reject_damaged_document
from campaign.report import in_page_order
from campaign.report.context_schema import AnalysisSaid, ContextDocument, Excluded, HostLeftOut, LayoutSaid
from campaign.report.figure import ANSWERS, APPARATUS, EVIDENCE, coverage_of_cells
from campaign.report.sections.compositions import compositions, idle
from campaign.report.sections.coverage import coverage, failed_runs, state_counts
from campaign.report.sections.published import beside, published
from campaign.report.sections.race import describe_race
from campaign.report.sections.recommendation import recommendation_section
from campaign.report.templates import downloads, filled, inline
from campaign.spec.metric import metric_of
from campaign.spec.record import IMPORTED

# Sections of the first part that stand open, "What to build" among them; more are folded.
OPEN_ANSWERS = 8
# Small pictures side by side, and further answers as sentences, on the first screen.
GLANCES, SENTENCES = 3, 3

_STATES = {
    "failed": "it was run, and no run is valid; that is a result",
    "implied": "not run, because an otherwise equal cell with a smaller batch ran out of memory",
    "missing": "not run",
}
_SCHEDULERS = {
    IMPORTED: "Scheduler unknown: the runs were made without this program",
    "slurm": "Slurm: every allocation was a Slurm job, every run a step in it",
    "local": "No scheduler: drivers and runs were processes on the machine where the campaign was started",
}


def assemble(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    leases: Sequence[Mapping[str, Any]],
    context_document: Mapping[str, Any],
    drawings: Mapping[str, Mapping[str, Any]],
    recommendation: RecommendationDocument | None = None,
) -> str:
    """Return the report page as HTML.

    Raises RecordError if the context document does not match ContextDocument.

    Args:
        runs: runs table.
        cells: cells table.
        leases: lease journals.
        context_document: context document of the report.
        drawings: document of each figure's JSON file, by figure name, with the picture under `svg`.
        recommendation: recommendation to show, if any.
    """
    return render(build_context(runs, cells, leases, context_document, drawings, recommendation))


def write_report(out: Path, page: str) -> None:
    """Write the page to a file. Raises RecordError if that fails."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RecordError(
            f"{out}: the report could not be written ({error.strerror}); give another --output"
        ) from error


class _DrawingDocument(BaseModel):
    """Document of a drawn figure, as `figure.build_page_document` builds it."""

    anchor: str
    part: str
    within: str
    place: float
    title: str
    section: str
    method: str
    rests_on: list[str]
    limits: list[str]
    tested: dict[str, int]
    narrow: str | None
    glance: str | None
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
    """Read finished figures from their (svg, json) files, by file name.

    Each has its CSV and PDF as base64 if they are not too long.
    """
    drawings = {}
    for svg, words in files:
        with reject_damaged_document(words, "delete the figure and run again"):
            document = load_json(words)
            _DrawingDocument.model_validate(document)
            picture = read_text(svg) if document["shown"] or svg.exists() else ""
            drawings[svg.stem] = {**document, "svg": picture, **downloads(svg)}
    return drawings


def build_context(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    leases: Sequence[Mapping[str, Any]],
    context_document: Mapping[str, Any],
    drawings: Mapping[str, Mapping[str, Any]],
    recommendation: RecommendationDocument | None = None,
) -> dict[str, Any]:
    """Build all texts and numbers that the template lays out. See `render_report_page` for arguments and errors."""
    try:
        said = ContextDocument.model_validate(context_document)
    except ValidationError as error:
        raise RecordError(f"report context: {format_first_error(error)}") from error
    ordered = _as_asked(in_page_order(drawings), said.campaign.report)
    covered_by_all = coverage_of_cells(cells)
    shown = [_section(drawing, said, covered_by_all) for drawing in ordered if drawing["shown"]]
    answers, evidence, apparatus = (_of_part(shown, part) for part in (ANSWERS, EVIDENCE, APPARATUS))
    # Sections with a small picture are preferred; the selected ones stay in the order of the page.
    chosen = sorted(answers, key=lambda each: not each["glance"])[:GLANCES]
    first = [each for each in answers if each in chosen]
    advice = recommendation_section(recommendation) if recommendation else None
    covered = coverage(cells, metric_of(context_document))
    return {
        "campaign": said.campaign,
        "system": said.system,
        "notes": said.notes,
        "basis": _basis(runs, said),
        "conditions": [f"{each[:1].upper()}{each[1:]}." for each in said.conditions],
        "counts": _counts(runs, cells, said.excluded),
        "lost": _lost(cells),
        "remarks": _remarks(runs, cells, said.hosts_left_out),
        # A drift, a slow host or a slow link is to be known before any answer.
        "alarms": [each for each in shown if each["place"] == 0 and each["findings"]],
        "glances": first,
        "sentences": [each for each in answers if each["findings"] and each not in first][:SENTENCES],
        "race": said.race and describe_race(said.race),
        "answers": answers,
        "open_answers": OPEN_ANSWERS - bool(advice),
        "evidence": evidence,
        "apparatus": apparatus,
        "coverage": {
            **covered,
            "meanings": [
                (state, _STATES[state]) for state, count in state_counts(cells) if state in _STATES and count != "0"
            ],
        },
        "failed": failed_runs(runs, cells),
        "excluded": said.excluded,
        "left_out": _left_out(ordered),
        "shown": {each["anchor"] for each in shown},
        "compositions": compositions(leases),
        "idle": idle(runs),
        "hosts_left_out": said.hosts_left_out,
        "scheduler": _scheduler(said.launchers),
        "flags": _flags(runs, said.flags),
        "campaign_yaml": said.campaign_yaml,
        "software": said.software,
        "environments": {name: _json(document) for name, document in sorted(said.environments.items())},
        "schema_versions": sorted(said.schema_versions.items()),
        "analysis": (analysis := analysis_said(said.campaign.analysis)),
        "analysis_changes": analysis[1:] if len(said.campaign.analysis) > 1 else [],
        "protocol": measured_protocol.said(runs, said.campaign.protocol),
        "tests": tests_said(shown),
        "methods": [f"{each['method'][:1].upper()}{each['method'][1:]}." for each in shown if each["method"]],
        "recommendation": advice,
        "published": published(said.published, {drawing["anchor"] for drawing in shown}),
    }


def analysis_said(versions: Sequence[AnalysisSaid]) -> list[str]:
    """Describe when the analysis was written down, before the first run or later, and what changed since.

    The first sentence has the hash of the first version.
    """
    if not versions:
        return []
    first, *later = versions
    when = f"after {wording.pluralize(first.runs, 'run')}" if first.runs else "before the first run"
    told = [f"Hash {first.hash} of figures, claims, exclusions, metric, baseline, matrix and protocol, written {when}, "
            f"on {first.written} UTC."]  # fmt: skip
    for each in later:
        at = (
            f"on {each.written} UTC, with {wording.pluralize(each.runs, 'run')} measured"
            if each.written
            else "since the last plan"
        )
        told.append(f"Changed after the first run, {at}, in {', '.join(each.changed)} (hash {each.hash}).")
    return told if later else [*told, "Unchanged since."]


def _as_asked(ordered: Sequence[Mapping[str, Any]], layout: LayoutSaid) -> list[Mapping[str, Any]]:
    """Return the drawings in the parts and order that the campaign file requests, without hidden ones."""
    first = [name.replace("_", "-") for name in layout.open]
    hidden = {name.replace("_", "-") for name in layout.hide}
    kept = [each for each in ordered if each["anchor"] not in hidden]
    if not first:
        return kept
    parts = {ANSWERS: EVIDENCE}  # what is not asked for is no answer
    asked = {each["anchor"]: {**each, "part": ANSWERS, "within": ""} for each in kept if each["anchor"] in first}
    others = [
        {**each, "part": parts.get(each["part"], each["part"])} if each["within"] not in first else each
        for each in kept
        if each["anchor"] not in first
    ]
    return [*(asked[name] for name in first if name in asked), *others]


def _section(drawing: Mapping[str, Any], said: ContextDocument, of_all: str) -> dict[str, Any]:
    """Build the section of a figure, with inlined pictures, its published claims, and notes on emulated parts.

    campaign_coverage: coverage of the whole campaign.
    """
    emulated = [each for each in said.conditions if any(word in each for word in drawing["rests_on"])]
    pictures = {name: inline(drawing[name]) if drawing[name] else "" for name in ("svg", "narrow", "glance")}
    coverage = drawing["coverage"] or ""
    if _known(coverage, of_all):
        coverage = ""
    # The title of a folded section and the finding beside it are question and answer.
    asked, told = drawing["section"].partition("? ")[::2]
    return {
        **drawing,
        **pictures,
        "section": drawing["section"] if drawing["part"] == ANSWERS else told or ("" if asked.endswith("?") else asked),
        "coverage": coverage.removeprefix(f"{of_all.rstrip('.')}; "),
        "limits": [*drawing["limits"], *(f"{each[:1].upper()}{each[1:]}." for each in emulated)],
        "published": beside(said.published, drawing["anchor"]),
    }


def _left_out(ordered: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the titles of figures that have nothing to show, by reason."""
    found: dict[str, list[str]] = {}
    for drawing in ordered:
        if not drawing["shown"]:
            found.setdefault(drawing["reason"], []).append(drawing["title"])
    return found


def _known(coverage: str, of_all: str) -> bool:
    """Return whether the coverage of a figure is redundant on the page.

    It is redundant if all cells of the figure were measured, or if it is that of the whole campaign, which the page states once.
    """
    found = re.match(r"([0-9,]+) of ([0-9,]+) planned", coverage)
    return coverage == of_all or (found is not None and found[1] == found[2] and "without" not in coverage)


def _of_part(shown: Sequence[Mapping[str, Any]], part: str) -> list[dict[str, Any]]:
    """Return the sections of one part of the page, each with the figures that continue it.

    A continuation whose parent is not shown becomes a section of its own.
    """
    own = [each for each in shown if each["part"] == part]
    anchors = {each["anchor"] for each in own}
    return [
        {**each, "continued": [other for other in own if other["within"] == each["anchor"]]}
        for each in own
        if each["within"] not in anchors
    ]


def _basis(runs: pd.DataFrame, said: ContextDocument) -> str:
    """Describe the data behind the page in one line, such as '30 compositions, 81 runs; the fabric is simulated'."""
    valid = runs[runs["status"] == "ok"]
    leases = valid.loc[valid["lease_id"] != "", "lease_id"].nunique()
    counted = [wording.pluralize(leases, "composition")] if leases else []
    counted.append(wording.pluralize(len(valid), "valid run"))
    return "; ".join([", ".join(counted), *said.conditions])


def _lost(cells: pd.DataFrame) -> str:
    """Describe the planned cells without a number in one line; empty if there are none."""
    counts = [(name, int(count)) for name, count in cells["state"].value_counts().items() if name != "measured"]
    told = ", ".join(f"{count:,} {name}" for name, count in counts)
    return f"Of {wording.pluralize(len(cells), 'planned cell')}: {told}." if told else ""


def tests_said(shown: Iterable[Mapping[str, Any]]) -> str:
    """Describe how the comparisons of all figures were made, and how many differ significantly."""
    methods = Counter[str]()
    for drawing in shown:
        methods.update(drawing["tested"])
    differ, tested = methods.pop("differ", 0), methods.total()
    if not tested:
        return ""
    made = "; ".join(f"{name}: {count:,}" for name, count in methods.most_common())
    return (
        f"{differ:,} of {wording.pluralize(tested, 'comparison')} in figures differ significantly: at 5\u202f% for all of a figure "
        f"together (Holm). Tests: {made}."
    )


def render(context: Mapping[str, Any]) -> str:
    """Render the page from a context of `build_context` as one file, without requests or a clock."""
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
    """Return remarks on facts that the counts alone would hide."""
    short = int(((cells["state"] == "measured") & (cells["n_ok"] < cells["n_planned"])).sum())
    alone = cells.loc[cells["n_ok"] == 1, "ci_low"]
    borrowing, without = int(alone.notna().sum()), int(alone.isna().sum())
    strangers = int((~runs["cell_id"].isin(cells["cell_id"])).sum())
    said = []
    if short:
        said.append(f"{wording.pluralize(short, 'measured cell')} with fewer valid runs than planned.")
    if without:
        said.append(f"{wording.pluralize(without, 'cell')} with one valid run only, so without an interval.")
    if borrowing:
        said.append(
            f"{wording.pluralize(borrowing, 'cell')} with one valid run only, whose interval borrows the spread of other cells."
        )
    if outliers := int(cells["n_outliers"].sum()):
        of = wording.pluralize(int((cells["n_outliers"] > 0).sum()), "cell")
        said.append(
            f"{wording.pluralize(outliers, 'run')} of {of} marked as outliers (by a rule with 1 false alarm in 100 cells). None is "
            "left out, and a mean takes them as less far than they are; tables/cells.csv lists them."
        )
    if strangers:
        said.append(f"{wording.pluralize(strangers, 'run')} of cells that this campaign does not plan, ignored.")
    if hosts_left_out:
        names = ", ".join(each.host for each in hosts_left_out)
        said.append(
            f"{wording.pluralize(len(hosts_left_out), 'host')} excluded from further allocations after a failure: {names}."
        )
    return said


def _flags(runs: pd.DataFrame, meanings: Mapping[str, str]) -> dict[str, list[Any]]:
    """Build the table of flags, with their meanings if any is known, and the numbers of runs and cells that have each."""
    carried = runs.loc[runs["flags"] != "", ["cell_id", "flags"]]
    single = carried.assign(flag=carried["flags"].str.split(", ")).explode("flag")
    known = any(flag in meanings for flag in single["flag"])
    return {
        "headings": ["Flag", *(["Meaning"] if known else []), "Runs", "Cells"],
        "rows": [
            [flag, *([meanings.get(str(flag), "")] if known else []), f"{len(of):,}", f"{of['cell_id'].nunique():,}"]
            for flag, of in single.groupby("flag", sort=True)
        ],
    }


def _scheduler(launchers: Mapping[str, int]) -> str:
    """Describe which schedulers started the runs, with their numbers if there was more than one."""
    said = [
        _SCHEDULERS.get(name, name) + (f" ({wording.pluralize(runs, 'run')})" if len(launchers) > 1 else "")
        for name, runs in sorted(launchers.items())
    ]
    return "; ".join(said)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
