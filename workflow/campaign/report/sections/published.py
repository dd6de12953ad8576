"""Published claims on the report page, as sentences next to a figure and as a table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from campaign.analysis.published import NOT_MEASURED
from campaign.common import wording
from campaign.report.context_schema import PublishedClaim, PublishedDocument, PublishedResults

OTHER_CONDITIONS = "other conditions"
OTHER_PROGRAM = "with another program"


def list_figure_claims(published_section: PublishedResults, anchor: str) -> list[dict[str, Any]]:
    """List the measured claims on the quantity that a figure shows, with published value and verdict."""
    return [_build_claim_fields(claim) for claim in published_section.claims if claim.figure == anchor and claim.here]


def build_published_section(document: PublishedResults, shown_anchors: Collection[str]) -> dict[str, Any]:
    """Build the section of published claims, with documents, measured claims, and reasons of claims that were not measured.

    Args:
        document: published results and their comparison with the measurements.
        shown_anchors: anchors of the figures on the page, which rows link to.
    """
    measured_claims = [claim for claim in document.claims if claim.verdict != NOT_MEASURED]
    unmeasured_claims = [claim for claim in document.claims if claim.verdict == NOT_MEASURED]
    return {
        "documents": [
            {
                "name": publication.name,
                "cited": format_citation(publication),
                "note": f"{publication.note[:1].upper()}{publication.note[1:]}",
            }
            for publication in document.documents
        ],
        "rows": [
            {**_build_claim_fields(claim), "link": claim.figure if claim.figure in shown_anchors else ""}
            for claim in measured_claims
        ],
        "not_here": [(claim.says, f"{claim.document}, {claim.where}", claim.reason) for claim in unmeasured_claims],
        "counts": _count_verdicts(document),
    }


def format_citation(document: PublishedDocument) -> str:
    """Format a document as 'Authors: Title. Venue, doi 10.1145/...'."""
    venue_and_doi = ", ".join(filter(None, [document.venue, f"doi {document.doi}" if document.doi else ""]))
    return f"{document.authors}: {document.title}{'.' if venue_and_doi else ''} {venue_and_doi}".rstrip()


def format_verdict(claim: PublishedClaim) -> str:
    """Format the verdict of a claim, such as 'agrees, with another program'."""
    if claim.other_program:
        return f"{claim.verdict}, {OTHER_PROGRAM}"
    return OTHER_CONDITIONS if claim.other else claim.verdict


def _build_claim_fields(claim: PublishedClaim) -> dict[str, Any]:
    return {
        "says": claim.says,
        "source": f"{claim.document}, {claim.where}",
        "told": claim.told or claim.says,
        "number": claim.published,
        "conditions": claim.conditions,
        "here": claim.here,
        "of": claim.reason or claim.of,
        "verdict": format_verdict(claim),
        "state": OTHER_CONDITIONS.replace(" ", "-")
        if format_verdict(claim) == OTHER_CONDITIONS
        else claim.verdict.replace(" ", "-"),
        "judged": _describe_mismatches(claim),
        "note": claim.note,
    }


def _describe_mismatches(claim: PublishedClaim) -> str:
    """Describe the conditions that differ from the document, and the verdict under them; empty if none differ."""
    if not claim.other or claim.other_program:
        return "; ".join(claim.other)
    words = {"agrees": "the result agrees", "differs": "the result differs", "undecided": "the result is undecided"}
    return f"{'; '.join(claim.other)}; {words[claim.verdict]}"


def _count_verdicts(document: PublishedResults) -> str:
    """Count the claims by verdict in one sentence."""
    verdicts = [format_verdict(claim) for claim in document.claims]
    words = {
        **_add_other_program("agrees", "agrees", "agree"),
        **_add_other_program("differs", "differs", "differ"),
        **_add_other_program("undecided", "is undecided", "are undecided"),
        OTHER_CONDITIONS: ("was measured under other conditions", "were measured under other conditions"),
        NOT_MEASURED: ("was not measured here", "were not measured here"),
    }
    counts_in_words = [
        f"{n:,} {singular if n == 1 else plural}"
        for name, (singular, plural) in words.items()
        if (n := verdicts.count(name))
    ]
    return f"{wording.pluralize(len(verdicts), 'claim')}: {', '.join(counts_in_words)}." if verdicts else ""


def _add_other_program(verdict: str, singular: str, plural: str) -> dict[str, tuple[str, str]]:
    return {
        verdict: (singular, plural),
        f"{verdict}, {OTHER_PROGRAM}": (f"{singular} {OTHER_PROGRAM}", f"{plural} {OTHER_PROGRAM}"),
    }
