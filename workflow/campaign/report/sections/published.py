"""Published claims on the report page, as sentences next to a figure and as a table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from campaign.analysis.published import NOT_HERE
from campaign.common import wording
from campaign.report.context_schema import PublishedClaim, PublishedDocument, PublishedSaid

OTHER = "other conditions"
OTHER_PROGRAM = "with another program"


def beside(said: PublishedSaid, anchor: str) -> list[dict[str, Any]]:
    """Return the measured claims about the quantity that a figure shows, with the published value and the verdict."""
    return [_sentence(claim) for claim in said.claims if claim.figure == anchor and claim.here]


def published(said: PublishedSaid, shown: Collection[str]) -> dict[str, Any]:
    """Build the section of published claims, with documents, measured claims and the others with their reasons.

    shown_anchors: anchors of the figures on the page, which rows link to.
    """
    measured = [claim for claim in said.claims if claim.verdict != NOT_HERE]
    others = [claim for claim in said.claims if claim.verdict == NOT_HERE]
    return {
        "documents": [
            {"name": each.name, "cited": cited(each), "note": f"{each.note[:1].upper()}{each.note[1:]}"}
            for each in said.documents
        ],
        "rows": [{**_sentence(claim), "link": claim.figure if claim.figure in shown else ""} for claim in measured],
        "not_here": [(claim.says, f"{claim.document}, {claim.where}", claim.reason) for claim in others],
        "counts": _counts(said),
    }


def cited(document: PublishedDocument) -> str:
    """Format a document as 'Authors: Title. Venue, doi 10.1145/...'."""
    where = ", ".join(filter(None, [document.venue, f"doi {document.doi}" if document.doi else ""]))
    return f"{document.authors}: {document.title}{'.' if where else ''} {where}".rstrip()


def verdict_of(claim: PublishedClaim) -> str:
    """Format the verdict of a claim, such as 'agrees, with another program'."""
    if claim.other_program:
        return f"{claim.verdict}, {OTHER_PROGRAM}"
    return OTHER if claim.other else claim.verdict


def _sentence(claim: PublishedClaim) -> dict[str, Any]:
    return {
        "says": claim.says,
        "source": f"{claim.document}, {claim.where}",
        "told": claim.told or claim.says,
        "number": claim.published,
        "conditions": claim.conditions,
        "here": claim.here,
        "of": claim.reason or claim.of,
        "verdict": verdict_of(claim),
        "state": OTHER.replace(" ", "-") if verdict_of(claim) == OTHER else claim.verdict.replace(" ", "-"),
        "judged": _judged(claim),
        "note": claim.note,
    }


def _judged(claim: PublishedClaim) -> str:
    """Describe the conditions that differ from the document, and the verdict under them; '' for none."""
    if not claim.other or claim.other_program:
        return "; ".join(claim.other)
    words = {"agrees": "it agrees", "differs": "it differs", "undecided": "nothing is decided"}
    return f"{'; '.join(claim.other)}; {words[claim.verdict]}"


def _counts(said: PublishedSaid) -> str:
    """Count the claims by verdict in one sentence."""
    verdicts = [verdict_of(claim) for claim in said.claims]
    words = {
        **_also_with_another_program("agrees", "agrees", "agree"),
        **_also_with_another_program("differs", "differs", "differ"),
        **_also_with_another_program("undecided", "is undecided", "are undecided"),
        OTHER: ("was measured under other conditions", "were measured under other conditions"),
        NOT_HERE: ("was not measured here", "were not measured here"),
    }
    told = [f"{n:,} {one if n == 1 else many}" for name, (one, many) in words.items() if (n := verdicts.count(name))]
    return f"{wording.pluralize(len(verdicts), 'claim')}: {', '.join(told)}." if verdicts else ""


def _also_with_another_program(verdict: str, one: str, many: str) -> dict[str, tuple[str, str]]:
    return {
        verdict: (one, many),
        f"{verdict}, {OTHER_PROGRAM}": (f"{one} {OTHER_PROGRAM}", f"{many} {OTHER_PROGRAM}"),
    }
