"""One screen at the end of a campaign: what was measured, what was found, where to read on."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from campaign import wording
from campaign.errors import RecordError
from campaign.files import read_json
from campaign.paths import Results
from campaign.report.page_order import in_page_order
from campaign.report.sections.question import terminal_lines

ALONE = "Differences between them are not tested, since nothing tells how much compositions differ"

_ADVICE = 3
_FINDINGS = 1  # of each figure; the page has all of them


def summary(directory: Path) -> str:
    """Counts, compositions, the first finding of every figure, what to build with its ties, and the path of the report.

    directory: of results.
    """
    results = Results.at(directory)
    with (results.tables / "cells.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    context = read_json(results.tables / "context.json")
    # Tables of earlier versions have no such column.
    became = wording.became(wording.basis(row.get("predicted") == "True" for row in cells))
    names = ("planned", "ok", "failed", "implied", "missing")
    runs = Counter({name: sum(int(float(row[f"n_{name}"])) for row in cells) for name in names})
    implied = f"{runs['implied']} implied, " if runs["implied"] else ""
    lines = [
        "",
        f"{len(cells)} cells, {runs['planned']} runs: {runs['ok']} {became}, {runs['failed']} failed, {implied}"
        f"{runs['missing']} missing",
        *([str(predicted)] if (predicted := context.get("prediction")) else []),
        *_valid_runs(results, became),
    ]
    drawings = {path.stem: json.loads(path.read_bytes()) for path in results.figures.glob("*.json")}
    for drawing in in_page_order(drawings):
        if drawing["shown"] and drawing["findings"]:
            lines.append(f"\n{drawing['title']}")
            lines += [f"  {finding}" for finding in drawing["findings"][:_FINDINGS]]
    answers = json.loads((results.recommendation / "recommendation.json").read_bytes())["answers"]
    advice = [_advice(each) for each in answers if each["sentences"]]
    if advice:
        lines += ["\nWhat to build", *(f"  {sentence}" for sentence in advice[:_ADVICE])]
    lines += terminal_lines(context.get("questions", ()))
    lines.append(f"\nReport: {results.report}")
    return "\n".join(lines)


def _valid_runs(results: Results, became: str) -> list[str]:
    """How often configurations were composed, which is what every statement between them rests on; and runs that have no number."""
    leases: defaultdict[str, set[str]] = defaultdict(set)
    without = 0
    with (results.tables / "runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] == "ok":
                leases[row["configuration"]].add(row["lease_id"])
                without += row["value"] == ""
    said = (
        [f"{wording.plural(without, f'{became} run')} without the primary metric, in no figure of it"]
        if without
        else []
    )
    return _compositions(leases, became) + said


def _compositions(leases: Mapping[str, set[str]], became: str) -> list[str]:
    counts = sorted(len(own) for own in leases.values())
    if not counts:
        return []
    ends = " to ".join(dict.fromkeys(str(count) for count in (counts[0], counts[-1])))
    each = "each composed once" if counts[-1] == 1 else f"{sum(counts)} compositions, {ends} of each"
    alone = f". {ALONE}" if counts[-1] == 1 and len(counts) > 1 else ""
    return [f"{wording.plural(len(counts), 'configuration')} {became}, {each}{alone}"]


def _advice(answer: Mapping[str, Any]) -> str:
    """What to build and what ties with it; what is extrapolated is on the page."""
    said = answer["sentences"]
    return " ".join(said[:-1] if answer["beyond"] and answer["choice"] else said[:1] if answer["beyond"] else said)


def missing_reasons(directory: Path) -> list[str]:
    """One line for every lease of plan/plan.json with runs that have no record."""
    lines, results = [], Results.at(directory)
    for lease in json.loads(results.plan_document.read_bytes())["leases"]:
        written = (results.manifests / lease["lease"]).glob(f"{lease['run_set']}.*.json")
        path = max(written, key=lambda path: int(path.name.split(".")[1]), default=None)
        if path is None:
            lines.append(f"{lease['lease']}: {lease['runs']} runs: not measured yet")
            continue
        try:
            manifest = json.loads(path.read_bytes())
        except ValueError as error:
            raise RecordError(f"{path}: not a manifest ({error}); delete it and run again") from error
        if manifest["missing"]:
            why = manifest["reason"] or "the driver did not get to them"
            lines.append(f"{manifest['lease']}: {len(manifest['missing'])} of {manifest['runs']} runs: {why}")
    return lines
