"""A comparison in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from campaign import wording
from campaign.cli.print import print_rows
from campaign.insight.compare.comparison import Comparison
from campaign.insight.published import NOT_HERE
from campaign.report.compare_page import by_change, findings
from campaign.report.page_document import PublishedSaid
from campaign.report.sections.published import OTHER, verdict_of
from campaign.statistics.verdict import p_value

_MOST = 20


def print_comparison(comparison: Comparison) -> None:
    """What a person looks at first; the page and the JSON document hold the rest."""
    click.echo(
        f"{comparison.other} against {comparison.base}: {wording.plural(len(comparison.rows), 'cell')} in both, "
        f"{comparison.compared} compared, {len(comparison.only_base)} only in {comparison.base}, "
        f"{len(comparison.only_other)} only in {comparison.other}"
    )
    for sentence in findings(comparison):
        click.echo(f"  {sentence}")
    click.echo()
    rows = by_change(comparison.rows[comparison.rows["ratio"].notna()])
    print_rows("Largest changes", [_row(row) for row in rows.head(_MOST).to_dict("records")])
    changed = comparison.changed.head(_MOST).to_dict("records")
    if changed:
        print_rows(
            "Ended otherwise",
            [{"cell": r["cell"], comparison.base: r["base_outcome"], comparison.other: r["outcome"]} for r in changed],
        )
    if comparison.surroundings:
        print_rows(
            "Software, hardware and protocol",
            [{"what": d.what, comparison.base: d.base, comparison.other: d.other} for d in comparison.surroundings],
        )


def _row(row: Mapping[Any, Any]) -> dict[str, str]:
    between = wording.between(100 * (row["low"] - 1), 100 * (row["high"] - 1), wording.percent)
    return {
        "cell": row["cell"],
        "change": wording.percent(100 * (row["ratio"] - 1)),
        "95 % interval": between,
        "p (Holm)": p_value(row["p_holm"]),
        "says": row["says"],
    }


def print_claims(said: Mapping[str, Any]) -> None:
    """Published claims beside what was measured here; how many were not."""
    claims = PublishedSaid.model_validate(said).claims
    measured = [claim for claim in claims if claim.verdict != NOT_HERE]
    rows = [
        {
            "claim": claim.says,
            "published": claim.published or "a direction",
            "here": claim.here,
            "verdict": f"{OTHER}, {claim.verdict}" if verdict_of(claim) == OTHER else verdict_of(claim),
        }
        for claim in measured
    ]
    print_rows("Published and here", rows)
    if rest := len(claims) - len(measured):
        were = "was" if rest == 1 else "were"
        click.echo(f"{wording.plural(rest, 'claim')} {were} not measured here (the page, --output, says why)")
