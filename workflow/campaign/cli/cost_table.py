"""The table of costs at the end of a plan and of a dry run, with one row per configuration."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.cli.terminal import MANY, TextTable
from campaign.plan.plan import Plan, PlannedLease
from campaign.spec.lease_plan import LeaseCharge

_SLURM = ("partition", "time\nlimit", "gres")
_COLUMNS = ("configuration", "leases", "runs", "hosts", "devices", "idle", *_SLURM, "composing", "all\nleases",
            "device\nhours", "host\nhours", "price")  # fmt: skip
_SPARE = ("runs", "composing", "idle")


def cost_table(plan: Plan) -> TextTable:
    """Build the cost table of a plan, with one row per configuration to measure and a total.

    It has the resources that leases request from Slurm, what they hold, and what they cost.
    """
    groups: dict[str, list[tuple[PlannedLease, LeaseCharge]]] = {}
    for lease in plan.leases:
        if lease.charge is not None:
            groups.setdefault(lease.configuration.name, []).append((lease, lease.charge))
    rows = [_row(name, group) for name, group in list(groups.items())[:MANY]]
    if more := len(groups) - len(rows):
        rows.append((f"... and {more} more", *[""] * (len(_COLUMNS) - 1)))
    if rows:
        leases = [lease for group in groups.values() for lease, _ in group]
        total = ["total", len(leases), sum(lease.missing for lease in leases), *[""] * (3 + len(_SLURM))]
        times = _times(leases)
        rows.append((*total, *times, _hours(plan.device_hours), _hours(plan.host_hours), _price(plan.price)))
    by_slurm = any(system.launcher == "slurm" for system in plan.campaign.systems.values())
    currency = plan.campaign.currency
    left_out = {*(() if by_slurm else _SLURM), *(() if currency else ("price",))}
    kept = [n for n, name in enumerate(_COLUMNS) if name not in left_out]
    columns = [f"price\n{currency}" if _COLUMNS[n] == "price" else _COLUMNS[n] for n in kept]
    title = "Cost: what is held from composing to release"
    return TextTable(title, columns, [[row[n] for n in kept] for row in rows], columns[1:], spare=_SPARE)


def _row(name: str, group: Sequence[tuple[PlannedLease, LeaseCharge]]) -> tuple[object, ...]:
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
        _limit(max(charge.time_limit_min or 0 for charge in charges)),
        first.gres or "none",
        *_times([lease for lease, _ in group]),
        _hours(_sum([charge.device_hours for charge in charges])),
        _hours(_sum([charge.host_hours for charge in charges])),
        _price(_sum([charge.price for charge in charges])),
    )


def _times(leases: Sequence[PlannedLease]) -> tuple[str, str]:
    """Return the duration of composing, and the whole duration, of leases one after the other."""
    return (
        _brief(_sum([lease.expected.parts["composing"] for lease in leases])),
        _brief(_sum([lease.expected_s for lease in leases])),
    )


def _brief(seconds: float | None) -> str:
    """Format a duration with three digits, as in '2.05 min'."""
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return "under 1 s"  # also without a fabric, since hosts are checked and locked in any case
    unit, size = ("s", 1) if seconds < 100 else ("min", 60) if seconds < 6000 else ("h", 3600)
    return f"{seconds / size:.3g} {unit}"


def _limit(minutes: int) -> str:
    """Format a time limit in minutes as sbatch takes it."""
    days, rest = divmod(minutes, 24 * 60)
    return f"{f'{days}-' if days else ''}{rest // 60:02d}:{rest % 60:02d}:00"


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum of the values, or None if any value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _price(price: float | None) -> str:
    """Format a price, or 'unknown' for None."""
    return "unknown" if price is None else f"{price:.2f}"


def _hours(hours: float | None) -> str:
    """Format a number of hours, or 'unknown' for None."""
    return "unknown" if hours is None else f"{hours:.4g}"
