"""The table that a plan and a dry run end in: what leases ask Slurm for, what composing takes, and what a site charges."""

from __future__ import annotations

from collections.abc import Sequence

from campaign.cli.terminal import MANY, TextTable
from campaign.documents.lease_plan import LeaseCharge
from campaign.plan.cost.estimates import Estimate
from campaign.plan.plan import Plan, PlannedLease

_GROUPS = 20
_SLURM = ("partition", "time\nlimit", "gres")
_ASKED = ("lease", "runs", "hosts", "devices", "idle", *_SLURM)
_COLUMNS = (*_ASKED, "composing", "95 %", "expected", "device\nhours", "host\nhours", "price")
_SPARE = ("expected", "runs", "95 %", "idle")


def cost_table(plan: Plan) -> TextTable:
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
        total, runs = plan.forecast, sum(lease.missing for lease, _ in leases)
        asked = ["total", runs, *[""] * (len(_ASKED) - 2)]
        hours = [_hours(each.expected_s and each.expected_s / 3600) for each in (total.device_s, total.host_s)]
        rows.append(
            (*asked, *_brief(total.total.parts["composing"]), _brief(total.total)[0], *hours, _price(plan.price))
        )
    by_slurm = any(system.launcher == "slurm" for system in plan.campaign.systems.values())
    currency = plan.campaign.currency
    left_out = {*(() if by_slurm else _SLURM), *(() if currency else ("price",))}
    kept = [n for n, name in enumerate(_COLUMNS) if name not in left_out]
    columns = [f"price\n{currency}" if _COLUMNS[n] == "price" else _COLUMNS[n] for n in kept]
    title = "Cost: what is held from composing to release"
    return TextTable(title, columns, [[row[n] for n in kept] for row in rows], columns[1:], spare=_SPARE)


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
        *_brief(composing),
        _brief(Estimate(_sum([lease.expected_s for lease, _ in group])))[0],
        _hours(_sum([charge.device_hours for charge in charges])),
        _hours(_sum([charge.host_hours for charge in charges])),
        _price(_sum([charge.price for charge in charges])),
    )


def _brief(time: Estimate) -> tuple[str, str]:
    """('2.05 min', '1.8 to 2.4'); the interval is empty where there is none."""
    if time.expected_s is None:
        return "unknown", ""
    unit, size = ("s", 1) if time.expected_s < 100 else ("min", 60) if time.expected_s < 6000 else ("h", 3600)
    words = f"{time.expected_s / size:.3g} {unit}"
    if time.low_s is None or time.high_s is None or not time.expected_s:
        return words, ""
    return words, f"{time.low_s / size:.2g} to {time.high_s / size:.2g}"


def _limit(minutes: int) -> str:
    """A time limit as sbatch takes it."""
    days, rest = divmod(minutes, 24 * 60)
    return f"{f'{days}-' if days else ''}{rest // 60:02d}:{rest % 60:02d}:00"


def _sum(times: Sequence[float | None]) -> float | None:
    known = [each for each in times if each is not None]
    return sum(known) if len(known) == len(times) else None


def _price(price: float | None) -> str:
    return "unknown" if price is None else f"{price:.2f}"


def _hours(hours: float | None) -> str:
    return "unknown" if hours is None else f"{hours:.4g}"
