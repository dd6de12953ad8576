"""Slurm options of an allocation, from the system file, its overrides, and a profile or the command line. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from pydantic import ValidationError

from campaign.common.errors import ConfigError, format_first_error
from campaign.plan.campaign.launch_prefix_rules import count_devices_to_request
from campaign.spec.cell import SHAPE_AXES, Configuration
from campaign.spec.expression import parse_expression
from campaign.spec.system_file import SlurmOptions, SlurmSettings, SystemFile

_TIME_LIMIT_FACTOR = 2.0
_STARTUP_MARGIN_MIN = 10  # for delays that a forecast does not include, such as slow file systems and the first import
_MIN_TIME_LIMIT_MIN = 15
# Most partitions allow this time. A driver that is warned of its end continues in another allocation.
_MAX_DEFAULT_TIME_LIMIT_MIN = 24 * 60


def parse_slurm_options(document: object) -> SlurmOptions:
    """Parse the Slurm options of a profile or of `--config slurm={...}`.

    Raises ConfigError, which names the key and the allowed keys.
    """
    try:
        return SlurmOptions.model_validate(document or {})
    except ValidationError as error:
        valid_keys = ", ".join(SlurmOptions.model_fields)
        keys = [*document] if isinstance(document, dict) else []
        if system_keys := [
            key for key in keys if key not in SlurmOptions.model_fields and key in SlurmSettings.model_fields
        ]:
            raise ConfigError(
                f"--config slurm: {system_keys[0]} can only be set in the system file (`slurm.{system_keys[0]}`); the allowed "
                f"keys are: {valid_keys}"
            ) from error
        raise ConfigError(
            f"--config slurm: {format_first_error(error, str(document))}; the allowed keys are: {valid_keys}"
        ) from error


def merge_slurm_options(system: SystemFile, configuration: Configuration, overrides: SlurmOptions) -> SlurmOptions:
    """Merge the options of the system, of its overrides for a configuration, and of the user. Later options win."""
    values = {name: getattr(system.slurm, name) for name in SlurmOptions.model_fields}
    axes = configuration.axes()
    matching_overrides: list[SlurmOptions] = [
        override
        for override in system.slurm.overrides
        if parse_expression(override.when, frozenset(SHAPE_AXES), f"system {system.name}: slurm: overrides")(axes)
    ]
    for options in (*matching_overrides, overrides):
        for name in SlurmOptions.model_fields:
            value = getattr(options, name)
            if name == "additional":
                values[name] = {**values[name], **value}
            elif value is not None:
                values[name] = value
    return SlurmOptions(**values)


def is_pinned(system: SystemFile) -> bool:
    """Return whether the composition chooses the hosts, rather than Slurm."""
    placement = system.slurm.placement or ("scheduler" if system.fabric["kind"] == "static" else "pinned")
    return placement == "pinned" and system.slurm.strategy != "resume"


def compute_time_limit_min(expected_s: float | None, longest_s: float) -> int:
    """Compute the time limit (minutes) to request.

    It is twice the forecast plus a margin, but at most the sum of the time limits of all runs.

    Args:
        expected_s: forecast (seconds) of all missing runs; if it is None, the result is that sum, but at most one day.
        longest_s: sum of the time limits (seconds) of all runs.
    """
    longest = math.ceil(longest_s / 60) + _STARTUP_MARGIN_MIN
    if expected_s is None:
        return min(longest, _MAX_DEFAULT_TIME_LIMIT_MIN)
    return min(longest, max(_MIN_TIME_LIMIT_MIN, math.ceil(expected_s * _TIME_LIMIT_FACTOR / 60) + _STARTUP_MARGIN_MIN))


def count_requested_devices(system: SystemFile, configuration: Configuration, hosts: Collection[str] = ()) -> int:
    """Count the devices to request on each host.

    If pooled devices are added to built-in ones, all are requested, so that the devices of the composition are among them.

    Args:
        system: the system file.
        configuration: the configuration to allocate.
        hosts: hosts that may be used; empty for any.
    """
    if (launch_devices := count_devices_to_request(system, configuration)) is not None:
        return launch_devices
    if not configuration.fabric_devices_per_host:
        return configuration.devices_per_host
    groups = [group for group in system.hosts if not hosts or set(hosts) & set(group.list_names())]
    built_in_counts = [sum(d.count for d in group.devices if d.kind == "gpu") for group in groups]
    return max(built_in_counts) + configuration.fabric_devices_per_host


def format_gres(system: SystemFile, configuration: Configuration, hosts: Collection[str] = ()) -> str:
    """Return the generic resources to request on each host, such as `gpu:4`, or an empty string if there are none."""
    devices = count_requested_devices(system, configuration, hosts)
    is_requested = system.slurm.gres and (devices or not configuration.devices)
    return f"{system.slurm.gres}:{devices}" if is_requested else ""
