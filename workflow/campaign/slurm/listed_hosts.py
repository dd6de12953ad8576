"""Hosts as Slurm lists them, with partitions, features and generic resources.

`campaign.slurm.strategies.controller` queries their current state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from campaign.slurm.parse import parse_duration_s, split_rows

LIST_TIME_LIMITS_COMMAND = ("sinfo", "--noheader", "--format=%P|%l")
LIST_HOSTS_COMMAND = ("sinfo", "--Node", "--noheader", "--format=%N|%R|%T|%G|%f")


@dataclass(frozen=True, slots=True)
class ListedHost:
    """A host as Slurm lists it.

    Args:
        name: name of the host.
        partitions: partitions that contain the host.
        state: state as Slurm prints it.
        gres: generic resources as in slurm.conf, such as `gpu:a100:4`.
        features: features of the host.
    """

    name: str
    partitions: tuple[str, ...]
    state: str
    gres: str
    features: tuple[str, ...]


def parse_features(constraint: str) -> tuple[str, ...]:
    """Return the features in a value of `sbatch --constraint`, without the operators `& | , [ ] ( )` and counts (`*2`)."""
    words = re.split(r"[&|,()\[\]\s]+", re.sub(r"\*\d+", "", constraint))
    return tuple(dict.fromkeys(filter(None, words)))


def parse_partitions(partition: str) -> tuple[str, ...]:
    """Return the partitions in a value of `sbatch --partition`. Slurm may use any of them."""
    return tuple(dict.fromkeys(filter(None, partition.split(","))))


def parse_time_limit_min(text: str, partition: str | None) -> int | None:
    """Return the longest time in minutes that the partitions of a job allow, from the output of TIME_LIMITS.

    The result is None if one of the partitions has no limit, or if none of them is listed.

    Args:
        text: output of TIME_LIMITS.
        partition: value of `sbatch --partition`; None for the default partition, which sinfo marks with `*`.
    """
    names = () if partition is None else parse_partitions(partition)
    limits = [
        parse_duration_s(limit)
        for name, limit in split_rows(text, 2)
        if name.rstrip("*") in names or (partition is None and name.endswith("*"))
    ]
    finite = [limit for limit in limits if limit is not None]
    return int(max(finite) // 60) if finite and len(finite) == len(limits) else None


def parse_listing(text: str) -> dict[str, ListedHost]:
    """Parse the output of LISTING into hosts by name. A host in several partitions has several lines."""
    hosts: dict[str, ListedHost] = {}
    for name, partition, state, gres, features in split_rows(text, 5):
        feature_names = tuple(feature for feature in features.split(",") if feature)
        host = hosts.get(name, ListedHost(name, (), state, gres, feature_names))
        hosts[name] = replace(host, partitions=(*host.partitions, partition))
    return hosts
