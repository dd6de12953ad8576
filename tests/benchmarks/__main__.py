"""Measure the figures of speed and print them as a table: `python -m tests.benchmarks [NAME...]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.benchmarks.figure import MAX_GROWTH, Figure, Skipped, keep_ratios, read_last_ratios
from tests.benchmarks.project import ROOT, temporary_project
from tests.benchmarks.suite import BENCHMARKS

_MAX_QUIET_LOAD = 0.5


def main() -> int:
    """Run the named benchmarks, or all, and keep their ratios. With --strict, return 1 if a ratio has grown."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Measure figures of speed as ratios to bare tools."
    )
    benchmarks = "; ".join(f"{name}: {(function.__doc__ or '').strip()}" for name, function in BENCHMARKS.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run; default: all. {benchmarks}")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a ratio is 10 %% above the last kept one")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(BENCHMARKS)}")
    console = Console(stderr=True)
    load = os.getloadavg()[0]
    if load > _MAX_QUIET_LOAD:
        console.print(f"[yellow]The machine is busy (load {load:.1f}): times are longer than on an idle one.[/]")
    figures: list[Figure] = []
    for name in arguments.names or BENCHMARKS:
        with console.status(f"{name} ..."), temporary_project() as project:
            try:
                figures += BENCHMARKS[name](project)
            except Skipped as skipped:
                console.print(f"[yellow]{name}: skipped: {escape(str(skipped))}[/]")
    last = read_last_ratios()
    Console(width=None if sys.stdout.isatty() else 150).print(build_table(figures, last))
    grown = [figure for figure in figures if figure.ratio > MAX_GROWTH * last.get(figure.name, figure.ratio)]
    for figure in grown:
        growth = figure.ratio / last[figure.name] - 1
        console.print(f"[yellow]{escape(figure.name)}: {growth:.0%} above the last kept ratio[/]")
    keep_ratios(figures, describe_commit())
    return int(arguments.strict and bool(grown))


def describe_commit() -> str:
    """Return the measured commit, with a `+` if files differ from it, or `none` outside of a repository."""
    describe = ["git", "describe", "--always", "--abbrev=8", "--dirty=+", "--exclude=*"]
    return subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "none"


def build_table(figures: list[Figure], last: Mapping[str, float]) -> Table:
    """Build a table with one row per figure."""
    table = Table(title=f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for column in ("figure", "value", "floor", "ratio", "last", "floor of"):
        table.add_column(column, justify="left" if column in ("figure", "floor of") else "right")
    for figure in figures:
        table.add_row(
            figure.name,
            f"{figure.value:.3g} {figure.unit}",
            f"{figure.floor:.3g} {figure.unit}",
            f"{figure.ratio:.2f}",
            f"{last[figure.name]:.2f}" if figure.name in last else "",
            figure.floor_name,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
