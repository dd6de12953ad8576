"""Comparison of two campaigns for other programs: CSV, JUnit XML for CI systems, and Markdown for a merge request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

from campaign.analysis.compare.comparison import CampaignComparison
from campaign.analysis.statistics.verdict import format_p_value
from campaign.analysis.tables.io import neutralize_formulas
from campaign.common import wording
from campaign.report.compare_page import describe_cell_counts, describe_findings, format_change, select_largest_changes
from campaign.report.markdown import escape_markdown, format_markdown_list, format_markdown_table

MAX_MARKDOWN_ROWS = 20
"""Maximum number of rows per Markdown table. The CSV file and the JSON document hold all."""
SLOWER_RULE = "significantly slower"
_SLOWER_RULE_TEXT = "a cell is significantly slower (Holm-adjusted p < 0.05)"


def format_csv(comparison: CampaignComparison) -> str:
    """Format all matched cells as CSV, with the columns of the key `cells` of the JSON document."""
    return neutralize_formulas(comparison.rows).to_csv(index=False, lineterminator="\n").rstrip("\n")


def format_markdown(comparison: CampaignComparison) -> str:
    """Format findings, violated rules, the largest changes and the changed outcomes as Markdown."""
    base, other = comparison.base, comparison.other
    parts = [
        f"## {escape_markdown(f'{other} against {base}')}",
        format_markdown_list([f"{describe_cell_counts(comparison)}.", *describe_findings(comparison)]),
    ]
    if comparison.rules:
        violations = [(item.rule, item.where, item.change) for item in comparison.violations]
        parts.append(
            f"**{wording.pluralize(len(violations), 'violation')}** of {escape_markdown(', '.join(comparison.rules))}"
        )
        parts += _format_table("Violations", ("Rule", "Cell", "Change"), violations)
    changes = select_largest_changes(comparison.rows, MAX_MARKDOWN_ROWS).to_dict("records")
    parts += _format_table(
        "Largest changes",
        ("Cell", "Change", "95 % interval", "p (Holm)", "Result"),
        [(row["cell"], *format_change(row), format_p_value(row["p_holm"]), row["says"]) for row in changes],
        comparison.compared_count,
    )
    parts += _format_table(
        "Changed outcomes",
        ("Cell", escape_markdown(base), escape_markdown(other)),
        [tuple(row) for row in comparison.changed_outcomes[["cell", "base_outcome", "outcome"]].to_numpy()],
    )
    return "\n\n".join(parts)


def _format_table(
    title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]], total: int | None = None
) -> list[str]:
    """Format the first rows of a table with its title and the number of the remaining rows; empty without rows."""
    if not rows:
        return []
    shown_rows = rows[:MAX_MARKDOWN_ROWS]
    hidden_count = (len(rows) if total is None else total) - len(shown_rows)
    more = [f"{hidden_count:,} more are in `--format json`."] if hidden_count else []
    return [f"### {title}", format_markdown_table(columns, shown_rows), *more]


def format_junit(comparison: CampaignComparison) -> str:
    """Format a comparison as JUnit XML, one test case per cell that was measured in the baseline.

    Without rules, a cell fails if it is significantly slower. With rules, violations fail, and nothing else does. Cells and means
    without a test are skipped. The document has the elements and attributes that Jenkins' schema junit-10.xsd allows.
    """
    failures: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for violation in comparison.violations:
        failures[violation.where].append((violation.rule, violation.change))
    untested = {item.where: f"not tested: {item.rule}: {item.change}" for item in comparison.untested_violations}
    suite = ElementTree.Element("testsuite", name=_make_xml_text(f"{comparison.other} against {comparison.base}"))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in {
        "baseline": comparison.base,
        "candidate": comparison.other,
        "metric": comparison.metric.name,
        "fails if": ", ".join(comparison.rules) or _SLOWER_RULE_TEXT,
    }.items():
        ElementTree.SubElement(properties, "property", name=name, value=_make_xml_text(value))
    rows = comparison.rows[comparison.rows["base_state"] == "measured"]
    for row in rows.to_dict("records"):
        case_failures = failures.pop(row["cell"], [])
        if not comparison.rules and row["says"] == "slower":
            case_failures = [(SLOWER_RULE, _describe_change(row))]
        _add_test_case(suite, row["workload"], row["cell"], case_failures, _explain_skip(row, untested))
    means = {row for row in (*failures, *untested) if row not in set(comparison.rows["cell"])}
    for name in sorted(means):
        _add_test_case(suite, "mean", name, failures.get(name, []), untested.get(name, ""))
    suite.attrib |= {
        "tests": str(len(suite.findall("testcase"))),
        "failures": str(len(suite.findall("testcase[failure]"))),
        "errors": "0",
        "skipped": str(len(suite.findall("testcase[skipped]"))),
    }
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode")


def _add_test_case(
    suite: ElementTree.Element, group: str, name: str, failures: list[tuple[str, str]], skip_reason: str
) -> None:
    """Add a test case to a test suite. A case with failures is not skipped."""
    case = ElementTree.SubElement(suite, "testcase", classname=_make_xml_text(group), name=_make_xml_text(name))
    for rule, change in failures:
        ElementTree.SubElement(case, "failure", type=_make_xml_text(rule), message=_make_xml_text(change))
    if skip_reason and not failures:
        ElementTree.SubElement(case, "skipped", message=_make_xml_text(skip_reason))


def _explain_skip(row: Mapping[Any, Any], untested: Mapping[str, str]) -> str:
    """Explain why the change of a cell has no test; empty if it was tested."""
    if row["state"] != "measured":
        return f"measured → {row['outcome']}"
    return untested.get(row["cell"], "") or ("" if row["tested"] else row["says"] or "not compared")


def _make_xml_text(text: str) -> str:
    """Escape characters that XML 1.0 forbids."""
    return wording.escape_control_characters(text)


def _describe_change(row: Mapping[Any, Any]) -> str:
    change, interval = format_change(row)
    return f"{change} [{interval}], p {format_p_value(row['p_holm'])}"


EXPORTS: dict[str, Callable[[CampaignComparison], str]] = {
    "csv": format_csv,
    "junit": format_junit,
    "markdown": format_markdown,
}
"""Functions that format a comparison, by the name of the format."""
