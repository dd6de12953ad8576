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
from campaign.common.wording import pluralize, shorten_names
from campaign.fabrics.protocol import ControlPlaneAccess, Fabric
from campaign.lease.campaign_leases import Site
from campaign.lease.check_site import Finding, Severity, check_control_plane, check_fabric
from campaign.plan.campaign.launch_prefix_rules import find_launch_rules
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.listed_hosts import LIST_HOSTS_COMMAND, ListedHost, parse_features, parse_listing, parse_partitions
from campaign.slurm.shared_directory import check_from_host, choose_free_host
from campaign.slurm.strategies.controller import count_gres
from campaign.spec.hardware import Device, Inventory, normalize_identity
from campaign.spec.site_hardware import DeviceSpec
from campaign.spec.system_file import DeviceModel, SlurmOptions, SystemFile

_MAX_PARALLEL_QUERIES = 16
_MIN_FREE_GB = 1.0
_MAX_NAMES_SHOWN = 12


def check_system(site: Site) -> Iterator[Finding]:
    """Check every requirement of a lease on a site, and yield each finding as soon as it is known."""
    yield from check_fabric(site, partial(_check_agents, site.system))
    yield from _check_launcher(site.system, SlurmOptions(), SlurmCommands())
    yield from _check_results_directory(site)
    yield from check_shared_results(site, SlurmOptions(), SlurmCommands())


def check_before_leases(site: Site, slurm_options: SlurmOptions, slurm: SlurmCommands) -> list[Finding]:
    """Return the problems that prevent leases on a system, before its first lease.

    A system without a control plane and Slurm is not queried.

    Args:
        site: the system and its state.
        slurm_options: options of Slurm from the profile or command line.
        slurm: runs Slurm commands.
    """
    findings: list[Finding] = []
    with site.open_fabric() as fabric:
        is_controlled = fabric.control_plane_access is not None
    if is_controlled:
        findings += check_control_plane(site, partial(_check_agents, site.system))
    findings += _check_launcher(site.system, slurm_options, slurm)
    if site.system.launcher == "slurm" and "\n" in str(site.root.absolute()):
        message = (
            f"{str(site.root.absolute())!r} contains a line break, which sbatch options cannot; give another directory"
        )
        findings.append(Finding("results", "stop", f"{message} (--results)"))
    elif not any(finding.verdict == "stop" for finding in findings):
        findings += check_shared_results(site, slurm_options, slurm)
    return [finding for finding in findings if finding.verdict in ("problem", "stop")]


def _check_agents(system: SystemFile, fabric: Fabric, inventory: Inventory) -> Iterator[Finding]:
    """Check that each host responds and reports the same models of pool devices as `inventory`."""
    if fabric.control_plane_access is None:
        return
    devices = [device for device in inventory.devices if not device.local]
    devices_by_host, errors_by_host = _query_agents(system, fabric.control_plane_access)
    if errors_by_host:
        remedy = "correct `fabric: agent`, or leave the host out (`--without-hosts`)"
        for host, message in errors_by_host.items():
            yield Finding("agent", "problem" if devices_by_host else "stop", f"{host}: {message}; {remedy}")
    if not devices_by_host and not errors_by_host:
        message = "no host agent is configured (`agent`: none), so it is unknown whether hosts see attached devices"
        yield Finding("agent", "note", message)
    elif devices_by_host:
        counts = ", ".join(
            f"{host} lists {pluralize(len(host_devices), 'device')}" for host, host_devices in devices_by_host.items()
        )
        yield Finding("agent", "ok", counts)
    yield from _check_models(system, devices, devices_by_host)


def _query_agents(
    system: SystemFile, fabric: ControlPlaneAccess
) -> tuple[Mapping[str, Sequence[tuple[str, str]]], Mapping[str, str]]:
    """Return the devices by host as the host agent lists them, and the errors by host.

    Hosts are in neither result if no host agent is configured.
    """
    devices_by_host, errors_by_host = dict[str, Sequence[tuple[str, str]]](), dict[str, str]()

    def query_agent(host: str) -> None:
        try:
            if (host_devices := fabric.list_host_devices(host)) is not None:
                devices_by_host[host] = host_devices
        except CampaignError as error:
            errors_by_host[host] = str(error).removeprefix(f"{host}: ")

    # HTTP uses one connection for all hosts of a service; ssh uses one per host.
    by_ssh = (system.fabric.get("agent") or {}).get("kind") == "ssh"
    with ThreadPoolExecutor(_MAX_PARALLEL_QUERIES if by_ssh else 1) as threads:
        list(threads.map(query_agent, system.list_usable_hosts()))
    order = system.list_usable_hosts()
    return {host: devices_by_host[host] for host in order if host in devices_by_host}, {
        failed_host: errors_by_host[failed_host] for failed_host in order if failed_host in errors_by_host
    }


def _check_models(
    system: SystemFile, devices: Sequence[Device], devices_by_host: Mapping[str, Sequence[tuple[str, str]]]
) -> Iterator[Finding]:
    """Yield a finding for each model of the pool that hosts report by a name that the system file does not have."""
    reported_models = {
        normalize_identity(identity): reported_model
        for host_devices in devices_by_host.values()
        for identity, reported_model in host_devices
        if identity and reported_model
    }
    reported_by_model: dict[str, set[str]] = {}
    for device in devices:
        if device.host_id and (reported_model := reported_models.get(normalize_identity(device.host_id))):
            reported_by_model.setdefault(device.model, set()).add(reported_model)
    for model, names in reported_by_model.items():
        declared_model = system.devices.get(model, DeviceModel())
        unexpected_models, message = sorted(names - {model, declared_model.reported_as}), ""
        if unexpected_models and declared_model.reported_as:
            message = (
                f"hosts report {', '.join(unexpected_models)} for {model}, but the system "
                f"file has {declared_model.reported_as} (`reported_as`)"
            )
            yield Finding("models", "stop", f"{message}; correct `pool` or `devices`")
        elif unexpected_models:
            message = (
                f"hosts report {', '.join(unexpected_models)} for {model}; if this is the same model, add "
                f"`devices: {{{model}: {{reported_as: {unexpected_models[0]}}}}}`"
            )
            yield Finding("models", "note", f"{message}; otherwise correct `pool`")


def _check_launcher(system: SystemFile, slurm_options: SlurmOptions, slurm: SlurmCommands) -> Iterator[Finding]:
    """Check that the launcher of a system works here, and that Slurm matches the system file."""
    if system.launcher == "local":
        yield Finding("launcher", "ok", "local: runs start on this machine")
        return
    try:
        answer = slurm(*LIST_HOSTS_COMMAND)
    except ConfigError as error:
        yield Finding("slurm", "stop", str(error))
        return
    if not answer.is_success:
        yield Finding(
            "slurm", "problem", f"'sinfo' failed: {answer.last_error_line}; try again when the controller responds"
        )
        return
    if missing := [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]:
        yield Finding(
            "launcher", "stop", f"this machine lacks {', '.join(missing)}; start on a login node of the cluster"
        )
    yield from check_against_slurm(system, slurm_options, parse_listing(answer.out))


def check_against_slurm(
    system: SystemFile, slurm_options: SlurmOptions, listed_hosts: Mapping[str, ListedHost]
) -> Iterator[Finding]:
    """Compare hosts, partitions, features and generic resources of a system file with those of Slurm.

    Args:
        system: system file.
        slurm_options: options of Slurm from the profile or command line, which precede those of the system file.
        listed_hosts: hosts that Slurm lists, by name.
    """
    names = system.list_usable_hosts()
    # Hosts that are deleted, or powered down in a cloud, are not listed with their features until they return.
    missing_verdict: Severity = "note" if system.slurm.strategy in ("dynamic", "resume") else "stop"
    hosts = {name: listed_hosts[name] for name in names if name in listed_hosts}
    if unknown_hosts := [name for name in names if name not in listed_hosts]:
        message = (
            f"Slurm does not list {shorten_names(unknown_hosts, _MAX_NAMES_SHOWN)} (`hosts`); it lists: "
            f"{shorten_names(listed_hosts, _MAX_NAMES_SHOWN) or 'no host'}"
        )
        yield Finding("slurm", missing_verdict, f"{message}; correct `hosts`")
    options = (slurm_options,) if slurm_options.partition else (system.slurm, *system.slurm.overrides)
    for partition in dict.fromkeys(option_set.partition for option_set in options if option_set.partition):
        available = dict.fromkeys(name for host in listed_hosts.values() for name in host.partitions)
        names = parse_partitions(partition)
        outside_hosts = [host.name for host in hosts.values() if not {*names} & {*host.partitions}]
        if unknown_partitions := [name for name in names if name not in available]:
            yield Finding(
                "slurm",
                missing_verdict,
                f"Slurm has no partition {unknown_partitions[0]!r} (`slurm.partition`); it has: {', '.join(available)}",
            )
        elif outside_hosts:
            host_names = shorten_names(outside_hosts, _MAX_NAMES_SHOWN)
            message = f"partition {partition} (`slurm.partition`) does not contain {host_names}"
            yield Finding(
                "slurm", "problem", f"{message}; give another partition, or leave these hosts out (`--without-hosts`)"
            )
    options = (slurm_options,) if slurm_options.constraint else (system.slurm, *system.slurm.overrides)
    available = dict.fromkeys(name for host in listed_hosts.values() for name in host.features)
    for word in dict.fromkeys(
        feature for option_set in options for feature in parse_features(option_set.constraint or "")
    ):
        if word not in available:
            message = (
                f"no host has the feature {word!r} (`slurm.constraint`); hosts have: {', '.join(available) or 'none'}"
            )
            yield Finding("slurm", missing_verdict, message)
    yield from _check_gres(system, hosts)
    if unavailable_hosts := [
        f"{host.name} ({host.state})" for host in hosts.values() if re.search("down|drain|fail", host.state)
    ]:
        message = (
            "no job can start on "
            f"{shorten_names(unavailable_hosts, _MAX_NAMES_SHOWN)} now; leave permanently unavailable hosts out (`--without-hosts`)"
        )
        yield Finding("slurm", "note", message)
    if hosts:
        yield Finding("slurm", "ok", f"Slurm lists {shorten_names(hosts, _MAX_NAMES_SHOWN)}")


def _check_gres(system: SystemFile, hosts: Mapping[str, ListedHost]) -> Iterator[Finding]:
    """Check that all hosts that have or will get devices have the generic resource.

    With the strategy `dynamic`, hosts are registered for each lease, so they are not checked.
    """
    gres = system.slurm.gres
    if not gres or system.slurm.strategy == "dynamic":
        return

    def needs_gres(devices: Sequence[DeviceSpec]) -> bool:
        return any(
            device_count.kind == "gpu" and not find_launch_rules(system, device_count.model) for device_count in devices
        )

    hosts_with_devices = {
        name
        for group in system.hosts
        if needs_gres(group.devices) or needs_gres(system.pool)
        for name in group.list_names()
    }
    if hosts_without_gres := [
        name for name, host in hosts.items() if name in hosts_with_devices and not count_gres(host.gres, gres)
    ]:
        host_texts = shorten_names(
            [f"{name} {hosts[name].gres or 'none'}" for name in hosts_without_gres], _MAX_NAMES_SHOWN
        )
        message = (
            f"generic resource {gres!r} (`slurm.gres`) is missing; Slurm lists: {host_texts}; correct it or gres.conf"
        )
        yield Finding("slurm", "stop" if len(hosts_without_gres) == len(hosts) else "problem", message)


def check_shared_results(site: Site, slurm_options: SlurmOptions, slurm: SlurmCommands) -> Iterator[Finding]:
    """Check with a short job that a host of a Slurm system can access the results directory and the running Python.

    Args:
        site: the system and its state.
        slurm_options: options of Slurm from the profile or command line, which precede those of the system file.
        slurm: runs Slurm commands, and logs the job.
    """
    if site.system.launcher != "slurm":
        return
    directory = _find_nearest_existing(site.root.absolute()).resolve()
    if not os.access(directory, os.W_OK | os.X_OK):
        return  # `_check_results_directory` and the first file that is written report this problem.
    settings = site.system.slurm
    values = {name: getattr(slurm_options, name) or getattr(settings, name) for name in ("partition", "account", "qos")}
    options = SlurmOptions(**values, additional={**settings.additional, **slurm_options.additional})
    try:
        choice = choose_free_host(
            site.system.list_usable_hosts(), parse_listing(slurm(*LIST_HOSTS_COMMAND).out), options
        )
    except ConfigError:
        return  # `_check_launcher` reports a machine without Slurm.
    if choice is None or "clusters" in options.additional:
        message = "no host is free now to check this, so the first lease will check it"
        yield Finding("results", "note", f"all hosts must see {directory} at this path; {message}")
        return
    host, partition = choice
    observation = check_from_host(
        directory, host, options.model_copy(update={"partition": partition}), settings.latency_s, slurm
    )
    host_text = f"{host} (partition {partition})" if partition else host
    remedy = "give a directory on a file system that all hosts share, at the same path (--results)"
    match observation.view:
        case "seen":
            yield Finding("results", "ok", f"{host_text} sees {directory} and can write there")
        case "unseen":
            yield Finding("results", "stop", f"{host_text} does not see {directory} of this machine; {remedy}")
        case "read_only":
            yield Finding("results", "stop", f"{host_text} cannot write to {directory}; {remedy}")
        case "no_python":
            message = "install the package on a file system that all hosts share"
            yield Finding(
                "python", "stop", f"{host_text} does not see the Python of this machine, {sys.executable}; {message}"
            )
        case _:
            message = (
                f"it is unknown whether {host_text} sees {directory}, because the job that checks this did not start"
            )
            yield Finding("results", "note", f"{message} ({observation.problem})")


def _find_nearest_existing(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(ancestor for ancestor in (path, *path.parents) if ancestor.exists())


def _check_results_directory(site: Site) -> Iterator[Finding]:
    """Check that the results directory is writable and has free space."""
    path = site.root.absolute()
    existing = _find_nearest_existing(path)
    free_gb = shutil.disk_usage(existing).free / 1e9
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield Finding("results", "stop", f"{existing} is not writable; give another directory (--results)")
    elif free_gb < _MIN_FREE_GB:
        yield Finding(
            "results",
            "problem",
            f"{path}: only {free_gb:.2g} GB free; free space, or give another directory (--results)",
        )
    else:
        yield Finding("results", "ok", f"{path}: {free_gb:.3g} GB free")
