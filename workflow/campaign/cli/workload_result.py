"""The result of one run, or of one saved log, on the terminal."""

from __future__ import annotations

import shlex
from typing import Any

from campaign.cli.terminal import Table, say, show, show_rows
from campaign.run.try_workload import Found
from campaign.workloads.parsers import Curve


def show_result(found: Found) -> None:
    """Print the status first, then what was read, then where the log is."""
    outcome = found.outcome
    say(f"{found.workload}: {outcome.status}", "bold green" if outcome.status == "ok" else "bold red")
    if outcome.failure:
        say(outcome.failure.reason)
        for line in outcome.failure.evidence.splitlines()[-10:]:
            say(f"  {line}")
    for hint in found.hints:
        say(hint)
    if found.command:
        say(shlex.join(found.command))
    say("")
    rows: dict[str, Any] = {"throughput_per_s": outcome.throughput_per_s, "wall_s": found.wall_s}
    rows |= {f"step {name}": value for name, value in found.document().get("steps", {}).items()}
    rows |= {f"phase {name}_s": value for name, value in outcome.phases_s.items()}
    rows |= dict(sorted(outcome.metrics.items()))
    show(Table("Read", ["what", "value"], [(name, _number(v)) for name, v in rows.items() if v is not None]))
    if found.reading is not None:
        for name, matrix in found.reading.matrices.items():
            # Not as the table's own title, which a narrow table would break in pieces.
            say(f"{name} ({matrix.unit})", "bold")
            lines = zip(matrix.rows, matrix.values, strict=True)
            show(Table("", ["", *matrix.columns], [(row, *map(_number, values)) for row, values in lines]))
        if found.reading.curves:
            show_rows("By message size", _curve_rows(dict(found.reading.curves)))
    for flag in outcome.flags:
        say(f"note: {flag}")
    if found.software:
        packages = found.software.get("packages", {})
        words = [
            f"{key} {value}"
            for key, value in found.software.items()
            if isinstance(value, str) and key != "schema_version"
        ]
        say(f"software: {', '.join(words)}" + (f", {len(packages)} packages" if packages else ""))
    if found.log:
        say(f"log: {found.log}")


def _curve_rows(curves: dict[str, Curve]) -> list[dict[str, str]]:
    """One row a size, one column a curve."""
    sizes = sorted({size for curve in curves.values() for size, _ in curve.points})
    values = {name: dict(curve.points) for name, curve in curves.items()}
    columns = {name: name if name.endswith(curve.unit) else f"{name} ({curve.unit})" for name, curve in curves.items()}
    return [
        {"size_bytes": str(size), **{columns[name]: _number(values[name].get(size)) for name in curves}}
        for size in sizes
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
