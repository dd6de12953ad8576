"""What one run or one log gave, for the terminal."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from campaign.cli.print import print_rows
from campaign.run.single_run import Found
from campaign.workloads.parsers import Curve, Matrix

_LOOK_S = 0.5
_TAIL_BYTES = 4096
_WIDTH = 70


@contextmanager
def following(name: str, log: Path) -> Iterator[None]:
    """Shows that something is under way, and the last line that it printed; nothing where nobody looks."""
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    started = time.monotonic()
    with console.status(f"{name} is starting") as status:

        def look() -> None:
            while not ended.wait(_LOOK_S):
                line = _last_line(log)
                status.update(Text(f"{name}: {time.monotonic() - started:.0f} s  {line}"))

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _last_line(log: Path) -> str:
    from campaign.workloads.logs import plain

    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = plain(file.read()).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:_WIDTH] for line in reversed(lines) if line.strip()), "")


def print_found(found: Found) -> None:
    """Status first, then what was read, then where the log is."""
    console = Console(highlight=False, soft_wrap=True)
    outcome, document = found.outcome, found.document()
    console.print(
        Text(f"{found.workload}: {outcome.status}", style="bold green" if outcome.status == "ok" else "bold red")
    )
    if outcome.failure:
        console.print(Text(outcome.failure.reason))
        for line in outcome.failure.evidence.splitlines()[-10:]:
            console.print(Text(f"  {line}"))
    for hint in found.hints:
        console.print(Text(hint))
    if found.command:
        console.print(Text(shlex.join(found.command)))
    console.print()
    rows: dict[str, Any] = {"throughput_per_s": outcome.throughput_per_s, "wall_s": found.wall_s}
    rows |= {f"step {name}": value for name, value in document.get("steps", {}).items()}
    rows |= {f"phase {name}_s": value for name, value in outcome.phases_s.items()}
    rows |= dict(sorted(outcome.metrics.items()))
    told = [{"what": name, "value": _number(value)} for name, value in rows.items() if value is not None]
    if told:
        print_rows("Read", told)
    if found.reading is not None:
        for name, matrix in found.reading.matrices.items():
            # Not as the table's own title, which a narrow table would break in pieces.
            console.print(Text(f"{name} ({matrix.unit})", style="bold"))
            print_rows("", _matrix_rows(matrix))
        if found.reading.curves:
            print_rows("By message size", _curve_rows(found.reading.curves))
    for flag in outcome.flags:
        console.print(Text(f"note: {flag}"))
    if found.software:
        packages = found.software.get("packages", {})
        words = [
            f"{key} {value}"
            for key, value in found.software.items()
            if isinstance(value, str) and key != "schema_version"
        ]
        console.print(Text(f"software: {', '.join(words)}" + (f", {len(packages)} packages" if packages else "")))
    if found.log:
        console.print(Text(f"log: {found.log}"))


def _matrix_rows(matrix: Matrix) -> list[dict[str, str]]:
    return [
        {"": row, **{column: _number(value) for column, value in zip(matrix.columns, values, strict=True)}}
        for row, values in zip(matrix.rows, matrix.values, strict=True)
    ]


def _curve_rows(curves: Any) -> list[dict[str, str]]:
    """One row a size, one column a curve."""
    named: dict[str, Curve] = dict(curves)
    sizes = sorted({size for curve in named.values() for size, _ in curve.points})
    values = {name: dict(curve.points) for name, curve in named.items()}
    return [
        {"size_bytes": str(size), **{_column(name, named[name]): _number(values[name].get(size)) for name in named}}
        for size in sizes
    ]


def _column(name: str, curve: Curve) -> str:
    return name if name.endswith(curve.unit) else f"{name} ({curve.unit})"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
