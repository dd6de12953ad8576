"""Checks of the requirements of a lease except the control plane. Nothing is changed.

The hosts must respond, Slurm must list them, and the results directory must be usable.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from campaign.common.errors import CampaignError, ConfigError
from campaign.common.wording import some
from campaign.fabrics.protocol import Controlled, Fabric
from campaign.lease.campaign_leases import Site
from campaign.lease.check_site import Finding, Severity, check, check_control_plane
from campaign.plan.campaign.launch_prefix_rules import rules_of
from campaign.slurm.commands import Slurm
from campaign.slurm.listed_hosts import LISTING, ListedHost, parse_features, parse_listing, parse_partitions
from campaign.slurm.shared_directory import choose_free_host, look_from_host
from campaign.slurm.strategies.controller import count_gres
from campaign.spec.hardware import Device, Inventory, normal
from campaign.spec.site_hardware import DeviceSpec
from campaign.spec.system_file import DeviceModel, SlurmOptions, SystemFile

_AT_ONCE = 16
_FREE_GB = 1.0
_NAMED = 12


def check_system(site: Site) -> Iterator[Finding]:
    """Check every requirement of a lease on a site, and yield each finding as soon as it is known."""
    yield from check(site, partial(_agents, site.system))
    yield from _launching(site.system, SlurmOptions(), Slurm())
    yield from _results(site)
    yield from check_shared_results(site, SlurmOptions(), Slurm())


def check_before_leases(site: Site, given: SlurmOptions, slurm: Slurm) -> list[Finding]:
    """Return the problems that prevent leases on a system, before its first lease.

    A system without a control plane and Slurm is not queried.

    Args:
        site: the system and its state.
        slurm_options: options of Slurm from the profile or command line.
        slurm: runs Slurm commands.
    """
    found: list[Finding] = []
    with site.fabric() as fabric:
        is_controlled = fabric.controlled is not None
    if is_controlled:
        found += check_control_plane(site, partial(_agents, site.system))
    found += _launching(site.system, given, slurm)
    if site.system.launcher == "slurm" and "\n" in str(site.root.absolute()):
        words = (
            f"{str(site.root.absolute())!r} has a line break, which ends an option of sbatch; give another directory"
        )
        found.append(Finding("results", "stop", f"{words} (--results)"))
    elif not any(finding.verdict == "stop" for finding in found):
        found += check_shared_results(site, given, slurm)
    return [finding for finding in found if finding.verdict in ("problem", "stop")]


def _agents(system: SystemFile, fabric: Fabric, inventory: Inventory) -> Iterator[Finding]:
    """Check that each host responds, and compare the models that it reports for devices of the pool with those of `inventory`."""
    if fabric.controlled is None:
        return
    devices = [device for device in inventory.devices if not device.local]
    listed, failed = _asked(system, fabric.controlled)
    if failed:
        remedy = "correct `fabric: agent`, or leave the host out (`--without-hosts`)"
        for host, words in failed.items():
            yield Finding("agent", "problem" if listed else "stop", f"{host}: {words}; {remedy}")
    if not listed and not failed:
        words = "nobody looks on the hosts (`agent`: none), so that nothing shows whether they see what is attached"
        yield Finding("agent", "note", words)
    elif listed:
        counts = ", ".join(f"{host} lists {len(seen)} devices" for host, seen in listed.items())
        yield Finding("agent", "ok", counts)
    yield from _models(system, devices, listed)


def _asked(
    system: SystemFile, controlled: Controlled
) -> tuple[Mapping[str, Sequence[tuple[str, str]]], Mapping[str, str]]:
    """Return the devices by host as the host agent lists them, and the errors by host.

    Hosts are in neither result if no host agent is configured.
    """
    listed, failed = dict[str, Sequence[tuple[str, str]]](), dict[str, str]()

    def ask(host: str) -> None:
        try:
            if (seen := controlled.host_devices(host)) is not None:
                listed[host] = seen
        except CampaignError as error:
            failed[host] = str(error).removeprefix(f"{host}: ")

    # HTTP uses one connection for all hosts of a service; ssh uses one per host.
    by_ssh = (system.fabric.get("agent") or {}).get("kind") == "ssh"
    with ThreadPoolExecutor(_AT_ONCE if by_ssh else 1) as threads:
        list(threads.map(ask, system.usable_hosts()))
    order = system.usable_hosts()
    return {host: listed[host] for host in order if host in listed}, {h: failed[h] for h in order if h in failed}


def _models(
    system: SystemFile, devices: Sequence[Device], listed: Mapping[str, Sequence[tuple[str, str]]]
) -> Iterator[Finding]:
    """Yield a finding for each model of the pool that hosts report by a name that the system file does not have."""
    seen = {normal(identity): told for there in listed.values() for identity, told in there if identity and told}
    called: dict[str, set[str]] = {}
    for device in devices:
        if device.host_id and (told := seen.get(normal(device.host_id))):
            called.setdefault(device.model, set()).add(told)
    for model, names in called.items():
        about = system.devices.get(model, DeviceModel())
        others, words = sorted(names - {model, about.reported_as}), ""
        if others and about.reported_as:
            words = (
                f"hosts report {', '.join(others)} as {model}, the system file says {about.reported_as} (`reported_as`)"
            )
            yield Finding("models", "stop", f"{words}: correct `pool`, or `devices`")
        elif others:
            words = (
                f"hosts report {', '.join(others)} as {model}; add `devices: {{{model}: {{reported_as: {others[0]}}}}}`"
            )
            yield Finding("models", "note", f"{words} if that is right, and `pool` if it is not")


def _launching(system: SystemFile, given: SlurmOptions, slurm: Slurm) -> Iterator[Finding]:
    if system.launcher == "local":
        yield Finding("launcher", "ok", "local: runs start on this machine")
        return
    try:
        answer = slurm(*LISTING)
    except ConfigError as error:
        yield Finding("slurm", "stop", str(error))
        return
    if not answer.ok:
        yield Finding("slurm", "problem", f"'sinfo' failed: {answer.words}; try again when the controller answers")
        return
    if missing := [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]:
        yield Finding(
            "launcher", "stop", f"not on this machine: {', '.join(missing)}; start on a login node of the cluster"
        )
    yield from known_to_slurm(system, given, parse_listing(answer.out))


def known_to_slurm(system: SystemFile, given: SlurmOptions, listed: Mapping[str, ListedHost]) -> Iterator[Finding]:
    """Compare hosts, partitions, features and generic resources of a system file with those of Slurm. Pure.

    Args:
        system: system file.
        slurm_options: options of Slurm from the profile or command line, which precede those of the system file.
        listed_hosts: hosts that Slurm lists, by name.
    """
    names = system.usable_hosts()
    # Hosts that are deleted, or powered down in a cloud, are not listed with their features until they return.
    missing: Severity = "note" if system.slurm.strategy in ("dynamic", "resume") else "stop"
    hosts = {name: listed[name] for name in names if name in listed}
    if unknown := [name for name in names if name not in listed]:
        words = f"Slurm does not know {some(unknown, _NAMED)} (`hosts`); it knows: {some(listed, _NAMED) or 'no host'}"
        yield Finding("slurm", missing, f"{words}; correct `hosts`")
    options = (given,) if given.partition else (system.slurm, *system.slurm.overrides)
    for partition in dict.fromkeys(each.partition for each in options if each.partition):
        there = dict.fromkeys(name for host in listed.values() for name in host.partitions)
        names = parse_partitions(partition)
        outside = [host.name for host in hosts.values() if not {*names} & {*host.partitions}]
        if unlisted := [name for name in names if name not in there]:
            yield Finding(
                "slurm", missing, f"no partition {unlisted[0]!r} (`slurm.partition`); there are: {', '.join(there)}"
            )
        elif outside:
            words = f"partition {partition} (`slurm.partition`) does not have {some(outside, _NAMED)}"
            yield Finding(
                "slurm", "problem", f"{words}: ask for another partition, or leave them out (`--without-hosts`)"
            )
    options = (given,) if given.constraint else (system.slurm, *system.slurm.overrides)
    there = dict.fromkeys(name for host in listed.values() for name in host.features)
    for word in dict.fromkeys(w for each in options for w in parse_features(each.constraint or "")):
        if word not in there:
            words = f"no host has the feature {word!r} (`slurm.constraint`); there are: {', '.join(there) or 'none'}"
            yield Finding("slurm", missing, words)
    yield from _resources(system, hosts)
    if away := [f"{host.name} ({host.state})" for host in hosts.values() if re.search("down|drain|fail", host.state)]:
        words = f"no job can start on {some(away, _NAMED)} now; leave a host out that stays so (`--without-hosts`)"
        yield Finding("slurm", "note", words)
    if hosts:
        yield Finding("slurm", "ok", f"Slurm knows {some(hosts, _NAMED)}")


def _resources(system: SystemFile, hosts: Mapping[str, ListedHost]) -> Iterator[Finding]:
    """Check that all hosts with devices have the generic resource, also those that get devices later.

    Hosts that are registered again for each lease (strategy `dynamic`) are skipped.
    """
    gres = system.slurm.gres
    if not gres or system.slurm.strategy == "dynamic":
        return

    def granted(devices: Sequence[DeviceSpec]) -> bool:
        return any(each.kind == "gpu" and not rules_of(system, each.model) for each in devices)

    have = {name for group in system.hosts if granted(group.devices) or granted(system.pool) for name in group.names()}
    if without := [name for name, host in hosts.items() if name in have and not count_gres(host.gres, gres)]:
        told = some([f"{name} {hosts[name].gres or 'none'}" for name in without], _NAMED)
        words = f"no generic resource {gres!r} (`slurm.gres`); Slurm lists: {told}. Correct `slurm.gres`, or gres.conf"
        yield Finding("slurm", "stop" if len(without) == len(hosts) else "problem", words)


def check_shared_results(site: Site, given: SlurmOptions, slurm: Slurm) -> Iterator[Finding]:
    """Check by a short job on a free host of a Slurm system that it can access the results directory and the running Python.

    Args:
        site: the system and its state.
        slurm_options: options of Slurm from the profile or command line, which precede those of the system file.
        slurm: runs Slurm commands. Its log gets a line about the job.
    """
    if site.system.launcher != "slurm":
        return
    directory = _nearest_directory(site.root.absolute()).resolve()
    if not os.access(directory, os.W_OK | os.X_OK):
        return  # `_results` and the first file that is written report it
    settings = site.system.slurm
    values = {name: getattr(given, name) or getattr(settings, name) for name in ("partition", "account", "qos")}
    options = SlurmOptions(**values, additional={**settings.additional, **given.additional})
    try:
        choice = choose_free_host(site.system.usable_hosts(), parse_listing(slurm(*LISTING).out), options)
    except ConfigError:
        return  # `_launching` reports a machine without Slurm
    if choice is None or "clusters" in options.additional:
        words = "no host is free just now to be asked whether it does; the first lease shows it"
        yield Finding("results", "note", f"all hosts must see {directory} by this path; {words}")
        return
    host, partition = choice
    seen = look_from_host(
        directory, host, options.model_copy(update={"partition": partition}), settings.latency_s, slurm
    )
    where = f"{host} (partition {partition})" if partition else host
    remedy = "give a directory on a file system that all hosts share, at the same path (--results)"
    match seen.view:
        case "seen":
            yield Finding("results", "ok", f"{where} sees {directory}, and writes there")
        case "unseen":
            yield Finding("results", "stop", f"{where} does not see {directory} of this machine; {remedy}")
        case "read_only":
            yield Finding("results", "stop", f"{where} cannot write to {directory}; {remedy}")
        case "no_python":
            words = "install the package on a file system that all hosts share"
            yield Finding(
                "python", "stop", f"{where} does not see the Python of this machine, {sys.executable}; {words}"
            )
        case _:
            words = f"it is not known whether {where} sees {directory}: the job that looks did not start"
            yield Finding("results", "note", f"{words} ({seen.problem})")


def _nearest_directory(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def _results(site: Site) -> Iterator[Finding]:
    path = site.root.absolute()
    there = _nearest_directory(path)
    free_gb = shutil.disk_usage(there).free / 1e9
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding("results", "stop", f"{there} cannot be written; give another directory (--results)")
    elif free_gb < _FREE_GB:
        yield Finding(
            "results", "problem", f"{path}: {free_gb:.2g} GB are free; free some, or give another directory (--results)"
        )
    else:
        yield Finding("results", "ok", f"{path}: {free_gb:.3g} GB free")
