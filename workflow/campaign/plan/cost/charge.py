"""What a lease holds, which is what a site charges: devices, and whole hosts where a job has them alone. Pure.

Devices from the pool are held from the first operation on them until the last one has given them back. Hosts are held with all
devices of their own where allocations are exclusive, used or idle; otherwise with those of the configuration. They are held all the
time where Slurm is told of them before they are recomposed (`dynamic`, `reservation`) or composes them itself (`resume`), and also
where there is no Slurm; otherwise for as long as the driver's job runs. No host is held only because a device comes from it: what a
running lease holds is waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from campaign.config.resolve import Campaign
from campaign.config.resolve_slurm_options import gres_of, is_pinned, options_of, time_limit_min
from campaign.config.system_file import SlurmOptions, SystemFile
from campaign.documents.cell import Configuration
from campaign.documents.lease_cost import LeaseCharge
from campaign.plan.cost.estimates import PARTS, Expected, Held, Part, Work

_OF_JOB: frozenset[Part] = frozenset({"start", "runs", "between"})


def held(system: SystemFile, configuration: Configuration, hosts: Collection[str] = ()) -> Held:
    """Devices and hosts that a lease on these hosts holds in each part of its time; hosts: empty where they are not known."""
    attached = configuration.fabric_devices
    own = used = configuration.devices - attached
    by_slurm = system.launcher == "slurm"
    if by_slurm and system.slurm.exclusive:
        built_in = {
            name: sum(each.count for each in group.devices if each.kind == "gpu")
            for group in system.hosts
            for name in group.names()
        }
        own = max(used, sum(built_in.get(name, 0) for name in hosts))
    parts = _OF_JOB if by_slurm and system.slurm.strategy == "static" else frozenset(PARTS)
    return Held(
        devices={part: float(attached + own * (part in parts)) for part in PARTS},
        hosts={part: float(configuration.hosts * (part in parts)) for part in PARTS},
        idle=float(own - used + configuration.devices - configuration.ranks),
    )


class Charges:
    """Gives the charge of a lease of a campaign."""

    def __init__(self, campaign: Campaign) -> None:
        self._system, self._person = campaign.system, campaign.person
        self._options: dict[str, SlurmOptions] = {}

    def __call__(self, work: Work, expected: Expected, hosts: Collection[str] = ()) -> LeaseCharge:
        system, configuration = self._system, work.configuration
        by_slurm = system.launcher == "slurm"
        options, time_min = SlurmOptions(), None
        if by_slurm:
            if configuration.name not in self._options:
                self._options[configuration.name] = options_of(system, configuration, self._person)
            options = self._options[configuration.name]
            longest_s = sum(cell.settings.time_limit_s * count for cell, count in work.runs)
            time_min = options.time_min or time_limit_min(expected.runs_s, longest_s)
        return LeaseCharge(
            hosts=configuration.hosts,
            devices=max(map(work.devices, PARTS)),
            devices_idle=work.held.idle if work.held else 0.0,
            partition=options.partition or "",
            time_limit_min=time_min,
            gres=gres_of(system, configuration, hosts if is_pinned(system) else ()) if by_slurm else "",
            exclusive=by_slurm and system.slurm.exclusive,
            device_hours=_hours(expected, {part: work.devices(part) for part in PARTS}),
            host_hours=_hours(expected, {part: work.hosts(part) for part in PARTS}),
        )


def _hours(expected: Expected, number: Mapping[Part, float]) -> float | None:
    """Of so many, by part; what is unknown beside runs and composing counts as nothing."""
    if expected.expected_s is None:
        return None
    return round(sum((expected.parts[part].expected_s or 0.0) * number[part] for part in PARTS) / 3600, 6)
