"""`campaign published`: campaigns beside the published claims that they refer to, and how many of these they reach."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from campaign import wording
from campaign.archive.open_results import tables_from
from campaign.cli.options import format_option, output_option, results_option
from campaign.cli.terminal import say, show, table_of
from campaign.errors import ConfigError
from campaign.insight.published import INPUT, NOT_HERE
from campaign.insight.published.claims import with_claims
from campaign.insight.published.score import nearness, off, score
from campaign.report.compare_page import claims_page
from campaign.report.page import write_report

_NEAR = {"inside": "inside", "near": "within 10 %", "off": "off", None: ""}


@click.command()
@click.argument("sources", metavar="CAMPAIGN...", nargs=-1, required=True)
@results_option
@output_option("Also write a page (HTML).", dir_okay=False)
@format_option("table", "json")
def published(sources: tuple[str, ...], results: Path, output: Path | None, style: str) -> None:
    """Show campaigns beside the published claims of their `references`, and how many of these claims they reach.

    CAMPAIGN is a campaign file, an archive, or a results directory. A claim that depends on what the document leaves open has a
    row for each way. Claims that a campaign takes as given are inputs and have no verdict.

    \b
    campaign published falcon.zip faster.zip --output published.html
    """
    said = _said(sources, results)
    claims = [claim for each in said for claim in each["claims"]]
    if output:
        documents = {document["name"]: document for each in said for document in each["documents"]}
        together = {"documents": list(documents.values()), "claims": claims}
        write_report(output, claims_page("Campaigns", together, str(score(claims))))
        click.echo(output, err=True)
    if style == "json":
        scored = [{**claim, "near": nearness(claim)} for claim in claims]
        click.echo(json.dumps({"claims": scored, "score": str(score(claims))}, indent=1, ensure_ascii=False))
        return
    for each in said:
        show(table_of(each["name"], list(_rows(each["claims"]))), most=None)
        for claim in each["claims"]:
            if nearness(claim) == "off" and claim["if_predicted"]:
                say(f"{claim['id']}: {claim['if_predicted']}")
        say(f"{each['name']}: {score(each['claims'])}", style="bold")
    if rest := sum(claim["verdict"] == NOT_HERE for claim in claims):
        say(f"{wording.plural(rest, 'claim')} not reached (the page, --output, says why)")
    if len(said) > 1:
        say(f"All campaigns: {score(claims)}", style="bold")


def _said(sources: Sequence[str], results: Path) -> list[dict[str, Any]]:
    """The claims of each source, beside its tables. ConfigError: it refers to none."""
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


def _rows(claims: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """A row for each claim, and below it one for each way in which it may have been made."""
    for claim in claims:
        if claim["verdict"] == NOT_HERE:
            continue
        several = len(claim.get("cases", ())) > 1
        yield {
            "claim": claim["says"],
            "published": claim["published"] or "a direction",
            "here": claim["reason"] if claim["verdict"] == INPUT else "" if several else claim["here"],
            "verdict": claim["verdict"],
            "range": " ".join(filter(None, (_NEAR[nearness(claim)], "" if several else _off(claim)))),
        }
        for case in claim["cases"] if several else ():
            yield {
                "claim": f"  {case['words']}" + ("" if case["stated"] else " (does not count)"),
                "published": "",
                "here": case["here"],
                "verdict": case["verdict"],
                "range": off(case),
            }


def _off(claim: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, map(off, claim.get("cases", ()))))
