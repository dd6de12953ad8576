"""Prints the figures of speed as a table: `python -m tests.benchmarks [NAME...]`."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.benchmarks.figure import MORE, Figure, Skipped, keep_ratios, last_ratios
from tests.benchmarks.project import ROOT, temporary_project
from tests.benchmarks.suite import BENCHMARKS

_QUIET_LOAD = 0.5


def main() -> int:
    """Run the benchmarks that are named, or all, and keep their ratios; with --strict, 1 where a figure is over its limit."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Figures of speed, with their limits."
    )
    known = "; ".join(f"{name}: {(function.__doc__ or '').strip()}" for name, function in BENCHMARKS.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run; all when left out. {known}")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a figure is over its limit")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(BENCHMARKS)}")
    console = Console(stderr=True)
    load = os.getloadavg()[0]
    if load > _QUIET_LOAD:
        console.print(f"[yellow]The machine is busy (load {load:.1f}): times will be longer than they are.[/]")
    figures: list[Figure] = []
    for name in asked.names or BENCHMARKS:
        with console.status(f"{name} ..."), temporary_project() as project:
            try:
                figures += BENCHMARKS[name](project)
            except Skipped as skipped:
                console.print(f"[yellow]{name}: skipped: {escape(str(skipped))}[/]")
    last = last_ratios()
    Console(width=None if sys.stdout.isatty() else 150).print(table(figures, last))
    for figure in figures:
        before = last.get(figure.name)
        if figure.ratio is not None and before is not None and figure.ratio > MORE * before:
            console.print(f"[yellow]{escape(figure.name)}: {figure.ratio / before - 1:.0%} above the last one[/]")
    keep_ratios(figures, commit())
    return int(asked.strict and not all(figure.holds for figure in figures))


def commit() -> str:
    """The commit that is measured, with a `+` where files differ from it; `none` outside of a repository."""
    describe = ["git", "describe", "--always", "--abbrev=8", "--dirty=+", "--exclude=*"]
    return subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "none"


def table(figures: list[Figure], last: Mapping[str, float]) -> Table:
    """One row a figure. `ratio` is of the measured value to its floor, else to its limit; `cpu` counts all processes."""
    result = Table(title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for column in ("figure", "measured", "limit", "verdict", "cpu", "floor", "ratio", "last", "floor of"):
        result.add_column(column, justify="left" if column in ("figure", "verdict", "floor of") else "right")
    for figure in figures:
        floor, limited = figure.floor, not math.isinf(figure.limit)
        result.add_row(
            figure.name,
            f"{figure.measured:.3g} {figure.unit}",
            f"{figure.limit:g} {figure.unit}" if limited else "",
            ("[green]holds[/]" if figure.holds else "[red]over[/]") if limited else "",
            "" if figure.cpu_s is None else f"{figure.cpu_s:.3g} {figure.unit}",
            "" if floor is None else f"{floor:.3g} {figure.unit}",
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            f"{last[figure.name]:.2f}" if figure.name in last else "",
            figure.floor_of,
        )
    return result


if __name__ == "__main__":
    sys.exit(main())
