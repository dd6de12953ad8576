"""The table that a plan and a dry run end in: what leases ask Slurm for, what composing takes, and what a site charges."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.cli.terminal import MANY, Table
from campaign.documents.lease_cost import LeaseCharge
from campaign.plan.cost.estimates import Estimate, Expected
from campaign.plan.plan import Plan, PlannedLease

_GROUPS = 20
_SLURM = ("partition", "time\nlimit", "gres")
_COLUMNS = (
    "lease",
    "runs",
    "hosts",
    "devices",
    "idle",
    *_SLURM,
    "composing",
    "expected",
    "device\nhours",
    "host\nhours",
)


def cost_table(plan: Plan) -> Table:
    """A row a lease that is to be measured, or one for all leases of a configuration where there are many; then the total."""
    leases = [(lease, lease.charge) for lease in plan.leases if lease.charge is not None]
    groups: dict[str, list[tuple[PlannedLease, LeaseCharge]]] = {}
    for lease, charge in leases:
        groups.setdefault(lease.name if len(leases) <= MANY else lease.configuration.name, []).append((lease, charge))
    shown = list(groups.items())[: _GROUPS if len(leases) > MANY else MANY]
    rows = [_row(name, group) for name, group in shown]
    if more := len(groups) - len(shown):
        rows.append((f"... and {more} more", *[""] * (len(_COLUMNS) - 1)))
    if rows:
        total = plan.forecast
        asked = [sum(lease.missing for lease, _ in leases), *[""] * (3 + len(_SLURM))]
        composing, whole = _brief(total.total.parts["composing"]), _brief(total.total.whole)
        rows.append(("total", *asked, composing, whole, _hours(total.device_s), _hours(total.host_s)))
    kept = [n for n, name in enumerate(_COLUMNS) if plan.campaign.system.launcher == "slurm" or name not in _SLURM]
    columns = [_COLUMNS[n] for n in kept]
    kept_rows = [[row[n] for n in kept] for row in rows]
    return Table(
        "Cost: what is held from composing to release",
        columns,
        kept_rows,
        columns[1:],
        spare=("expected", "runs", "idle"),
    )


def _row(name: str, group: Sequence[tuple[PlannedLease, LeaseCharge]]) -> tuple[object, ...]:
    charges = [charge for _, charge in group]
    first = charges[0]
    composing = group[0][0].expected.parts["composing"]
    if len(group) > 1:
        composing = Estimate(_sum([lease.expected.parts["composing"].expected_s for lease, _ in group]))
    limits = [charge.time_limit_min or 0 for charge in charges]
    return (
        f"{name} x {len(group)}" if len(group) > 1 else name,
        sum(lease.missing for lease, _ in group),
        f"{first.hosts} + {first.donors}" if first.donors else first.hosts,
        f"{first.devices:g}",
        f"{first.devices_idle:g}",
        first.partition or "default",
        _limit(max(limits)),
        first.gres or "none",
        _brief(composing),
        _brief(Estimate(_sum([lease.expected_s for lease, _ in group]))),
        _short(_sum([charge.device_hours for charge in charges])),
        _short(_sum([charge.host_hours for charge in charges])),
    )


def _brief(time: Estimate) -> str:
    """'2.05 min (1.8 to 2.4)'; 'unknown'."""
    if time.expected_s is None:
        return "unknown"
    unit, size = ("s", 1) if time.expected_s < 100 else ("min", 60) if time.expected_s < 6000 else ("h", 3600)
    words = f"{time.expected_s / size:.3g} {unit}"
    if time.low_s is None or time.high_s is None or not time.expected_s:
        return words
    return f"{words} ({time.low_s / size:.2g} to {time.high_s / size:.2g})"


def _limit(minutes: int) -> str:
    """As sbatch takes it."""
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-" * bool(days) + f"{rest // 60:02d}:{rest % 60:02d}:00"


def _sum(times: Sequence[float | None]) -> float | None:
    known = [each for each in times if each is not None]
    return sum(known) if len(known) == len(times) else None


def _short(hours: float | None) -> str:
    return "unknown" if hours is None else f"{hours:.3g}"


def _hours(expected: Expected) -> str:
    """Of seconds, with their interval."""
    if expected.expected_s is None:
        return "unknown"
    words = f"{expected.expected_s / 3600:.4g}"
    if expected.low_s is None or expected.high_s is None:
        return words
    return f"{words} ({expected.low_s / 3600:.3g} to {expected.high_s / 3600:.3g})"
