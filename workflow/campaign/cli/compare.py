"""The commands `campaign compare` and `campaign published`: two campaigns, or campaigns and published claims."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from campaign.analysis import compare as comparing
from campaign.analysis.compare.comparison import Comparison
from campaign.analysis.published import NOT_HERE
from campaign.analysis.published.claims import held_against, with_claims
from campaign.analysis.published.judgement import nearness, off, score
from campaign.analysis.statistics.verdict import p_value
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.measured_programs import rename_programs
from campaign.cli.echo import echo
from campaign.cli.options import ERROR_CODE, format_option, output_option, results_option
from campaign.cli.terminal import say, show, show_rows, table_of
from campaign.common import wording
from campaign.common.errors import ConfigError, nearest
from campaign.report.compare_page import claims_page, compare_page, findings, largest_changes
from campaign.report.context_schema import PublishedSaid
from campaign.report.page import write_report
from campaign.report.sections.published import OTHER, verdict_of
from campaign.report.sources import tables_from
from campaign.spec import published_file
from campaign.spec.published_file import ReferenceSet
from campaign.spec.yaml_file import read_yaml

_NEAR = {"inside": "inside", "near": "within 10 %", "off": "off", None: ""}
_SHOWN = 20  # changes, and violations of a rule, printed on the terminal


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", default="")
@results_option
@click.option(
    "--versions",
    nargs=2,
    metavar="LABEL LABEL",
    help="Compare the runs of A under the second `version` label with those under the first; 'none' is without a label.",
)
@click.option(
    "--match",
    "matches",
    metavar="A=B",
    multiple=True,
    help="Workload A of the first is workload B of the second, which has another name. May be repeated.",
)
@click.option("--baseline", metavar="NAME", help="Which of the two is the baseline. Default: A.")
@click.option(
    "--fail-on",
    "rules",
    metavar="RULE",
    multiple=True,
    help="Exit with 1 if a cell matches, and with 2 for an error or if nothing could be compared: 'throughput < -5%', any metric "
    "such as 'energy_per_sample_j > 10%', or 'state' (no longer measured). With published claims: 'differs' (differences under "
    "other conditions or with another program do not count). May be repeated.",
)
@output_option("Also write a page (HTML).", dir_okay=False)
@format_option("table", "json")
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
    bitfusion, or the path of such a file. Cells are matched by shape, workload, batch, precision and options; remaining cells by
    name, then by shape without the device's model, which the output states. --match pairs workloads that
    have different names. Intervals of changes (95 %) include the spread between compositions. P-values are adjusted over all cells
    (Holm). Cells that were composed once on each side may not be testable; rules list them and do not fail.

    \b
    campaign compare before.zip after.zip --fail-on "throughput < -5%" --fail-on state --output changes.html
    campaign compare my-campaign.yaml --versions none driver-580
    campaign compare demo.zip falcon
    campaign compare demo.zip own-program.zip --match resnet50=my-resnet50
    """
    if rules:
        click.get_current_context().meta[ERROR_CODE] = 2  # 1 means that a rule is violated
    if bool(second) == bool(versions) or (versions and len(set(versions)) == 1):
        raise ConfigError("give either a second campaign B, or two different labels: --versions none driver-580")
    labels = versions or (None, None)
    one, two = _compared(first, results, labels[0]), _compared(second or first, results, labels[1])
    if versions:
        first, second = versions
    if isinstance(one, ReferenceSet):
        one, two, first, second = two, one, second, first
    if isinstance(one, ReferenceSet):
        raise ConfigError(f"{first} and {second} are both published; one of the two has to be measured")
    if isinstance(two, ReferenceSet):
        _beside_published(one, two, rules, output, style)
        return
    two = _renamed(one, two, matches)
    if baseline is not None and baseline not in (known := ("A", first, one.name)):
        if baseline not in ("B", second, two.name):
            raise ConfigError(
                f"--baseline {baseline}: is neither of the two; there are: {', '.join((*known, 'B', second))}"
            )
        one, two = two, one
    _held(one, two, rules, output, style)


def _compared(text: str, results: Path, version: str | None) -> Tables | ReferenceSet:
    """Load the tables of a campaign, or a set of published claims.

    Args:
        source: campaign file, archive or results directory; or the name or file of a set of claims.
        results: directory of all results.
        version: version label of the runs to load; None for the campaign as it is.
    """
    path = Path(text)
    of_claims = path.suffix in (".yaml", ".yml") and path.is_file() and "claims" in read_yaml(path).data
    if version is None and ((not path.exists() and published_file.is_set(text)) or of_claims):
        return published_file.load(text)
    return tables_from(path, results, version=version)


def _renamed(one: Tables, two: Tables, matches: Sequence[str]) -> Tables:
    """Return the second tables with workloads renamed as in the first tables. Raises ConfigError if a workload is unknown.

    Args:
        first_tables: tables of campaign A.
        second_tables: tables of campaign B.
        matches: pairs `A=B` of workload names.
    """
    names: dict[str, str] = {}
    for text in matches:
        own, _, its = text.partition("=")
        for tables, name in ((one, own), (two, its)):
            known = list(tables.cells["workload"].unique())
            if name not in known:
                raise ConfigError(f"--match {text}: {tables.name} has no workload '{name}'; {nearest(name, known)}")
        names[its] = own
    runs, cells = (table.assign(workload=table["workload"].replace(names)) for table in (two.runs, two.cells))
    return replace(two, runs=runs, cells=cells, context=rename_programs(two.context, names)) if names else two


def _held(base: Tables, other: Tables, rules: tuple[str, ...], output: Path | None, style: str) -> None:
    """Compare two campaigns, write or print the result, and exit with 1 if a rule is violated."""
    comparison = comparing.compare(base, other, [comparing.parse_rule(rule) for rule in rules])
    if output:
        _write(output, compare_page(comparison))
    if style == "json":
        echo(json.dumps(comparing.document(comparison), indent=1))
    else:
        _show_comparison(comparison)
    if not rules:
        return
    for each in comparison.untested[:_SHOWN]:
        words = f"not tested (one composition each, or hosts of their own): {each.rule}: {each.where}: {each.change}"
        echo(words, err=True, fg="yellow")
    if len(comparison.untested) > _SHOWN:
        echo(f"not tested: {len(comparison.untested) - _SHOWN} more times", err=True, fg="yellow")
    broken = [f"{each.rule}: {each.where}: {each.change}" for each in comparison.broken[:_SHOWN]]
    if len(comparison.broken) > _SHOWN:
        broken.append(f"{len(comparison.broken) - _SHOWN} more times")
    _fail(broken)
    if not comparison.compared:
        raise ConfigError("no cell was measured in both, so there is nothing that could pass")


def _fail(broken: Sequence[str]) -> None:
    """Print the violated rules, and exit with 1 if there are any."""
    for words in broken:
        echo(f"fails: {words}", err=True, fg="red")
    if broken:
        raise click.exceptions.Exit(1)


def _beside_published(
    tables: Tables, names: ReferenceSet, rules: tuple[str, ...], output: Path | None, style: str
) -> None:
    """Compare a campaign with published claims, write or print the result, and check the rule 'differs'."""
    if unknown := [rule for rule in rules if rule.strip() != "differs"]:
        raise ConfigError(f"--fail-on '{unknown[0]}': with published claims there is one rule: 'differs'")
    said = held_against([names], tables)
    if output:
        _write(output, claims_page(tables.name, said))
    if style == "json":
        echo(json.dumps(said, indent=1))
    else:
        _show_claims(said)
    if rules:
        _gate_of_claims(said["claims"])


def _gate_of_claims(claims: Sequence[Mapping[str, Any]]) -> None:
    """Exit with 1 if a claim differs from the measurement under the conditions of the publication.

    Differences under other conditions, or with another program, are counted and printed, but do not fail. Raises ConfigError if
    no claim was measured.
    """
    if all(claim["verdict"] == NOT_HERE for claim in claims):
        raise ConfigError("no claim was measured here, so there is nothing that could pass")
    differing = [claim for claim in claims if claim["verdict"] == "differs"]
    broken = [claim for claim in differing if not claim["other"]]
    if elsewhere := len(differing) - len(broken):
        differ, do = ("differs", "does") if elsewhere == 1 else ("differ", "do")
        echo(
            f"{wording.plural(elsewhere, 'claim')} {differ} under other conditions or with another program, which "
            f"{do} not count for --fail-on differs",
            err=True,
        )
    _fail([f"differs: {claim['id']}: {claim['says']}: {claim['here']}" for claim in broken])


def _write(output: Path, page: str) -> None:
    """Write an HTML page and print its path to standard error."""
    write_report(output, page)
    echo(output, err=True)


def _show_comparison(comparison: Comparison) -> None:
    """Print the largest changes, other outcomes and other surroundings. The page and the JSON document hold all of them."""
    base, other = comparison.base, comparison.other
    echo(
        f"{other} against {base}: {wording.plural(len(comparison.rows), 'cell')} in both, {comparison.compared} compared, "
        f"{len(comparison.only_base)} only in {base}, {len(comparison.only_other)} only in {other}"
    )
    for sentence in findings(comparison):
        echo(f"  {sentence}")
    echo()
    rows = largest_changes(comparison.rows, _SHOWN).to_dict("records")
    changes = [
        {
            "cell": row["cell"],
            "change": wording.percent(100 * (row["ratio"] - 1)),
            "95 % interval": wording.between(100 * (row["low"] - 1), 100 * (row["high"] - 1), wording.percent),
            "p (Holm)": p_value(row["p_holm"]),
            "says": row["says"],
        }
        for row in rows
    ]
    show_rows("Largest changes", changes)
    changed = comparison.changed.head(_SHOWN).to_dict("records")
    outcomes = [{"cell": r["cell"], base: r["base_outcome"], other: r["outcome"]} for r in changed]
    around = [{"what": each.what, base: each.base, other: each.other} for each in comparison.surroundings]
    show(table_of("Other outcomes", outcomes), table_of("Software, hardware, protocol and programs", around))


def _show_claims(said: Mapping[str, Any]) -> None:
    """Print the published claims that were measured with the measured values, and count those that were not."""
    document = PublishedSaid.model_validate(said)
    claims = document.claims
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
    show_rows("Published and measured here", rows)
    if rest := len(claims) - len(measured):
        were = "was" if rest == 1 else "were"
        echo(f"{wording.plural(rest, 'claim')} {were} not measured here (the page, --output, says why)")


@click.command()
@click.argument("sources", metavar="CAMPAIGN...", nargs=-1, required=True)
@results_option
@output_option("Also write a page (HTML).", dir_okay=False)
@format_option("table", "json")
def published(sources: tuple[str, ...], results: Path, output: Path | None, style: str) -> None:
    """Show campaigns beside the published claims of their `references`, and how many of these claims they reach.

    CAMPAIGN is a campaign file, an archive, or a results directory.

    \b
    campaign published falcon.zip faster.zip --output published.html
    """
    said = _held_claims(sources, results)
    claims = [claim for each in said for claim in each["claims"]]
    if output:
        documents = {document["name"]: document for each in said for document in each["documents"]}
        together = {"documents": list(documents.values()), "claims": claims}
        write_report(output, claims_page("Campaigns", together, str(score(claims))))
        echo(output, err=True)
    if style == "json":
        scored = [{**claim, "near": nearness(claim)} for claim in claims]
        echo(json.dumps({"claims": scored, "score": str(score(claims))}, indent=1))
        return
    for each in said:
        show(table_of(each["name"], list(_claim_rows(each["claims"]))), most=None)
        say(f"{each['name']}: {score(each['claims'])}", style="bold")
    if rest := sum(claim["verdict"] == NOT_HERE for claim in claims):
        say(f"{wording.plural(rest, 'claim')} not reached (the page, --output, says why)")
    if len(said) > 1:
        say(f"All campaigns: {score(claims)}", style="bold")


def _held_claims(sources: Sequence[str], results: Path) -> list[dict[str, Any]]:
    """Return the published claims that each source refers to, with measured values.

    Raises ConfigError if a source names no references.

    Args:
        sources: campaign files, archives or results directories.
        results: directory of all results.
    """
    said = []
    for source in sources:
        tables = tables_from(Path(source), results)
        held = with_claims(tables).get("published")
        if not held:
            raise ConfigError(
                f"{source}: the campaign names no `references`; add the claims that it is to be held against"
            )
        said.append({"name": tables.name, **held})
    return said


def _claim_rows(claims: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield one table row per claim that was measured."""
    for claim in claims:
        if claim["verdict"] == NOT_HERE:
            continue
        yield {
            "claim": claim["says"],
            "published": claim["published"] or "a direction",
            "here": claim["here"],
            "verdict": claim["verdict"],
            "range": " ".join(filter(None, (_NEAR[nearness(claim)], off(claim) if nearness(claim) else ""))),
        }
