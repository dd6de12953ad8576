"""What a lease holds, which is what a site charges: devices, and whole hosts where a job has them alone. Pure.

Devices from the pool are held from the first operation on them until the last one has given them back. Hosts are held with all
devices of their own where allocations are exclusive, used or idle; otherwise with those of the configuration. They are held all the
time where Slurm is told of them before they are recomposed (`dynamic`, `reservation`) or composes them itself (`resume`), and also
where there is no Slurm; otherwise for as long as the driver's job runs. Hosts that lend devices (`home` of a pool entry) are held
all the time, with what is left on them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from campaign.config.resolve import Campaign
from campaign.config.resolve_slurm_options import gres_of, is_pinned, options_of, time_limit_min
from campaign.config.system_file import SlurmOptions, SystemFile, host_names
from campaign.documents.cell import Configuration
from campaign.documents.lease_plan import LeaseCharge
from campaign.plan.cost.estimates import PARTS, Expected, HeldResources, Part, Work

_OF_JOB: frozenset[Part] = frozenset({"start", "runs", "between"})


def held(system: SystemFile, configuration: Configuration, hosts: Collection[str] = ()) -> HeldResources:
    """Devices and hosts that a lease on these hosts holds in each part of its time; hosts: empty where they are not known."""
    attached = configuration.fabric_devices
    own = used = configuration.devices - attached
    by_slurm = system.launcher == "slurm"
    donors, left = _donors(system, configuration, hosts)
    if by_slurm and system.slurm.exclusive:
        built_in = {
            name: sum(each.count for each in group.devices if each.kind == "gpu")
            for group in system.hosts
            for name in group.names()
        }
        own = max(used, sum(built_in.get(name, 0) for name in hosts))
        left += sum(built_in[name] for name in donors)
    parts = _OF_JOB if by_slurm and system.slurm.strategy == "static" else frozenset(PARTS)
    return HeldResources(
        devices={part: float(attached + left + own * (part in parts)) for part in PARTS},
        hosts={part: float(len(donors) + configuration.hosts * (part in parts)) for part in PARTS},
        idle=float(left + own - used + configuration.devices - configuration.ranks),
        donors=len(donors),
    )


def _donors(system: SystemFile, configuration: Configuration, hosts: Collection[str]) -> tuple[set[str], int]:
    """Hosts that others of the lease's devices belong to, and how many devices of the pool are left idle on them."""
    wanted = Counter({configuration.device: configuration.fabric_devices})
    donors: set[str] = set()
    left = 0
    # Devices that belong to no host, or to one of the lease's own, are counted first: a site is charged no more than it must.
    for entry in sorted((entry for entry in system.pool if wanted[entry.model]), key=lambda entry: bool(entry.home)):
        if entry.home is None:
            wanted[entry.model] -= min(wanted[entry.model], entry.count)
            continue
        names = host_names(entry.home)
        each = math.ceil(entry.count / len(names))
        for name in sorted(names, key=lambda name: name not in hosts):
            taken = min(each, wanted[entry.model])
            wanted[entry.model] -= taken
            if taken and name not in hosts:
                donors.add(name)
                left += each - taken
    return donors, left


class Charges:
    """Gives the charge of a lease of a campaign."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._options: dict[str, SlurmOptions] = {}

    def __call__(self, work: Work, expected: Expected, hosts: Collection[str] = ()) -> LeaseCharge:
        configuration = work.configuration
        system = self._campaign.on(configuration).system
        by_slurm = system.launcher == "slurm"
        options, time_min = SlurmOptions(), None
        if by_slurm:
            if configuration.name not in self._options:
                self._options[configuration.name] = options_of(system, configuration, self._campaign.person)
            options = self._options[configuration.name]
            longest_s = sum(cell.settings.time_limit_s * count for cell, count in work.runs)
            time_min = options.time_min or time_limit_min(expected.runs_s, longest_s)
        device_hours = _hours(expected, {part: work.devices(part) for part in PARTS})
        price_per_h = system.price_per_h(configuration) if self._campaign.currency else None
        return LeaseCharge(
            hosts=configuration.hosts,
            donors=work.held.donors if work.held else 0,
            devices=max(map(work.devices, PARTS)),
            devices_idle=work.held.idle if work.held else 0.0,
            partition=options.partition or "",
            time_limit_min=time_min,
            gres=gres_of(system, configuration, hosts if is_pinned(system) else ()) if by_slurm else "",
            exclusive=by_slurm and system.slurm.exclusive,
            device_hours=device_hours,
            host_hours=_hours(expected, {part: work.hosts(part) for part in PARTS}),
            price=None
            if device_hours is None or price_per_h is None
            else round(device_hours * price_per_h / configuration.devices, 6),
        )


def _hours(expected: Expected, number: Mapping[Part, float]) -> float | None:
    """Hours of so many devices or hosts, by part; what is unknown beside runs and composing counts as nothing."""
    if expected.expected_s is None:
        return None
    return round(sum((expected.parts[part].expected_s or 0.0) * number[part] for part in PARTS) / 3600, 6)
