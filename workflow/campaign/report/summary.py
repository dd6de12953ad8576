"""One screen at the end of a campaign: what was measured, what was found, where to read on."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from campaign.errors import RecordError
from campaign.report.figure_names import in_page_order

_ADVICE = 3
_FINDINGS = 1  # of each figure; the page has all of them


def summary(tables: Path, figures: Path, recommendation: Path, report: Path) -> str:
    """Counts, the first finding of every figure, what to build, and the path of the report."""
    with (tables / "cells.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    names = ("planned", "ok", "failed", "implied", "missing")
    runs = Counter({name: sum(int(float(row[f"n_{name}"])) for row in cells) for name in names})
    implied = f"{runs['implied']} implied, " if runs["implied"] else ""
    lines = [
        "",
        f"{len(cells)} cells, {runs['planned']} runs: {runs['ok']} measured, {runs['failed']} failed, {implied}"
        f"{runs['missing']} missing",
    ]
    drawings = {path.stem: json.loads(path.read_bytes()) for path in figures.glob("*.json")}
    for name in in_page_order(drawings):
        drawing = drawings[name]
        if drawing["shown"] and drawing["findings"]:
            lines.append(f"\n{drawing['title']}")
            lines += [f"  {finding}" for finding in drawing["findings"][:_FINDINGS]]
    advice = [each["sentences"][0] for each in json.loads(recommendation.read_bytes())["answers"] if each["sentences"]]
    if advice:
        lines += ["\nWhat to build", *(f"  {sentence}" for sentence in advice[:_ADVICE])]
    lines.append(f"\nReport: {report}")
    return "\n".join(lines)


def missing_reasons(manifests: Iterable[Path]) -> list[str]:
    """One line for every lease with runs that have no record."""
    lines = []
    for path in manifests:
        try:
            manifest = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RecordError(f"{path}: not a manifest ({error}); delete it, it is made again") from error
        if manifest["missing"]:
            why = manifest["reason"] or "the driver did not get to them"
            lines.append(f"{manifest['lease']}: {len(manifest['missing'])} of {manifest['runs']} runs: {why}")
    return lines
