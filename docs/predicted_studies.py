"""Writes table and picture of explanation/predicted-studies.md from results of `make study`: `python -m docs.predicted_studies`."""

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

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "predicted-studies.md"
PICTURE = PAGE.with_suffix(".svg")
STUDIES = ("falcon", "faster", "bitfusion")
BEGIN, END = "<!-- table: written by docs/predicted_studies.py -->\n", "<!-- end of table -->\n"
_NEAR = {"inside": "inside", "near": "within 10 %", "off": "off"}
_WIDEST = 3.0


def main() -> None:
    """Read the claims beside the results, and write both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="?", default="results", help="directory of all results")
    results = parser.parse_args().results
    campaigns = [str(ROOT / "config" / "campaigns" / f"{name}-predicted.yaml") for name in STUDIES]
    command = ["campaign", "published", *campaigns, "--results", results, "--format", "json"]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    scored = [claim for claim in said["claims"] if claim["near"]]
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}{table(scored)}\n{said['score']}.\n{END}{after}", encoding="utf-8")
    picture([claim for claim in scored if printed(claim) is not None])


def table(claims: Sequence[Mapping[str, Any]]) -> str:
    """One row a claim; below it one for each way that the document leaves open."""
    lines = ["| Claim | Published | Predicted | In range? |", "|---|---|---|---|"]
    for claim in claims:
        several = len(claim["cases"]) > 1
        here = "" if several else claim["here"]
        off = "" if several else _off(claim["cases"][0])
        number = claim["published"] or "a direction"
        lines.append(
            f"| {claim['says']} ({claim['document']}, {claim['where']}) | {number} | {here} | {_NEAR[claim['near']]}{off} |"
        )
        for case in claim["cases"] if several else ():
            counts = "" if case["stated"] else ", does not count"
            lines.append(f"| … {case['words']}{counts} | | {case['here']} | {case['verdict']}{_off(case)} |")
    return "\n".join(lines) + "\n"


def _off(case: Mapping[str, Any]) -> str:
    return f", {case['off_pct']:.0f} % off" if case["off_pct"] else ""


def printed(claim: Mapping[str, Any]) -> float | None:
    """The number that everything of a claim is shown relative to: an end of what it accepts. None: it has none, or 0."""
    ends = [end for end in claim["accept"] if end]
    return max(ends, default=None) if all(case["values"] for case in claim["cases"]) else None


def picture(claims: Sequence[Mapping[str, Any]]) -> None:
    """Predicted values beside the range that the document's words allow, relative to its upper end, or to its lower one alone."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "predicted-studies", "font.size": 8})
    figure, axes = plt.subplots(figsize=(9.6, 0.26 * len(claims) + 1.1), layout="constrained")
    for row, claim in enumerate(reversed(claims)):
        scale = printed(claim)
        assert scale is not None
        low, high = ((-1.0 if end is None else end / scale) for end in claim["accept"])
        high = _WIDEST if claim["accept"][1] is None else high
        axes.barh(row, max(high - low, 0.012), left=low, height=0.62, color="#cfe3f5", zorder=1)
        for value, stated in points(claim):
            shown = min(max(value / scale, -0.2), _WIDEST - 0.03)
            marker = "o" if shown == value / scale else "<" if value / scale < shown else ">"
            face = "#1f5fa8" if stated else "white"
            axes.plot(shown, row, marker, markersize=5, markerfacecolor=face, markeredgecolor="#1f5fa8", zorder=3)
    axes.axvline(1.0, color="#888888", linewidth=0.8, zorder=2)
    axes.set_yticks(range(len(claims)), [label(claim) for claim in reversed(claims)])
    axes.set(
        xlim=(-0.25, _WIDEST),
        ylim=(-0.7, len(claims) - 0.3),
        xlabel="predicted, relative to an end of what the document's words allow (bar)",
    )
    axes.spines[["top", "right"]].set_visible(False)
    mark = {"linestyle": "none", "markersize": 5, "markeredgecolor": "#1f5fa8"}
    axes.plot([], [], "o", markerfacecolor="#1f5fa8", label="as the document states, or leaves open", **mark)
    axes.plot([], [], "o", markerfacecolor="white", label="another way", **mark)
    axes.legend(loc="upper center", bbox_to_anchor=(0.3, 1.0 + 0.9 / len(claims) + 0.03), ncols=2, frameon=False)
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)


def points(claim: Mapping[str, Any]) -> Iterator[tuple[float, bool]]:
    """Least and most of each case, and whether the document states it."""
    for case in sorted(claim["cases"], key=lambda case: case["stated"]):
        yield from ((value, case["stated"]) for value in case["values"] if math.isfinite(value))


def label(claim: Mapping[str, Any]) -> str:
    words = claim["says"].split(";")[0]
    return f"{words if len(words) < 78 else words[:75] + ' …'} [{claim['document']}]"


if __name__ == "__main__":
    main()
