"""Rules for devices that runs reach by a launch prefix (`fabrics.prefix.options`), for cells and allocations. Pure.

The identity of a cell includes everything that affects a run: prefix and environment as written, the fraction of a device, the
number of parts that share a device, and memory. Each of them changes the measurement, so a site that edits a percentage must not
get its old numbers for the new value. The individual devices (`ids`, `of`) are not included, because a MIG instance gets a new
UUID when it is created again.
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


def find_launch_rules(system: SystemFile, model: str) -> dict[bool, LaunchRule]:
    """Return the launch rules for devices of a model: those of hosts (True) and of the pool (False)."""
    if system.fabric.get("kind") != _KIND:
        return {}
    options = {key: value for key, value in system.fabric.items() if key != "kind"}
    rules = LaunchPrefixOptions.model_validate(options)
    rules_by_location = {local: rules.find_rule(model, local=local) for local in (True, False)}
    return {local: rule for local, rule in rules_by_location.items() if rule is not None}


def identify_launch(system: SystemFile, configuration: Configuration) -> dict[str, Any]:
    """Return the launch settings that are part of the identity of a configuration's cells.

    The result is empty if its devices have no launch rule.
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
        for local, rule in find_launch_rules(system, configuration.device).items()
        if counts[local]
    }


def explain_unusable_devices(system: SystemFile, configuration: Configuration, workload: Workload) -> str | None:
    """Explain why a workload cannot use a configuration's devices, or return None if it can.

    A workload that is a single program starts on one host, with one prefix and one environment.
    """
    if not workload.starts_single_process:
        return None
    local = min(configuration.local_devices_per_host, configuration.devices_used)
    counts = {True: local, False: configuration.devices_used - local}
    rules = find_launch_rules(system, configuration.device)
    used_rules = [rules.get(where) for where, count in counts.items() if count]
    if all(rule is None for rule in used_rules):
        return None
    remedy = "set `launch: per_rank` in the workload file, or exclude the configuration for this workload"
    if configuration.hosts > 1:
        return (
            f"workload '{workload.name}' is one program for all ranks, so the prefix for '{configuration.device}' (the system's "
            f"fabric.launch) would apply on the first host only; {remedy}"
        )
    if len(used_rules) > 1 and (None in used_rules or len({_launch_key(rule) for rule in used_rules if rule}) > 1):
        return (
            f"workload '{workload.name}' is one program for all ranks, but local and remote '{configuration.device}' need "
            f"different prefixes or environments (the system's fabric.launch); {remedy}"
        )
    return None


def count_devices_to_request(system: SystemFile, configuration: Configuration) -> int | None:
    """Return the number of devices to request from Slurm per host, or None without launch rules. Remote devices do not count.

    Parts with their own ids (MIG instances) are devices for Slurm, too. Other parts are requested as whole devices.
    """
    rules = find_launch_rules(system, configuration.device)
    if not rules:
        return None
    local, rule = configuration.local_devices_per_host, rules.get(True)
    if rule is None:
        return local
    has_part_ids = any(
        len(rule.ids.get(name, ())) > sum(d.count for d in group.devices if d.model == rule.device)
        for group in system.hosts
        for name in group.list_names()
    )
    return local if has_part_ids else math.ceil(local / rule.parts_per_device)


def describe_device_use(system: SystemFile, configurations: Collection[Configuration]) -> list[str]:
    """Describe how runs use the devices of these configurations, as sentences for the report."""
    used_models = {(c.device, True) for c in configurations if c.local_devices_per_host}
    used_models |= {(c.device, False) for c in configurations if c.fabric_devices_per_host}
    return [
        f"{'Local' if local else 'Remote'} devices of model '{model}' are used through a prefix and variables: "
        f"`{' '.join([*(f'{name}={value}' for name, value in rule.environment.items()), *rule.prefix])}`"
        + (f"; each is {rule.fraction} of a device" if rule.device_fraction != 1 else "")
        + (f", {rule.parts_per_device} share one" if rule.parts_per_device > 1 else "")
        + "."
        for model, local in sorted(used_models, key=lambda entry: (entry[0], not entry[1]))
        if (rule := find_launch_rules(system, model).get(local)) is not None
    ]


def _launch_key(rule: LaunchRule) -> tuple[Any, ...]:
    return rule.prefix, tuple(sorted(rule.environment.items())), rule.device_fraction, rule.memory_mib
