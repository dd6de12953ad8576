"""The commands `campaign compare` and `campaign published`: two campaigns, or campaigns and published claims."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from campaign.analysis import compare as comparing
from campaign.analysis.compare.comparison import CampaignComparison
from campaign.analysis.published import NOT_MEASURED
from campaign.analysis.published.claims import add_evaluated_claims, evaluate_claims
from campaign.analysis.published.judgement import classify_nearness, format_distance, score_claims
from campaign.analysis.statistics.verdict import format_p_value
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.measured_programs import rename_programs
from campaign.cli.echo import echo
from campaign.cli.options import ERROR_CODE_META_KEY, build_format_option, build_output_option, results_option
from campaign.cli.terminal import build_table_from_rows, print_rows, print_tables, print_text
from campaign.common import wording
from campaign.common.errors import ConfigError, suggest_name
from campaign.report.compare_exports import EXPORTS
from campaign.report.compare_page import (
    describe_cell_counts,
    describe_findings,
    format_change,
    render_claims_page,
    render_compare_page,
    select_largest_changes,
)
from campaign.report.context_schema import PublishedResults
from campaign.report.page import write_report
from campaign.report.sections.published import OTHER_CONDITIONS, format_verdict
from campaign.report.sources import load_tables
from campaign.spec import published_file
from campaign.spec.published_file import ReferenceSet
from campaign.spec.yaml_file import read_yaml

_NEARNESS_TEXTS = {"inside": "inside", "near": "within 10 %", "off": "off", None: ""}
_MAX_LINES = 20
"""Maximum number of changes, and of violations of a rule, printed on the terminal."""


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", default="")
@results_option
@click.option(
    "--versions",
    nargs=2,
    metavar="LABEL LABEL",
    help="Compare the runs of A that have the second label with those that have the first. 'none' selects runs without a label.",
)
@click.option(
    "--match",
    "matches",
    metavar="A=B",
    multiple=True,
    help="Compare workload A of the first campaign with workload B of the second. May be repeated.",
)
@click.option("--baseline", metavar="NAME", help="Campaign that is the baseline. Default: A.")
@click.option(
    "--fail-on",
    "rules",
    metavar="RULE",
    multiple=True,
    help="Exit with 1 if a cell matches: 'throughput < -5%', any metric such as 'energy_per_sample_j > 10%', or 'state' (no longer "
    "measured). Exit with 2 if nothing can be compared, or after an error. With published claims, the only rule is 'differs'; "
    "differences under other conditions or with another program do not count. May be repeated.",
)
@build_output_option("HTML page to write in addition.", dir_okay=False)
@build_format_option(
    "table",
    "json",
    *EXPORTS,
    help_text="Output format. csv: all cells. junit: a test case per cell, for CI systems. markdown: findings and the largest "
    "changes, for a merge request. Published claims have only table and json.",
)
def compare(
    first: str,
    second: str,
    results: Path,
    versions: tuple[str, str] | None,
    matches: tuple[str, ...],
    baseline: str | None,
    rules: tuple[str, ...],
    output: Path | None,
    style: str,
) -> None:
    """Compare campaign B with campaign A, or a campaign with published claims.

    A and B are campaign files, archives, or results directories. One of them may be a set of published claims: falcon, faster,
    bitfusion, or the path of such a file. Cells are matched by shape, workload, batch, precision and options. The remaining cells
    are matched by name, then by shape without the device model, and the output states this. --match pairs workloads with different
    names. Intervals of changes (95 %) include the variation between compositions. P-values are adjusted over all cells (Holm).
    Cells that were composed once on each side may not be testable. --fail-on lists such cells but does not fail for them.

    The output names both sides as you do: by the last part of a path, or by the label of --versions.

    \b
    campaign compare before.zip after.zip --fail-on "throughput < -5%" --fail-on state --output changes.html
    campaign compare my-campaign.yaml --versions none driver-580
    campaign compare demo.zip falcon
    campaign compare demo.zip own-program.zip --match resnet50=my-resnet50
    """
    if rules:
        click.get_current_context().meta[ERROR_CODE_META_KEY] = 2  # 1 means that a rule is violated
    if bool(second) == bool(versions) or (versions and len(set(versions)) == 1):
        raise ConfigError("give either a second campaign B, or two different labels: --versions none driver-580")
    labels = versions or (None, None)
    first_tables, second_tables = (
        _load_tables_or_claims(first, results, labels[0]),
        _load_tables_or_claims(second or first, results, labels[1]),
    )
    names = _name_sides(first, second)
    if versions:
        first, second = versions
        names = f"{names[0]} ({first})", f"{names[0]} ({second})"
    if isinstance(first_tables, ReferenceSet):
        first_tables, second_tables, first, second = second_tables, first_tables, second, first
    if isinstance(first_tables, ReferenceSet):
        raise ConfigError(f"{first} and {second} are both sets of published claims; one of them must be a campaign")
    if isinstance(second_tables, ReferenceSet):
        if style in EXPORTS:
            raise ConfigError(f"--format {style} compares two campaigns; use table or json for published claims")
        _compare_with_claims(first_tables, second_tables, rules, output, style)
        return
    second_tables = _rename_workloads(first_tables, second_tables, matches)
    aliases = ("A", first, names[0], first_tables.name), ("B", second, names[1], second_tables.name)
    if baseline is not None and baseline not in aliases[0]:
        if baseline not in aliases[1]:
            raise ConfigError(
                f"--baseline {baseline} is neither of the two campaigns; use one of: "
                f"{', '.join(dict.fromkeys(aliases[0] + aliases[1]))}"
            )
        first_tables, second_tables, names = second_tables, first_tables, names[::-1]
    _compare_campaigns(first_tables, second_tables, names, rules, output, style)


def _name_sides(first: str, second: str) -> tuple[str, str]:
    """Return the last parts of both paths, or the paths as given if these are equal."""
    names = Path(first).name or first, Path(second).name or second
    return names if names[0] != names[1] else (first, second)


def _load_tables_or_claims(source: str, results: Path, version: str | None) -> Tables | ReferenceSet:
    """Load the tables of a campaign, or a set of published claims.

    Args:
        source: campaign file, archive or results directory; or the name or file of a set of claims.
        results: directory of all results.
        version: version label of the runs to load; None for the campaign as it is.
    """
    path = Path(source)
    is_claims_file = path.suffix in (".yaml", ".yml") and path.is_file() and "claims" in read_yaml(path).data
    if version is None and ((not path.exists() and published_file.is_set_name(source)) or is_claims_file):
        return published_file.load_set(source)
    return load_tables(path, results, version=version)


def _rename_workloads(first_tables: Tables, second_tables: Tables, matches: Sequence[str]) -> Tables:
    """Return the second tables with workloads renamed as in the first tables. Raises ConfigError if a workload is unknown.

    Args:
        first_tables: tables of campaign A.
        second_tables: tables of campaign B.
        matches: pairs `A=B` of workload names.
    """
    names: dict[str, str] = {}
    for text in matches:
        first_workload, _, second_workload = text.partition("=")
        for tables, name in ((first_tables, first_workload), (second_tables, second_workload)):
            workloads = list(tables.cells["workload"].unique())
            if name not in workloads:
                raise ConfigError(
                    f"--match {text}: {tables.name} has no workload '{name}'; {suggest_name(name, workloads)}"
                )
        names[second_workload] = first_workload
    runs, cells = (
        table.assign(workload=table["workload"].replace(names)) for table in (second_tables.runs, second_tables.cells)
    )
    return (
        replace(second_tables, runs=runs, cells=cells, context=rename_programs(second_tables.context, names))
        if names
        else second_tables
    )


def _compare_campaigns(
    base: Tables,
    candidate: Tables,
    names: tuple[str, str],
    rules: tuple[str, ...],
    output: Path | None,
    style: str,
) -> None:
    """Compare two campaigns, write or print the result, and exit with 1 if a rule is violated."""
    comparison = comparing.compare(base, candidate, [comparing.parse_rule(rule) for rule in rules], names=names)
    if output:
        _write_page(output, render_compare_page(comparison))
    if style == "json":
        echo(json.dumps(comparing.build_document(comparison), indent=1))
    elif style in EXPORTS:
        echo(EXPORTS[style](comparison))
    else:
        _print_comparison(comparison)
    if not rules:
        return
    for item in comparison.untested_violations[:_MAX_LINES]:
        message = f"not tested (one composition each, or no common host): {item.rule}: {item.where}: {item.change}"
        echo(message, err=True, fg="yellow")
    if len(comparison.untested_violations) > _MAX_LINES:
        echo(f"not tested: {len(comparison.untested_violations) - _MAX_LINES} more", err=True, fg="yellow")
    violations = [f"{item.rule}: {item.where}: {item.change}" for item in comparison.violations[:_MAX_LINES]]
    if len(comparison.violations) > _MAX_LINES:
        violations.append(f"{len(comparison.violations) - _MAX_LINES} more")
    _exit_if_violated(violations)
    if not comparison.compared_count:
        raise ConfigError("no cell was measured in both campaigns, so the rules cannot be checked")


def _exit_if_violated(violations: Sequence[str]) -> None:
    """Print the violated rules, and exit with 1 if there are any."""
    for violation in violations:
        echo(f"fails: {violation}", err=True, fg="red")
    if violations:
        raise click.exceptions.Exit(1)


def _compare_with_claims(
    tables: Tables, reference_set: ReferenceSet, rules: tuple[str, ...], output: Path | None, style: str
) -> None:
    """Compare a campaign with published claims, write or print the result, and check the rule 'differs'."""
    if unknown := [rule for rule in rules if rule.strip() != "differs"]:
        raise ConfigError(f"--fail-on '{unknown[0]}': the only rule for published claims is 'differs'")
    claims_document = evaluate_claims([reference_set], tables)
    if output:
        _write_page(output, render_claims_page(tables.name, claims_document))
    if style == "json":
        echo(json.dumps(claims_document, indent=1))
    else:
        _print_claims(claims_document)
    if rules:
        _check_claim_rule(claims_document["claims"])


def _check_claim_rule(claims: Sequence[Mapping[str, Any]]) -> None:
    """Exit with 1 if a claim differs from the measurement under the conditions of the publication.

    Differences under other conditions, or with another program, are counted and printed, but do not fail. Raises ConfigError if
    no claim was measured.
    """
    if all(claim["verdict"] == NOT_MEASURED for claim in claims):
        raise ConfigError("none of the claims was measured, so the rule cannot be checked")
    differing = [claim for claim in claims if claim["verdict"] == "differs"]
    violations = [claim for claim in differing if not claim["other"]]
    if excluded_count := len(differing) - len(violations):
        verb, auxiliary = ("differs", "does") if excluded_count == 1 else ("differ", "do")
        echo(
            f"{wording.pluralize(excluded_count, 'claim')} {verb} only under other conditions or with another program and "
            f"{auxiliary} not count for --fail-on differs",
            err=True,
        )
    _exit_if_violated([f"differs: {claim['id']}: {claim['says']}: {claim['here']}" for claim in violations])


def _write_page(output: Path, page: str) -> None:
    """Write an HTML page and print its path to standard error."""
    write_report(output, page)
    echo(output, err=True)


def _print_comparison(comparison: CampaignComparison) -> None:
    """Print the largest changes, changed outcomes and differences in context. The page and the JSON document hold all."""
    base, candidate = comparison.base, comparison.other
    echo(f"{candidate} compared with {base}: {describe_cell_counts(comparison)}")
    for sentence in describe_findings(comparison):
        echo(f"  {sentence}")
    echo()
    rows = select_largest_changes(comparison.rows, _MAX_LINES).to_dict("records")
    changes = [
        {
            "cell": row["cell"],
            **dict(zip(("change", "95 % interval"), format_change(row), strict=True)),
            "p (Holm)": format_p_value(row["p_holm"]),
            "result": row["says"],
        }
        for row in rows
    ]
    print_rows("Largest changes", changes)
    changed_outcomes = comparison.changed_outcomes.head(_MAX_LINES).to_dict("records")
    outcomes = [{"cell": r["cell"], base: r["base_outcome"], candidate: r["outcome"]} for r in changed_outcomes]
    surroundings = [
        {"property": difference.what, base: difference.base, candidate: difference.other}
        for difference in comparison.context_differences
    ]
    print_tables(
        build_table_from_rows("Changed outcomes", outcomes),
        build_table_from_rows("Differences in software, hardware, protocol and programs", surroundings),
    )


def _print_claims(claims_document: Mapping[str, Any]) -> None:
    """Print the published claims that were measured, with the measured values, and count the remaining claims."""
    document = PublishedResults.model_validate(claims_document)
    claims = document.claims
    measured_claims = [claim for claim in claims if claim.verdict != NOT_MEASURED]
    rows = [
        {
            "claim": claim.says,
            "published": claim.published or "a direction",
            "measured": claim.here,
            "verdict": f"{OTHER_CONDITIONS}, {claim.verdict}"
            if format_verdict(claim) == OTHER_CONDITIONS
            else format_verdict(claim),
        }
        for claim in measured_claims
    ]
    print_rows("Published claims and measurements", rows)
    if unmeasured_count := len(claims) - len(measured_claims):
        verb = "was" if unmeasured_count == 1 else "were"
        echo(
            f"{wording.pluralize(unmeasured_count, 'claim')} {verb} not measured (the page of --output gives the reasons)"
        )


@click.command()
@click.argument("sources", metavar="CAMPAIGN...", nargs=-1, required=True)
@results_option
@build_output_option("HTML page to write in addition.", dir_okay=False)
@build_format_option("table", "json")
def published(sources: tuple[str, ...], results: Path, output: Path | None, style: str) -> None:
    """Compare campaigns with the published claims of their `references`, and count how many claims agree.

    CAMPAIGN is a campaign file, an archive, or a results directory.

    \b
    campaign published falcon.zip faster.zip --output published.html
    """
    claim_documents = _collect_claims(sources, results)
    claims = [claim for source_claims in claim_documents for claim in source_claims["claims"]]
    if output:
        documents = {
            document["name"]: document for source_claims in claim_documents for document in source_claims["documents"]
        }
        page_document = {"documents": list(documents.values()), "claims": claims}
        write_report(output, render_claims_page("Campaigns", page_document, str(score_claims(claims))))
        echo(output, err=True)
    if style == "json":
        scored_claims = [{**claim, "near": classify_nearness(claim)} for claim in claims]
        echo(json.dumps({"claims": scored_claims, "score": str(score_claims(claims))}, indent=1))
        return
    for source_claims in claim_documents:
        print_tables(
            build_table_from_rows(source_claims["name"], list(_build_claim_rows(source_claims["claims"]))),
            max_rows=None,
        )
        print_text(f"{source_claims['name']}: {score_claims(source_claims['claims'])}", style="bold")
    if unreached_count := sum(claim["verdict"] == NOT_MEASURED for claim in claims):
        print_text(
            f"{wording.pluralize(unreached_count, 'claim')} not measured (the page of --output gives the reasons)"
        )
    if len(claim_documents) > 1:
        print_text(f"All campaigns: {score_claims(claims)}", style="bold")


def _collect_claims(sources: Sequence[str], results: Path) -> list[dict[str, Any]]:
    """Return the published claims that each source refers to, with measured values.

    Raises ConfigError if a source names no references.

    Args:
        sources: campaign files, archives or results directories.
        results: directory of all results.
    """
    claim_documents = []
    for source in sources:
        tables = load_tables(Path(source), results)
        claims_document = add_evaluated_claims(tables).get("published")
        if not claims_document:
            raise ConfigError(
                f"{source}: the campaign has no `references`; add the published claims to compare it with"
            )
        claim_documents.append({"name": tables.name, **claims_document})
    return claim_documents


def _build_claim_rows(claims: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield one table row per claim that was measured."""
    for claim in claims:
        if claim["verdict"] == NOT_MEASURED:
            continue
        yield {
            "claim": claim["says"],
            "published": claim["published"] or "a direction",
            "measured": claim["here"],
            "verdict": claim["verdict"],
            "range": " ".join(
                filter(
                    None,
                    (
                        _NEARNESS_TEXTS[classify_nearness(claim)],
                        format_distance(claim) if classify_nearness(claim) else "",
                    ),
                )
            ),
        }
