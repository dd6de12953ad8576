"""Predicts the published studies and writes what explanation/predicted-studies.md shows of it: `make study`.

Tables of both scores, a picture of each study, and the public rows that the model is calibrated with and held against. With
`--replay` (`make study ARGS=--replay`), twenty cells are replayed instead, to check the simulation with real collectives.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from tests.public_rows import Errors, Row, held_out, rows
from tests.throughput_ratios import RatioErrors, of_rows

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "predicted-studies.md"
CAMPAIGNS = ("falcon-predicted", "faster-predicted", "bitfusion-predicted", "faster-grace")
STUDIES = {
    "falcon": "the Falcon study",
    "faster": "the study of FASTER",
    "bitfusion": "Dell EMC's and Bitfusion's article",
}
GIVEN = ("falcon.f11.bertlarge", "faster.f5.drop.2nodes")
"""The claims that the second score is conditioned on (decision 52)."""
_NEAR = {"inside": "inside", "near": "within 10 %", "off": "off"}
_WIDEST = 2.6


def main() -> None:
    """Predict, print the scores, and write tables and pictures; or replay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replay", action="store_true", help="replay twenty cells, and compare them with predictions")
    if parser.parse_args().replay:
        from tests.benchmarks.study import replayed

        programs = replayed(Path("results"))
        off = sorted(100 * abs(each - 1) for program in programs for each in program)
        print(
            f"{len(off)} replayed cells: the simulation is off by {off[len(off) // 2]:.1f} % (median), at most {off[-1]:.1f} %; "
            f"between compositions, {RatioErrors.of(programs)}"
        )
        return
    first, second = _held(), _held(*GIVEN)
    known = list(rows())
    text = PAGE.read_text(encoding="utf-8")
    parts = {"claims": claims_table(first, second), "rows": rows_table(known, first)}
    for name, part in parts.items():
        begin, end = f"<!-- {name}: written by make study -->\n", f"<!-- end of {name} -->\n"
        before, rest = text.split(begin)
        text = f"{before}{begin}{part}{end}{rest.split(end)[1]}"
    PAGE.write_text(text, encoding="utf-8")
    for study, named in STUDIES.items():
        shown = [claim for claim in scored(first) if claim["document"] == study and _scale(claim)]
        picture(PAGE.with_name(f"predicted-{study}.svg"), named, shown)
    print(f"From inputs alone: {first['score']}.\nConditioned on one claim a study: {second['score']}.\n{PAGE}")


def _held(*given: str) -> Mapping[str, Any]:
    """The claims of all studies beside predictions; given: claims that these are conditioned on."""
    files = [str(ROOT / "config" / "campaigns" / f"{name}.yaml") for name in CAMPAIGNS]
    options = [part for claim in given for part in ("--given", claim)]
    command = ["campaign", "published", "--predict", *files, *options, "--format", "json"]
    said: Mapping[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return said


def scored(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The claims that count, each once, by the first campaign that reaches it."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for claim in said["claims"]:
        if claim["near"]:
            found.setdefault((claim["document"], claim["id"]), claim)
    return list(found.values())


def claims_table(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """One row a claim with both scores, and what does not count."""
    learned = {claim["id"]: claim for claim in scored(second)}
    lines = ["| Claim | Published | Predicted, with 80 % | From inputs alone | Conditioned |", "|---|---|---|---|---|"]
    for claim in scored(first):
        now = learned.get(claim["id"])
        given = "given" if claim["id"] in GIVEN else f"{now['here']}: {_near(now)}" if now else ""
        lines.append(
            f"| {claim['says']} ({claim['document']}, {claim['where']}) | {claim['published'] or 'a direction'} | {claim['here']} "
            f"| {_near(claim)} | {given} |"
        )
    known = {claim["id"]: claim for claim in first["claims"] if claim["verdict"] == "by construction"}
    constructed = [f"- {c['says']} ({c['document']}): {c['reason']}" for c in known.values()]
    return "\n".join(
        [
            *lines,
            "",
            f"From inputs alone: {first['score']}. {_coverage(first)}",
            "",
            f"Conditioned on one claim a study: {second['score']}. {_coverage(second)}",
            "",
            "Not counted, because no prediction could fail:",
            "",
            *constructed,
            "",
        ]
    )


def _coverage(said: Mapping[str, Any]) -> str:
    held, printed = (sum(claim["covered"][part] for claim in scored(said)) for part in (0, 1))
    return f"The 80 % intervals hold {held} of {printed} printed numbers."


def _near(claim: Mapping[str, Any]) -> str:
    off = claim["off_pct"]
    sure = ", reversed with confidence" if claim["direction"] and claim["confident"] else ""
    if off and off >= 0.05:
        return (
            f"off by {off:.1f} %{sure}" if claim["near"] == "off" else f"{_NEAR[claim['near']]}, {off:.1f} % off{sure}"
        )
    return f"{_NEAR[claim['near']]}{sure}"


def rows_table(known: Sequence[Row], said: Mapping[str, Any]) -> str:
    """The calibration rows, the errors of both kinds of rows, and those of ratios between compositions."""
    lines = [
        "| Model | System | Precision | Batch | GPUs | Published | Predicted | Off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in held_out(list(known), "calibrate"):
        d = row.document
        lines.append(
            f"| {d['model']} ({d['program']}) | {d['system']} | {d['precision']} | {d['batch']} | {row.gpus} "
            f"| {row.published:,.0f} | {row.predicted:,.0f} | {100 * row.off:+.1f} % |"
        )
    sentences = []
    for use, words in (("calibrate", "Calibration rows"), ("hold_out", "Rows that were not used")):
        e = Errors.of(held_out(list(known), use))
        sentences.append(
            f"{words}: {e.count} numbers, mean error {100 * e.mean:.1f} %, bias {100 * e.bias:+.1f} %; the 80 % intervals hold "
            f"{100 * e.covered:.0f} %."
        )
    printed = [c for c in scored(said) if c["figure"] in ("overhead", "node-spread") and c["covered"][1]]
    off = ", ".join(f"{claim['off_pct']:.1f}" for claim in sorted(printed, key=lambda claim: float(claim["off_pct"])))
    ratios = (
        "Ratios of throughput between two compositions, of rows that were not used (one GPU or several, with the same program, "
        f"batch and precision): {of_rows(known)}.\nOf the claims, {len(printed)} print such a ratio: {off} % off."
    )
    return "\n".join([*lines, "", *sentences, "", ratios, ""])


def _scale(claim: Mapping[str, Any]) -> float | None:
    """The number that everything of a claim is shown relative to: an end of what it accepts. None: it has none, or 0."""
    return max((end for end in claim["accept"] if end), default=None) if claim["values"] else None


def picture(path: Path, named: str, claims: Sequence[Mapping[str, Any]]) -> None:
    """Predicted values with their 80 % intervals beside what the document's words allow, relative to an end of that."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "predicted-studies", "font.size": 8})
    figure, axes = plt.subplots(figsize=(9.6, 0.3 * len(claims) + 1.0), layout="constrained")
    for row, claim in enumerate(reversed(claims)):
        scale = _scale(claim)
        assert scale is not None
        low, high = claim["accept"]
        left, right = -1.0 if low is None else low / scale, _WIDEST if high is None else high / scale
        axes.barh(row, max(right - left, 0.012), left=left, height=0.62, color="#cfe3f5", zorder=1)
        ends = [min(max(end / scale, -0.2), _WIDEST) for end in claim["bounds"]]
        axes.plot(ends, [row] * len(ends), color="#1f5fa8", linewidth=1.2, zorder=2)
        for value in _finite(claim["values"]):
            shown = min(max(value / scale, -0.2), _WIDEST - 0.03)
            marker = "o" if shown == value / scale else "<" if value / scale < shown else ">"
            axes.plot(shown, row, marker, markersize=5, color="#1f5fa8", zorder=3)
    axes.axvline(1.0, color="#888888", linewidth=0.8, zorder=2)
    axes.set_yticks(range(len(claims)), [_label(claim) for claim in reversed(claims)])
    axes.set(xlim=(-0.25, _WIDEST), ylim=(-0.7, len(claims) - 0.3))
    axes.set_xlabel(f"predicted, with 80 %; bar: what the words of {named} allow; 1: an end of it", loc="right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _finite(values: Sequence[float]) -> Iterator[float]:
    return (value for value in values if math.isfinite(value))


def _label(claim: Mapping[str, Any]) -> str:
    words = claim["says"].split(";")[0]
    return words if len(words) < 78 else words[:75] + " …"


if __name__ == "__main__":
    main()
