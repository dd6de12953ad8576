"""Hosts as Slurm lists them: partitions, features and generic resources of each. `strategies.controller` has what they do now."""

from __future__ import annotations

from dataclasses import dataclass, replace

from campaign.slurm.parse import rows

LISTING = ("sinfo", "--Node", "--noheader", "--format=%N|%R|%T|%G|%f")


@dataclass(frozen=True, slots=True)
class ListedHost:
    """A host of Slurm. state: in Slurm's words; gres: as in slurm.conf, such as `gpu:a100:4`."""

    name: str
    partitions: tuple[str, ...]
    state: str
    gres: str
    features: tuple[str, ...]


def parse_listing(text: str) -> dict[str, ListedHost]:
    """Hosts by name from the answer to LISTING, in which a host of several partitions stands several times."""
    found: dict[str, ListedHost] = {}
    for name, partition, state, gres, features in rows(text, 5):
        given = tuple(each for each in features.split(",") if each)
        host = found.get(name, ListedHost(name, (), state, gres, given))
        found[name] = replace(host, partitions=(*host.partitions, partition))
    return found
