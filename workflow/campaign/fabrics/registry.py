"""Registry of the kinds of fabric, with everything that the rest of the program uses of each kind.

To add a kind, write a module that defines `FABRIC = FabricKind(..)` and add its line to `FABRICS`. Another installed package
adds a kind with an entry point in the group `composable_campaign.fabrics`: its name is the kind, its value the module. A
module is imported only if a system names its kind, or if all kinds are listed.
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
from campaign.fabrics.operations import OperationSteps
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
    """Options of a fabric that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_TWO_POOLED_DEVICES = Configuration("c", 1, 2, 0, 2, "a100", "fabric", "fabric-nvme")


@dataclass(frozen=True, slots=True)
class Example:
    """A small system of one kind, into which `configuration` fits exactly once.

    The contract suite runs on it. `options` holds the entries under `fabric` in the system file, except the kind and the
    address and credentials of a control plane.
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
    configuration: Configuration = _TWO_POOLED_DEVICES


@dataclass(frozen=True, slots=True)
class FabricKind:
    """One kind of fabric.

    Attributes:
        summary: one line for lists.
        options: pydantic model of the fabric's options in a system file, which rejects unknown keys.
        open: function that creates the adapter. It raises ConfigError if options, hosts or pool do not fit, and sends nothing to
            a control plane.
        unverified: features that were not tried on the real product; empty if there are none.
        tested: systems that the adapter was run against.
        emulator: module that emulates the control plane (`open_emulator`, `COMPOSES`).
        offers: functions of the control plane beyond composing.
        times: recordings of this kind that are part of the package (`read_published_times`).
        steps: consecutive operations that attach a device; None if composing is not one operation per device.
    """

    summary: str
    options: type[BaseModel]
    open: Callable[[Any, tuple[HostSpec, ...], tuple[PoolSpec, ...], Path], Fabric]
    unverified: str = ""
    tested: str = "the contract suite"
    emulator: str = ""
    offers: frozenset[Offer] = frozenset()
    times: str = ""
    steps: OperationSteps | None = None
    example: Example = field(default_factory=Example)


def list_fabric_modules() -> dict[str, str]:
    """Return the module of every kind, including kinds of other installed packages.

    Other packages cannot replace a kind of this package.
    """
    return {**{entry.name: entry.module for entry in entry_points(group=ENTRY_POINTS)}, **FABRICS}


def load_fabric_kind(name: str) -> FabricKind:
    """Import one kind of fabric.

    Raises ConfigError if the kind is unknown (the message lists the kinds) or if its module is invalid.
    """
    module = FABRICS.get(name) or list_fabric_modules().get(name)
    if module is None:
        raise ConfigError(f"unknown fabric {name!r}; use one of: {', '.join(list_fabric_modules())}")
    try:
        kind = vars(import_module(module)).get("FABRIC")
    except ImportError as error:
        raise ConfigError(f"fabric {name!r}: the module {module} cannot be imported: {error}") from error
    if not isinstance(kind, FabricKind):
        raise ConfigError(
            f"fabric {name!r}: the module {module} does not define `FABRIC = FabricKind(..)` (campaign.fabrics.registry)"
        )
    return kind


def load_fabric_kinds() -> dict[str, FabricKind]:
    """Import every kind of this package, for status tables."""
    return {name: load_fabric_kind(name) for name in FABRICS}


def list_kinds_offering(offer: Offer) -> list[str]:
    """Return the names of the kinds whose control plane offers a function."""
    return [name for name, kind in load_fabric_kinds().items() if offer in kind.offers]


def open_fabric(
    name: str,
    options: BaseModel | Mapping[str, Any],
    hosts: Sequence[HostSpec],
    pool: Sequence[PoolSpec],
    state_dir: Path,
) -> Fabric:
    """Open a fabric of a registered kind.

    The adapter creates `state_dir` on its first write. Raises ConfigError if the options, the hosts or the pool do not fit the
    adapter.
    """
    kind = load_fabric_kind(name)
    if not isinstance(options, kind.options):
        try:
            options = kind.options.model_validate(options)
        except ValidationError as error:
            located_messages = [
                (".".join(map(str, detail["loc"])) or "options", detail["msg"]) for detail in error.errors()
            ]
            problems = "; ".join(f"{option_path}: {message}" for option_path, message in located_messages)
            raise ConfigError(f"options of fabric {name!r}: {problems}") from error
    return kind.open(options, tuple(hosts), tuple(pool), state_dir)
