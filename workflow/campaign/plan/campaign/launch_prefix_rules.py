"""Rules for devices that runs reach by a launch prefix (`fabrics.prefix.options`), as far as cells and allocations need them.
Pure.

The identity of a cell includes everything that reaches a run: prefix and environment as they are written, the part of a device,
the number of parts that share one, and memory. Each of them changes the measurement (another wrapper is another program, another
percentage another device). A site that edits a percentage in place must not find its old numbers under it. The individual
devices (`ids`, `of`) are operational details, as hosts are: a MIG instance made anew has another UUID.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from campaign.fabrics.prefix import LaunchPrefixOptions, LaunchRule
from campaign.spec.cell import Configuration
from campaign.spec.system_file import SystemFile
from campaign.workloads.protocol import Workload

_KIND = "prefix"


def rules_of(system: SystemFile, model: str) -> dict[bool, LaunchRule]:
    """Return the launch rules for devices of a model: those of hosts (True) and of the pool (False)."""
    if system.fabric.get("kind") != _KIND:
        return {}
    options = {key: value for key, value in system.fabric.items() if key != "kind"}
    rules = LaunchPrefixOptions.model_validate(options)
    found = {local: rules.find_rule(model, local=local) for local in (True, False)}
    return {local: rule for local, rule in found.items() if rule is not None}


def launch_identity(system: SystemFile, configuration: Configuration) -> dict[str, Any]:
    """Return the launch settings that are part of the identity of a configuration's cells.

    Returns an empty dict if no launch rule is for its devices.
    """
    counts = {True: configuration.local_devices_per_host, False: configuration.fabric_devices_per_host}
    return {
        "local" if local else "pool": {
            "prefix": list(rule.prefix),
            "environment": rule.environment,
            "fraction": str(rule.device_fraction),
            "parts": rule.parts_per_device,
            "memory_mib": rule.memory_mib,
        }
        for local, rule in rules_of(system, configuration.device).items()
        if counts[local]
    }


def objection(system: SystemFile, configuration: Configuration, workload: Workload) -> str | None:
    """Explain why a workload cannot use a configuration's devices, or return None if it can.

    One program is started in one way, on one host.
    """
    if not workload.one_process_for_all:
        return None
    local = min(configuration.local_devices_per_host, configuration.devices_used)
    counts = {True: local, False: configuration.devices_used - local}
    rules = rules_of(system, configuration.device)
    used = [rules.get(where) for where, count in counts.items() if count]
    if all(rule is None for rule in used):
        return None
    remedy = "give the workload `launch: per_rank`, or leave the configuration out for it"
    if configuration.hosts > 1:
        return (
            f"workload '{workload.name}' is one program for all ranks, and what reaches '{configuration.device}' (the system's "
            f"fabric.launch) would be given to it on the first host only; {remedy}"
        )
    if len(used) > 1 and (None in used or len({_way(rule) for rule in used if rule}) > 1):
        return (
            f"workload '{workload.name}' is one program for all ranks, and local and remote '{configuration.device}' are used in "
            f"different ways (the system's fabric.launch); {remedy}"
        )
    return None


def devices_to_ask(system: SystemFile, configuration: Configuration) -> int | None:
    """Return the number of devices to request from Slurm per host, or None without launch rules. Remote devices do not count.

    Parts with their own ids (MIG instances) are devices for Slurm, too. Other parts are requested as whole devices.
    """
    rules = rules_of(system, configuration.device)
    if not rules:
        return None
    local, rule = configuration.local_devices_per_host, rules.get(True)
    if rule is None:
        return local
    own = any(
        len(rule.ids.get(name, ())) > sum(d.count for d in group.devices if d.model == rule.device)
        for group in system.hosts
        for name in group.names()
    )
    return local if own else math.ceil(local / rule.parts_per_device)


def said(system: SystemFile, configurations: Collection[Configuration]) -> list[str]:
    """Describe in sentences for the report how runs use the devices of these configurations."""
    used = {(c.device, True) for c in configurations if c.local_devices_per_host}
    used |= {(c.device, False) for c in configurations if c.fabric_devices_per_host}
    return [
        f"{'Local' if local else 'Remote'} devices of model '{model}' are used through a prefix and variables: "
        f"`{' '.join([*(f'{name}={value}' for name, value in rule.environment.items()), *rule.prefix])}`"
        + (f"; each is {rule.fraction} of a device" if rule.device_fraction != 1 else "")
        + (f", {rule.parts_per_device} share one" if rule.parts_per_device > 1 else "")
        + "."
        for model, local in sorted(used, key=lambda each: (each[0], not each[1]))
        if (rule := rules_of(system, model).get(local)) is not None
    ]


def _way(rule: LaunchRule) -> tuple[Any, ...]:
    return rule.prefix, tuple(sorted(rule.environment.items())), rule.device_fraction, rule.memory_mib
