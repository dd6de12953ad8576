"""Ratios of throughput between two compositions: predicted over measured, of public tables and of what was measured here.

`python -m tests.throughput_ratios [CAMPAIGN.yaml RESULTS]`; RESULTS is the directory of the campaign, such as results/demo.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from campaign.config.resolve import load_campaign
from campaign.insight.prediction import predict
from tests.public_rows import Row, held_out, rows


@dataclass(frozen=True)
class RatioErrors:
    """By how much predicted ratios are off: parts of the measured ones."""

    off: tuple[float, ...]

    @classmethod
    def of(cls, programs: Iterable[Sequence[float]]) -> RatioErrors:
        """programs: of each, predicted over measured throughput on every composition. Each two of these have a ratio."""
        return cls(tuple(abs(b / a - 1) for program in programs for a, b in combinations(program, 2)))

    def pct(self, share: float) -> float:
        """The error that this share of all does not exceed."""
        return 100 * float(np.quantile(self.off, share)) if self.off else float("nan")

    def __str__(self) -> str:
        return (
            f"{len(self.off)} ratios, median error {self.pct(0.5):.1f} %, 90th percentile {self.pct(0.9):.1f} %, largest "
            f"{self.pct(1):.1f} %"
        )


def of_rows(known: Sequence[Row], use: str = "hold_out") -> RatioErrors:
    """Of public tables: programs on one GPU, which is given, and on several."""
    programs: dict[str, list[float]] = {}
    for row in held_out(list(known), use):
        programs.setdefault(json.dumps(row.document), [1.0]).append(row.predicted / row.published)
    return RatioErrors.of(programs.values())


def of_results(campaign: Path, results: Path, where: str | None = None) -> Mapping[str, list[float]]:
    """Predicted over measured throughput by program with its batch and precision. results: of this campaign."""
    command = ["campaign", "sql", "select cell_id, mean from cells where n_ok > 0", str(results), "--format", "json"]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    means = {row["cell_id"]: row["mean"] for row in said}
    programs: dict[str, list[float]] = {}
    for each in predict(load_campaign(campaign), where, replayed=True).cells:
        cell, rates = each.cell, each.throughput_per_s
        if rates and cell.id in means:
            program = f"{cell.workload} batch {cell.batch} {cell.precision} {sorted(cell.options.items())}"
            programs.setdefault(program, []).append(rates[0] / means[cell.id])
    return programs


def main() -> None:
    """Print the errors of public tables, and of a measured campaign where one is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", nargs="*", type=Path, metavar="CAMPAIGN.yaml RESULTS")
    measured = parser.parse_args().measured
    known = list(rows())
    for use in ("calibrate", "hold_out"):
        print(f"public tables, {use}: {of_rows(known, use)}")
    if measured:
        print(f"{measured[1]}: {RatioErrors.of(of_results(*measured).values())}")


if __name__ == "__main__":
    main()
