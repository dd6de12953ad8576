"""The kinds of fabric, and everything that the rest of the program knows about each of them.

To add a kind, write a module that has `FABRIC = FabricKind(..)` and add its line to `FABRICS`. Another installed package adds one
by an entry point in the group `composable_campaign.fabrics`: its name is the kind, its value the module. A module is imported only
when a system names its kind, or when all kinds are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from campaign.common.errors import ConfigError
from campaign.fabrics.operations import Steps
from campaign.fabrics.protocol import Fabric
from campaign.spec.cell import Configuration
from campaign.spec.site_hardware import HostSpec, PoolSpec

ENTRY_POINTS = "composable_campaign.fabrics"

FABRICS: dict[str, str] = {
    "static": "campaign.fabrics.static",
    "simulated": "campaign.fabrics.simulated",
    "redfish": "campaign.fabrics.adapters.redfish",
    "liqid": "campaign.fabrics.adapters.liqid",
    "h3": "campaign.fabrics.adapters.h3",
    "prefix": "campaign.fabrics.prefix",
}
"""Module of each kind."""

Offer = Literal["p2p"]


class NoOptions(BaseModel):
    """The fabric has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_TWO_POOLED = Configuration("c", 1, 2, 0, 2, "a100", "fabric", "fabric-nvme")


@dataclass(frozen=True, slots=True)
class Example:
    """A small system of a kind, into which `configuration` fits exactly once. The contract suite runs on it.

    options: what a system file says under `fabric` beside the kind, and beside address and credentials of a control plane.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    hosts: tuple[HostSpec, ...] = (
        HostSpec(name="host1", cores=8, memory_gib=32.0),
        HostSpec(name="host2", cores=8, memory_gib=32.0),
    )
    pool: tuple[PoolSpec, ...] = (
        PoolSpec(kind="gpu", model="a100", count=2),
        PoolSpec(kind="nvme", model="ssd", count=1),
    )
    configuration: Configuration = _TWO_POOLED


@dataclass(frozen=True, slots=True)
class FabricKind:
    """One kind of fabric.

    summary: one line for lists. options: closed pydantic model of the `options` in a system file. open: makes the adapter; it
    raises ConfigError when options, hosts or pool do not fit, and asks no control plane anything yet.
    unverified: what has not been tried on the real product; empty where there is nothing of the kind. tested: what it was run
    against. emulator: module that emulates its control plane (`open_emulator`, `COMPOSES`). offers: what its control plane can
    tell or do beside composing. times: recordings of this kind that come with the package (`published_times`). steps:
    operations that attaching takes, one after another; None where composing is not one operation a device.
    """

    summary: str
    options: type[BaseModel]
    open: Callable[[Any, tuple[HostSpec, ...], tuple[PoolSpec, ...], Path], Fabric]
    unverified: str = ""
    tested: str = "the contract suite"
    emulator: str = ""
    offers: frozenset[Offer] = frozenset()
    times: str = ""
    steps: Steps | None = None
    example: Example = field(default_factory=Example)


def fabric_modules() -> dict[str, str]:
    """Module of every kind, installed packages' included; they cannot replace a kind of this package."""
    return {**{entry.name: entry.module for entry in entry_points(group=ENTRY_POINTS)}, **FABRICS}


def fabric_kind(name: str) -> FabricKind:
    """Import one kind. Raises ConfigError that lists the kinds, or says what is wrong with its module."""
    module = FABRICS.get(name) or fabric_modules().get(name)
    if module is None:
        raise ConfigError(f"fabric {name!r} is not known; there are: {', '.join(fabric_modules())}")
    try:
        kind = vars(import_module(module)).get("FABRIC")
    except ImportError as error:
        raise ConfigError(f"fabric {name!r}: {module} cannot be imported: {error}") from error
    if not isinstance(kind, FabricKind):
        raise ConfigError(f"fabric {name!r}: {module} has no `FABRIC = FabricKind(..)` (campaign.fabrics.registry)")
    return kind


def fabric_kinds() -> dict[str, FabricKind]:
    """Every kind of this package, imported: rows of status tables."""
    return {name: fabric_kind(name) for name in FABRICS}


def offering(offer: Offer) -> list[str]:
    """Names of the kinds that offer something."""
    return [name for name, kind in fabric_kinds().items() if offer in kind.offers]


def open_fabric(
    name: str,
    options: BaseModel | Mapping[str, Any],
    hosts: Sequence[HostSpec],
    pool: Sequence[PoolSpec],
    state_dir: Path,
) -> Fabric:
    """Open a fabric of a kind; `state_dir` is created when the adapter first writes to it.

    Raises ConfigError when the options, the hosts or the pool do not fit the adapter.
    """
    kind = fabric_kind(name)
    if not isinstance(options, kind.options):
        try:
            options = kind.options.model_validate(options)
        except ValidationError as error:
            found = [(".".join(map(str, each["loc"])) or "options", each["msg"]) for each in error.errors()]
            problems = "; ".join(f"{where}: {message}" for where, message in found)
            raise ConfigError(f"options of fabric {name!r}: {problems}") from error
    return kind.open(options, tuple(hosts), tuple(pool), state_dir)
