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
from campaign.analysis.statistics.experiment_design import Design, build_campaign_design
from campaign.analysis.tables import measured_protocol
from campaign.common import wording
from campaign.common.errors import RecordError, format_first_error
from campaign.common.files import load_json, read_text, reject_damaged_document
from campaign.report import sort_by_page_order
from campaign.report.cell_runs import ResultFiles, build_runs_document, omits_steps
from campaign.report.cells_table import build_cells_section
from campaign.report.context_schema import AnalysisVersion, ContextDocument, ExcludedHost, ExclusionRule, PageLayout
from campaign.report.figure import ANSWERS, APPARATUS, EVIDENCE, describe_cell_coverage
from campaign.report.sections.compositions import build_compositions_section, describe_idle_time
from campaign.report.sections.coverage import build_coverage_table, count_states, list_failed_runs
from campaign.report.sections.published import build_published_section, list_figure_claims
from campaign.report.sections.race import describe_race
from campaign.report.sections.recommendation import build_recommendation_section
from campaign.report.templates import encode_downloads, inline_svg, render_template
from campaign.spec.metric import read_primary_metric
from campaign.spec.record import IMPORTED_FLAG

# Number of open sections in the first part, including "What to build"; further ones are folded.
MAX_OPEN_ANSWERS = 8
# Numbers of small pictures side by side, and of further answers as sentences, on the first screen.
MAX_GLANCES, MAX_SENTENCES = 3, 3

# As `figure.describe_marks` formats it.
_MARKS_SENTENCE = re.compile(r"Each \w+ is one cell \(([^()]*)\) with its 95\u202f% interval\. ?")
_STATE_MEANINGS = {
    "failed": "the cell was run, but no run is valid; this is a result",
    "implied": "the cell was not run, because an otherwise equal cell with a smaller batch ran out of memory",
    "missing": "the cell was not run",
}
_SCHEDULER_SENTENCES = {
    IMPORTED_FLAG: "The scheduler is unknown, because the runs were not made with this program",
    "slurm": "Slurm started the runs: every allocation was a job, and every run a job step",
    "local": "No scheduler was used: drivers and runs were processes on the machine that started the campaign",
}


def render_report_page(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    leases: Sequence[Mapping[str, Any]],
    context_document: Mapping[str, Any],
    drawings: Mapping[str, Mapping[str, Any]],
    recommendation: RecommendationDocument | None = None,
    design: Design | None = None,
    steps: pd.DataFrame | None = None,
    files: ResultFiles | None = None,
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
        design: design of the campaign; None to build it from the runs.
        steps: table of step times, if any.
        files: logs and records that the page links to.
    """
    return render_context(
        build_context(runs, cells, leases, context_document, drawings, recommendation, design, steps, files)
    )


def write_report(out: Path, page: str) -> None:
    """Write the page to a file. Raises RecordError if that fails."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RecordError(
            f"{out}: the report cannot be written ({error.strerror}); choose another file with --output"
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
    headline: str = ""
    shown: bool
    minor: bool = False
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

    Their CSV and PDF files are included as base64 if they are not too long.
    """
    drawings = {}
    for svg, words in files:
        with reject_damaged_document(words, "delete the figure and run again"):
            document = load_json(words)
            _DrawingDocument.model_validate(document)
            picture = read_text(svg) if document["shown"] or svg.exists() else ""
            drawings[svg.stem] = {**document, "svg": picture, **encode_downloads(svg)}
    return drawings


def build_context(
    runs: pd.DataFrame,
    cells: pd.DataFrame,
    leases: Sequence[Mapping[str, Any]],
    context_document: Mapping[str, Any],
    drawings: Mapping[str, Mapping[str, Any]],
    recommendation: RecommendationDocument | None = None,
    design: Design | None = None,
    steps: pd.DataFrame | None = None,
    files: ResultFiles | None = None,
) -> dict[str, Any]:
    """Build all texts and numbers for the page template. See `render_report_page` for arguments and errors."""
    try:
        report_context = ContextDocument.model_validate(context_document)
    except ValidationError as error:
        raise RecordError(f"report context: {format_first_error(error)}") from error
    ordered_drawings = _apply_layout(sort_by_page_order(drawings), report_context.campaign.report)
    campaign_coverage = describe_cell_coverage(cells)
    shown_drawings = [drawing for drawing in ordered_drawings if drawing["shown"]]
    common_runs = _find_common_runs(shown_drawings)
    row_by_cell = {str(cell_id): row for row, cell_id in enumerate(cells["cell_id"])}
    sections = [
        _build_section(drawing, report_context, campaign_coverage, common_runs, row_by_cell)
        for drawing in shown_drawings
    ]
    answers, evidence, apparatus = (_select_part(sections, part) for part in (ANSWERS, EVIDENCE, APPARATUS))
    answers = _fold_answers(answers, MAX_OPEN_ANSWERS - (recommendation is not None))
    # Sections with a small picture are preferred; the selected ones stay in the order of the page.
    major_answers = [section for section in answers if not section["minor"]] or answers
    glance_sections = sorted(major_answers, key=lambda section: not section["glance"])[:MAX_GLANCES]
    first_sections = [section for section in answers if section in glance_sections]
    advice = build_recommendation_section(recommendation) if recommendation else None
    metric = read_primary_metric(context_document)
    coverage_table = build_coverage_table(cells, metric)
    design = design or build_campaign_design(runs, context_document["campaign"])
    return {
        "campaign": report_context.campaign,
        "system": report_context.system,
        "notes": report_context.notes,
        "basis": _describe_basis(runs, report_context),
        "common_runs": common_runs,
        "counts": _list_counts(runs, cells, report_context.excluded),
        "lost": _describe_unmeasured(cells),
        "remarks": _list_remarks(runs, cells, report_context.hosts_left_out),
        # Readers must know of a drift, a slow host or a slow link before any answer.
        "alarms": [section for section in sections if section["place"] == 0 and section["findings"]],
        "glances": first_sections,
        "sentences": [section for section in major_answers if section["findings"] and section not in first_sections][
            :MAX_SENTENCES
        ],
        "race": report_context.race and describe_race(report_context.race),
        "answers": answers,
        "evidence": evidence,
        "all_cells": build_cells_section(cells, metric, report_context.campaign.baseline, design),
        "runs_of_cells": build_runs_document(
            runs, list(cells["cell_id"]), pd.DataFrame() if steps is None else steps, files
        ),
        "omits_steps": steps is not None and omits_steps(runs, steps),
        "results_directory": files.directory if files else "",
        "apparatus": apparatus,
        "coverage": {
            **coverage_table,
            "meanings": [
                (state, _STATE_MEANINGS[state])
                for state, count in count_states(cells)
                if state in _STATE_MEANINGS and count != "0"
            ],
        },
        "failed": list_failed_runs(runs, cells),
        "excluded": report_context.excluded,
        "left_out": _group_left_out(ordered_drawings),
        "shown": {section["anchor"] for section in sections},
        "compositions": build_compositions_section(leases),
        "idle": describe_idle_time(runs),
        "hosts_left_out": report_context.hosts_left_out,
        "scheduler": _describe_launchers(report_context.launchers),
        "flags": _build_flags_table(runs, report_context.flags),
        "campaign_yaml": report_context.campaign_yaml,
        "software": report_context.software,
        "environments": {
            name: _format_json(document) for name, document in sorted(report_context.environments.items())
        },
        "schema_versions": sorted(report_context.schema_versions.items()),
        "analysis": (analysis := describe_analysis_versions(report_context.campaign.analysis)),
        "analysis_changes": analysis[1:] if len(report_context.campaign.analysis) > 1 else [],
        "protocol": measured_protocol.describe_measured_protocol(runs, report_context.campaign.protocol),
        "tests": describe_tests(sections),
        "methods": [
            f"{section['method'][:1].upper()}{section['method'][1:]}." for section in sections if section["method"]
        ],
        "recommendation": advice,
        "published": build_published_section(report_context.published, {drawing["anchor"] for drawing in sections}),
    }


def describe_analysis_versions(versions: Sequence[AnalysisVersion]) -> list[str]:
    """Describe when the analysis was recorded, before the first run or later, and what changed since."""
    if not versions:
        return []
    first, *later = versions
    when = f"after {wording.pluralize(first.runs, 'run')}" if first.runs else "before the first run"
    sentences = [f"Figures, claims, exclusions, metric, baseline, matrix and protocol were recorded {when}, on {first.written} UTC "
            f"(hash {first.hash})."]  # fmt: skip
    for version in later:
        moment = (
            f"on {version.written} UTC, with {wording.pluralize(version.runs, 'run')} measured"
            if version.written
            else "since the last plan"
        )
        sentences.append(f"After the first run, {', '.join(version.changed)} changed {moment} (hash {version.hash}).")
    return sentences if later else [*sentences, "Nothing has changed since."]


def _apply_layout(drawings: Sequence[Mapping[str, Any]], layout: PageLayout) -> list[Mapping[str, Any]]:
    """Arrange the drawings in the parts and order that the campaign file requests, without hidden ones."""
    open_anchors = [name.replace("_", "-") for name in layout.open]
    hidden_anchors = {name.replace("_", "-") for name in layout.hide}
    kept_drawings = [drawing for drawing in drawings if drawing["anchor"] not in hidden_anchors]
    if not open_anchors:
        return kept_drawings
    parts = {ANSWERS: EVIDENCE}  # figures that the campaign file does not request become evidence
    open_drawings = {
        drawing["anchor"]: {**drawing, "part": ANSWERS, "within": "", "minor": False}
        for drawing in kept_drawings
        if drawing["anchor"] in open_anchors
    }
    other_drawings = [
        {
            **drawing,
            "part": ANSWERS if drawing["within"] in open_anchors else parts.get(drawing["part"], drawing["part"]),
        }
        for drawing in kept_drawings
        if drawing["anchor"] not in open_anchors
    ]
    return [*(open_drawings[name] for name in open_anchors if name in open_drawings), *other_drawings]


def _find_common_runs(drawings: Iterable[Mapping[str, Any]]) -> str:
    """Find the most frequent number of runs behind the marks of figures, such as '2 runs'; empty if no caption has any."""
    counts = Counter(match[1] for drawing in drawings if (match := _MARKS_SENTENCE.search(drawing["caption"] or "")))
    return counts.most_common(1)[0][0] if counts else ""


def _build_section(
    drawing: Mapping[str, Any],
    document: ContextDocument,
    campaign_coverage: str,
    common_runs: str,
    row_by_cell: Mapping[str, int],
) -> dict[str, Any]:
    """Build the section of a figure, with inlined pictures, its published claims, and notes on emulated parts.

    Args:
        drawing: document of the figure.
        document: context document of the report.
        campaign_coverage: coverage of the whole campaign.
        common_runs: number of runs behind marks that the page states once.
        row_by_cell: row of each cell in the table of all cells.
    """
    emulated_conditions = [
        f"{condition[:1].upper()}{condition.partition(' by ')[0][1:]}."
        for condition in document.conditions
        if any(word in condition for word in drawing["rests_on"])
    ]
    assumptions = [document.assumptions[subject] for subject in drawing["rests_on"] if subject in document.assumptions]
    pictures = {
        name: inline_svg(_number_cells(drawing[name], row_by_cell)) if drawing[name] else ""
        for name in ("svg", "narrow", "glance")
    }
    coverage = drawing["coverage"] or ""
    if _is_coverage_redundant(coverage, campaign_coverage):
        coverage = ""
    # The title replaces the question.
    question, answer = drawing["section"].partition("? ")[::2]
    return {
        **{"minor": False, "headline": ""},  # Drawings of earlier versions do not have them.
        **drawing,
        **pictures,
        "section": answer or ("" if question.endswith("?") else question),
        "caption": _MARKS_SENTENCE.sub(
            lambda match: "" if match[1] == common_runs else match[0], drawing["caption"] or ""
        ).rstrip(),
        "coverage": coverage.removeprefix(f"{campaign_coverage.rstrip('.')}; "),
        "limits": [*drawing["limits"], *emulated_conditions],
        "assumptions": assumptions or emulated_conditions,
        "published": list_figure_claims(document.published, drawing["anchor"]),
    }


def _number_cells(picture: str, row_by_cell: Mapping[str, int]) -> str:
    """Replace the cells of marks (see `plot.link_cells`) by their rows in the table of all cells, without marks of other cells."""

    def number_marks(match: re.Match[str]) -> str:
        marks = [mark.partition(",") for mark in match[1].split(";")]
        numbered_marks = (f"{row_by_cell[cell]},{places}" for cell, _, places in marks if cell in row_by_cell)
        return f'<svg data-cells="{";".join(numbered_marks)}"'

    return re.sub(r'<svg data-cells="([^"]*)"', number_marks, picture, count=1)


def _group_left_out(drawings: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Group the titles of figures that have nothing to show by reason."""
    titles_by_reason: dict[str, list[str]] = {}
    for drawing in drawings:
        if not drawing["shown"]:
            titles_by_reason.setdefault(drawing["reason"], []).append(drawing["title"])
    return titles_by_reason


def _is_coverage_redundant(coverage: str, campaign_coverage: str) -> bool:
    """Return whether the coverage of a figure is redundant on the page.

    It is redundant if all cells of the figure were measured, or if it is that of the whole campaign, which the page states once.
    """
    match = re.match(r"([0-9,]+) of ([0-9,]+) ", coverage)
    # Drawings of earlier versions have the words "no value here" or "without such a number".
    lacks_values = any(words in coverage for words in ("not shown", "no value", "without"))
    is_complete = match is not None and match[1] == match[2] and not lacks_values
    return coverage == campaign_coverage or is_complete


def _select_part(sections: Sequence[Mapping[str, Any]], part: str) -> list[dict[str, Any]]:
    """Select the sections of one part of the page, each with the figures that continue it.

    A continuation whose parent is not shown becomes a section of its own. The heading of a folded section has all titles.
    """
    part_sections = [section for section in sections if section["part"] == part]
    anchors = {section["anchor"] for section in part_sections}
    continued: dict[str, list[Mapping[str, Any]]] = {}
    for section in part_sections:
        continued.setdefault(section["within"] if section["within"] in anchors else "", []).append(section)
    return [
        {
            **section,
            "continued": [
                {**panel, "limits": [limit for limit in panel["limits"] if limit not in section["limits"]]}
                for panel in panels
            ],
            "heading": section["title"] if part == ANSWERS else _join_titles([section, *panels]),
        }
        for section in continued.get("", ())
        for panels in [continued.get(section["anchor"], [])]
    ]


def _join_titles(sections: Iterable[Mapping[str, Any]]) -> str:
    """Join the titles of figures that share a section, such as 'Utilisation, transfer rates, time series'."""
    titles = [str(section["title"]) for section in sections]
    return ", ".join([titles[0], *(f"{title[:1].lower()}{title[1:]}" for title in titles[1:])])


def _fold_answers(answers: Sequence[Mapping[str, Any]], max_open: int) -> list[dict[str, Any]]:
    """Fold the answers without a significant difference, and those beyond the maximum number of open ones."""
    open_anchors = [section["anchor"] for section in answers if not section["minor"]][:max_open]
    return [{**section, "folded": section["anchor"] not in open_anchors} for section in answers]


def _describe_basis(runs: pd.DataFrame, document: ContextDocument) -> str:
    """Describe the data behind the page in one line, such as '30 compositions, 81 runs; the fabric is simulated'."""
    valid = runs[runs["status"] == "ok"]
    leases = valid.loc[valid["lease_id"] != "", "lease_id"].nunique()
    counts = [wording.pluralize(leases, "composition")] if leases else []
    counts.append(wording.pluralize(len(valid), "valid run"))
    return "; ".join([", ".join(counts), *document.conditions])


def _describe_unmeasured(cells: pd.DataFrame) -> str:
    """Describe in one line the planned cells that have no value; empty if there are none."""
    counts = [(str(name), int(count)) for name, count in cells["state"].value_counts().items() if name != "measured"]
    phrases = [
        f"{count:,} {'' if name == 'failed' else 'is ' if count == 1 else 'are '}{name}" for name, count in counts
    ]
    return f"Of {wording.pluralize(len(cells), 'planned cell')}, {' and '.join(phrases)}." if phrases else ""


def describe_tests(sections: Iterable[Mapping[str, Any]]) -> str:
    """Describe how the comparisons of all figures were made, and how many differ significantly."""
    methods = Counter[str]()
    for drawing in sections:
        methods.update(drawing["tested"])
    significant_count, test_count = methods.pop("differ", 0), methods.total()
    if not test_count:
        return ""
    methods_text = "; ".join(f"{name} ({count:,})" for name, count in methods.most_common())
    verb = "is" if significant_count == 1 else "are"
    return (
        f"{significant_count:,} of {wording.pluralize(test_count, 'comparison')} "
        f"in figures {verb} significant at 5\u202f%, adjusted over the "
        f"comparisons of each figure (Holm). Tests: {methods_text}."
    )


def render_context(context: Mapping[str, Any]) -> str:
    """Render the page from the context of `build_context` as a self-contained, reproducible file."""
    return render_template("report.html.j2", context)


def _list_counts(
    runs: pd.DataFrame, cells: pd.DataFrame, exclusion_rules: Iterable[ExclusionRule]
) -> list[tuple[str, str]]:
    return [
        ("planned", f"{len(cells):,}"),
        *count_states(cells),
        ("excluded", f"{sum(rule.cells for rule in exclusion_rules):,}"),
        ("runs", f"{len(runs):,}"),
        ("compositions", f"{runs.loc[(runs['status'] == 'ok') & (runs['lease_id'] != ''), 'lease_id'].nunique():,}"),
    ]


def _list_remarks(runs: pd.DataFrame, cells: pd.DataFrame, hosts_left_out: Sequence[ExcludedHost]) -> list[str]:
    """Return remarks on facts that the counts alone would hide."""
    incomplete_count = int(((cells["state"] == "measured") & (cells["n_ok"] < cells["n_planned"])).sum())
    single_run_bounds = cells.loc[cells["n_ok"] == 1, "ci_low"]
    borrowed_count, cells_without_interval = int(single_run_bounds.notna().sum()), int(single_run_bounds.isna().sum())
    # Searching a column of Arrow's strings is slow.
    unplanned_runs = int((~runs["cell_id"].astype(object).isin(cells["cell_id"])).sum())
    sentences = []
    if incomplete_count:
        sentences.append(
            f"{_format_subject(incomplete_count, 'measured cell', 'has', 'have')} fewer valid runs than planned."
        )
    if cells_without_interval:
        sentences.append(
            f"{_format_subject(cells_without_interval, 'cell', 'has', 'have')} no interval, because only one run is valid."
        )
    if borrowed_count:
        sentences.append(
            f"{_format_subject(borrowed_count, 'cell', 'has', 'have')} only one valid run; the variance is estimated from other "
            "cells."
        )
    if outlier_count := int(cells["n_outliers"].sum()):
        cells_in_words = wording.pluralize(int((cells["n_outliers"] > 0).sum()), "cell")
        marked_text = "is marked as an outlier" if outlier_count == 1 else "are marked as outliers"
        sentences.append(
            f"{wording.pluralize(outlier_count, 'run')} in {cells_in_words} "
            f"{marked_text}, by a rule with 1 false alarm in 100 cells. "
            "Outliers are kept, but means limit their weight; tables/cells.csv lists them."
        )
    if unplanned_runs:
        sentences.append(
            f"{_format_subject(unplanned_runs, 'run', 'is', 'are')} ignored, because the campaign does not plan the cell."
        )
    if hosts_left_out:
        names = ", ".join(excluded_host.host for excluded_host in hosts_left_out)
        hosts_text = _format_subject(len(hosts_left_out), "host", "was", "were")
        sentences.append(f"{hosts_text} excluded from further allocations after a failure: {names}.")
    return sentences


def _format_subject(count: int, noun: str, singular_verb: str, plural_verb: str) -> str:
    """Return the subject and the verb of a sentence, such as '2 cells have'."""
    return f"{wording.pluralize(count, noun)} {singular_verb if count == 1 else plural_verb}"


def _build_flags_table(runs: pd.DataFrame, meanings: Mapping[str, str]) -> dict[str, list[Any]]:
    """Build the table of flags, with their meanings if any is known, and the numbers of runs and cells that have each."""
    flagged_runs = runs.loc[runs["flags"] != "", ["cell_id", "flags"]]
    single_flags = flagged_runs.assign(flag=flagged_runs["flags"].str.split(", ")).explode("flag")
    has_meanings = any(flag in meanings and ": " not in str(flag) for flag in single_flags["flag"])
    return {
        "headings": ["Flag", *(["Meaning"] if has_meanings else []), "Runs", "Cells"],
        "rows": [
            [
                flag,
                # Many flags have their meaning after a colon.
                *(["" if ": " in str(flag) else meanings.get(str(flag), "")] if has_meanings else []),
                f"{len(flag_rows):,}",
                f"{flag_rows['cell_id'].nunique():,}",
            ]
            for flag, flag_rows in single_flags.groupby("flag", sort=True)
        ],
    }


def _describe_launchers(launchers: Mapping[str, int]) -> str:
    """Describe which schedulers started the runs, with their numbers if there was more than one."""
    sentences = [
        _SCHEDULER_SENTENCES.get(name, name) + (f" ({wording.pluralize(runs, 'run')})" if len(launchers) > 1 else "")
        for name, runs in sorted(launchers.items())
    ]
    return "; ".join(sentences)


def _format_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
