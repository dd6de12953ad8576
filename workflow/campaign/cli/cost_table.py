"""The table of costs at the end of a plan and of a dry run, with one row per configuration."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.cli.terminal import MAX_TERMINAL_ROWS, TextTable
from campaign.plan.plan import Plan, PlannedLease
from campaign.spec.lease_plan import LeaseCharge

_SLURM_COLUMNS = ("partition", "time\nlimit", "gres")
_COLUMNS = ("configuration", "leases", "runs", "hosts", "devices", "idle", *_SLURM_COLUMNS, "composing", "all\nleases",
            "device\nhours", "host\nhours", "price")  # fmt: skip
_OPTIONAL_COLUMNS = ("runs", "composing", "idle")


def build_cost_table(plan: Plan) -> TextTable:
    """Build the cost table of a plan, with one row per configuration to measure and a total.

    The columns are the resources that leases request from Slurm, the hosts and devices that they hold, and the cost.
    """
    groups: dict[str, list[tuple[PlannedLease, LeaseCharge]]] = {}
    for lease in plan.leases:
        if lease.charge is not None:
            groups.setdefault(lease.configuration.name, []).append((lease, lease.charge))
    rows = [_build_row(name, group) for name, group in list(groups.items())[:MAX_TERMINAL_ROWS]]
    if hidden_count := len(groups) - len(rows):
        rows.append((f"... and {hidden_count} more", *[""] * (len(_COLUMNS) - 1)))
    if rows:
        leases = [lease for group in groups.values() for lease, _ in group]
        total = ["total", len(leases), sum(lease.missing for lease in leases), *[""] * (3 + len(_SLURM_COLUMNS))]
        times = _format_durations(leases)
        rows.append(
            (
                *total,
                *times,
                _format_hours(plan.device_hours),
                _format_hours(plan.host_hours),
                _format_price(plan.price),
            )
        )
    by_slurm = any(system.launcher == "slurm" for system in plan.campaign.systems.values())
    currency = plan.campaign.currency
    hidden_columns = {*(() if by_slurm else _SLURM_COLUMNS), *(() if currency else ("price",))}
    column_indexes = [n for n, name in enumerate(_COLUMNS) if name not in hidden_columns]
    columns = [f"price\n{currency}" if _COLUMNS[n] == "price" else _COLUMNS[n] for n in column_indexes]
    title = "Cost of the hosts and devices held, from composing to release"
    return TextTable(
        title,
        columns,
        [[row[n] for n in column_indexes] for row in rows],
        columns[1:],
        optional_columns=_OPTIONAL_COLUMNS,
    )


def _build_row(name: str, group: Sequence[tuple[PlannedLease, LeaseCharge]]) -> tuple[object, ...]:
    """Build the row of one configuration from its leases and their charges."""
    charges = [charge for _, charge in group]
    first = charges[0]
    return (
        name,
        len(group),
        sum(lease.missing for lease, _ in group),
        f"{first.hosts} + {first.donors}" if first.donors else first.hosts,
        f"{first.devices:g}",
        f"{first.devices_idle:g}",
        first.partition or "default",
        _format_time_limit(max(charge.time_limit_min or 0 for charge in charges)),
        first.gres or "none",
        *_format_durations([lease for lease, _ in group]),
        _format_hours(_sum_if_known([charge.device_hours for charge in charges])),
        _format_hours(_sum_if_known([charge.host_hours for charge in charges])),
        _format_price(_sum_if_known([charge.price for charge in charges])),
    )


def _format_durations(leases: Sequence[PlannedLease]) -> tuple[str, str]:
    """Return the sums of the composing times and of the whole durations of leases."""
    return (
        _format_duration(_sum_if_known([lease.expected.parts["composing"] for lease in leases])),
        _format_duration(_sum_if_known([lease.expected_s for lease in leases])),
    )


def _format_duration(seconds: float | None) -> str:
    """Format a duration with three digits, as in '2.05 min'."""
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return "under 1 s"  # Composing without a fabric takes time too, because hosts are checked and locked.
    unit, size = ("s", 1) if seconds < 100 else ("min", 60) if seconds < 6000 else ("h", 3600)
    return f"{seconds / size:.3g} {unit}"


def _format_time_limit(minutes: int) -> str:
    """Format a time limit in minutes as sbatch expects it: [DAYS-]HH:MM:SS."""
    days, minutes_of_day = divmod(minutes, 24 * 60)
    return f"{f'{days}-' if days else ''}{minutes_of_day // 60:02d}:{minutes_of_day % 60:02d}:00"


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    """Return the sum of the values, or None if any value is unknown."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) if len(known_values) == len(values) else None


def _format_price(price: float | None) -> str:
    """Format a price, or 'unknown' for None."""
    return "unknown" if price is None else f"{price:.2f}"


def _format_hours(hours: float | None) -> str:
    """Format a number of hours, or 'unknown' for None."""
    return "unknown" if hours is None else f"{hours:.4g}"
