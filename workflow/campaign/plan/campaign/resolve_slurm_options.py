"""Options of an allocation: from the system file, its overrides, and what a profile or the command line gives. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from pydantic import ValidationError

from campaign.common.errors import ConfigError, format_first_error
from campaign.plan.campaign.launch_prefix_rules import devices_to_ask
from campaign.spec.cell import SHAPE_AXES, Configuration
from campaign.spec.expression import parse
from campaign.spec.system_file import SlurmOptions, SlurmSettings, SystemFile

_HEAD_ROOM = 2.0
_START_MIN = 10  # for what a plan does not know: slow file systems, the first import
_LEAST_MIN = 15
_LONGEST_MIN = 24 * 60  # what most partitions allow; a driver that is warned of its end goes on in another allocation


def given_options(given: object) -> SlurmOptions:
    """Options that a profile or `--config slurm={...}` gives; ConfigError names the key and what is allowed."""
    try:
        return SlurmOptions.model_validate(given or {})
    except ValidationError as error:
        known = ", ".join(SlurmOptions.model_fields)
        keys = [*given] if isinstance(given, dict) else []
        if elsewhere := [
            key for key in keys if key not in SlurmOptions.model_fields and key in SlurmSettings.model_fields
        ]:
            raise ConfigError(
                f"--config slurm: {elsewhere[0]} is given in the system file only (`slurm.{elsewhere[0]}`); here there are: {known}"
            ) from error
        raise ConfigError(f"--config slurm: {format_first_error(error, str(given))}; there are: {known}") from error


def options_of(system: SystemFile, configuration: Configuration, given: SlurmOptions) -> SlurmOptions:
    """Options of one configuration: the system's, those of the overrides that select it, and the given ones; the last one wins."""
    values = {name: getattr(system.slurm, name) for name in SlurmOptions.model_fields}
    axes = configuration.axes()
    chosen: list[SlurmOptions] = [
        override
        for override in system.slurm.overrides
        if parse(override.when, frozenset(SHAPE_AXES), f"system {system.name}: slurm: overrides")(axes)
    ]
    for options in (*chosen, given):
        for name in SlurmOptions.model_fields:
            value = getattr(options, name)
            if name == "additional":
                values[name] = {**values[name], **value}
            elif value is not None:
                values[name] = value
    return SlurmOptions(**values)


def is_pinned(system: SystemFile) -> bool:
    """Whether the composition chooses the hosts, and not Slurm."""
    chosen = system.slurm.placement or ("scheduler" if system.fabric["kind"] == "static" else "pinned")
    return chosen == "pinned" and system.slurm.strategy != "resume"


def time_limit_min(expected_s: float | None, longest_s: float) -> int:
    """Minutes to request: twice the forecast, but never more than the sum of the time limits of all runs.

    expected_s: forecast of all missing runs; None, where it is unknown: that sum then, up to a day. longest_s: that sum.
    """
    longest = math.ceil(longest_s / 60) + _START_MIN
    if expected_s is None:
        return min(longest, _LONGEST_MIN)
    return min(longest, max(_LEAST_MIN, math.ceil(expected_s * _HEAD_ROOM / 60) + _START_MIN))


def devices_asked(system: SystemFile, configuration: Configuration, hosts: Collection[str] = ()) -> int:
    """Devices to request on each host; hosts: those that may be used, empty for any.

    Where pooled devices are added to a host's own, all are requested, so that those of the composition are among them.
    """
    if (launched := devices_to_ask(system, configuration)) is not None:
        return launched
    if not configuration.fabric_devices_per_host:
        return configuration.devices_per_host
    groups = [group for group in system.hosts if not hosts or set(hosts) & set(group.names())]
    own = [sum(d.count for d in group.devices if d.kind == "gpu") for group in groups]
    return max(own) + configuration.fabric_devices_per_host


def gres_of(system: SystemFile, configuration: Configuration, hosts: Collection[str] = ()) -> str:
    """What an allocation asks of each host, such as `gpu:4`; empty for nothing."""
    devices = devices_asked(system, configuration, hosts)
    wanted = system.slurm.gres and (devices or not configuration.devices)
    return f"{system.slurm.gres}:{devices}" if wanted else ""
