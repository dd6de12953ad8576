"""Hosts as Slurm lists them: partitions, features and generic resources of each. `strategies.controller` has what they do now."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from campaign.slurm.parse import parse_duration_s, split_rows

TIME_LIMITS = ("sinfo", "--noheader", "--format=%P|%l")
LISTING = ("sinfo", "--Node", "--noheader", "--format=%N|%R|%T|%G|%f")


@dataclass(frozen=True, slots=True)
class ListedHost:
    """A host of Slurm. state: in Slurm's words; gres: as in slurm.conf, such as `gpu:a100:4`."""

    name: str
    partitions: tuple[str, ...]
    state: str
    gres: str
    features: tuple[str, ...]


def parse_features(constraint: str) -> tuple[str, ...]:
    """Return the features that a value of `sbatch --constraint` names: all but the operators `& | , [ ] ( )` and counts (`*2`)."""
    words = re.split(r"[&|,()\[\]\s]+", re.sub(r"\*\d+", "", constraint))
    return tuple(dict.fromkeys(filter(None, words)))


def parse_partitions(partition: str) -> tuple[str, ...]:
    """Return the partitions that a value of `sbatch --partition` names; Slurm takes any of them."""
    return tuple(dict.fromkeys(filter(None, partition.split(","))))


def parse_time_limit_min(text: str, partition: str | None) -> int | None:
    """Return the longest time in minutes that the partitions of a job allow, from the answer to TIME_LIMITS.

    Args:
        partition: value of `sbatch --partition`; None for the default partition, which sinfo marks with `*`.

    Returns None if one of them has no limit, or none is listed.
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
    """Parse the output of LISTING into hosts by name. A host of several partitions has several lines."""
    hosts: dict[str, ListedHost] = {}
    for name, partition, state, gres, features in split_rows(text, 5):
        feature_names = tuple(feature for feature in features.split(",") if feature)
        host = hosts.get(name, ListedHost(name, (), state, gres, feature_names))
        hosts[name] = replace(host, partitions=(*host.partitions, partition))
    return hosts
