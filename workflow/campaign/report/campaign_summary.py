"""One screen at the end of a campaign: what was measured, what was found, where to read on."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

from campaign.errors import RecordError
from campaign.paths import Results
from campaign.report.figure import in_page_order

_ADVICE = 3
_FINDINGS = 1  # of each figure; the page has all of them


def summary(directory: Path) -> str:
    """Counts, the first finding of every figure, what to build, and the path of the report, from a results directory."""
    results = Results.at(directory)
    with (results.tables / "cells.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    names = ("planned", "ok", "failed", "implied", "missing")
    runs = Counter({name: sum(int(float(row[f"n_{name}"])) for row in cells) for name in names})
    implied = f"{runs['implied']} implied, " if runs["implied"] else ""
    lines = [
        "",
        f"{len(cells)} cells, {runs['planned']} runs: {runs['ok']} measured, {runs['failed']} failed, {implied}"
        f"{runs['missing']} missing",
    ]
    drawings = {path.stem: json.loads(path.read_bytes()) for path in results.figures.glob("*.json")}
    for drawing in in_page_order(drawings):
        if drawing["shown"] and drawing["findings"]:
            lines.append(f"\n{drawing['title']}")
            lines += [f"  {finding}" for finding in drawing["findings"][:_FINDINGS]]
    answers = json.loads((results.recommendation / "recommendation.json").read_bytes())["answers"]
    advice = [each["sentences"][0] for each in answers if each["sentences"]]
    if advice:
        lines += ["\nWhat to build", *(f"  {sentence}" for sentence in advice[:_ADVICE])]
    lines.append(f"\nReport: {results.report}")
    return "\n".join(lines)


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
