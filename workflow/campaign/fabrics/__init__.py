"""Fabrics: whatever attaches pooled devices to hosts. One table says which there are; adding one is a module and a line.

Another package can bring one: an entry point in the group `composable_campaign.fabrics`, whose name is the kind and whose value is
the adapter's module.

An adapter module has `Options` (a closed pydantic model, the `options:` of a system file's fabric) and
`open_fabric(options, hosts, pool, state_dir) -> Fabric`. It is imported only when a system names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from campaign.errors import ConfigError
from campaign.fabrics.protocol import Fabric, HostSpec, PoolSpec


@dataclass(frozen=True, slots=True)
class Adapter:
    """One entry of the table: where the adapter is, and one line about it for people.

    unverified: what was never tried on the real thing, for people who would; empty where there is nothing of the kind.
    """

    module: str
    summary: str
    unverified: str = ""


FABRICS: dict[str, Adapter] = {
    "static": Adapter("campaign.fabrics.static", "a traditional cluster: hosts with the devices that are built in"),
    "simulated": Adapter(
        "campaign.fabrics.simulated", "a Falcon-4016-like chassis and its pool, simulated with latencies and faults"
    ),
    "redfish": Adapter(
        "campaign.fabrics.dialects.redfish",
        "DMTF Redfish composition: resource blocks, zones, composed systems",
        "any vendor's service; it was run against emulators and judged by foreign Redfish clients",
    ),
    "redfish-zones": Adapter(
        "campaign.fabrics.dialects.redfish_zones",
        "Falcon-like chassis and other Redfish fabrics: one zone a host port",
        "the body and sign-in of H3 Falcon and GigaIO FabreX, whose references are not public",
    ),
    "liqid": Adapter(
        "campaign.fabrics.dialects.liqid",
        "Liqid Matrix, REST v2",
        "a real Liqid director; requests follow its published client libraries",
    ),
    "sunfish": Adapter(
        "campaign.fabrics.dialects.sunfish",
        "OFMF/Sunfish: connections through an agent",
        "a hardware agent; behaviour follows the reference server and its agents",
    ),
    "cdi": Adapter(
        "campaign.fabrics.dialects.cdi",
        "Fujitsu CDI, fabric manager",
        "a real fabric manager; requests follow public clients of it",
    ),
    "nec": Adapter(
        "campaign.fabrics.dialects.nec",
        "NEC CDIM",
        "a real CDIM; requests follow a public client of it",
    ),
    "prefix": Adapter(
        "campaign.fabrics.prefix",
        "remote and partial devices that need no attach: a launch prefix and environment",
        "Bitfusion, whose product has ended; MIG and MPS are by NVIDIA's documentation",
    ),
}


ENTRY_POINTS = "composable_campaign.fabrics"


def adapters() -> dict[str, Adapter]:
    """The table, with the adapters that other installed packages bring; a name of ours cannot be taken over."""
    others = {
        entry.name: Adapter(entry.module, f"from package {entry.dist.name if entry.dist else entry.module}")
        for entry in entry_points(group=ENTRY_POINTS)
    }
    return {**others, **FABRICS}


def adapter_module(name: str) -> Any:
    """The module of an adapter, imported now. Raises ConfigError naming the adapters there are, or what its import lacks."""
    adapter = FABRICS.get(name) or adapters().get(name)
    if adapter is None:
        raise ConfigError(f"fabric {name!r} is not known; there are: {', '.join(adapters())}")
    try:
        return import_module(adapter.module)
    except ImportError as error:
        raise ConfigError(f"fabric {name!r}: {adapter.module} cannot be imported: {error}") from error


def options_model(name: str) -> type[BaseModel]:
    """The pydantic model of an adapter's options. Raises ConfigError naming the adapters there are."""
    return cast(type[BaseModel], adapter_module(name).Options)


def open_fabric(
    name: str,
    options: BaseModel | Mapping[str, Any],
    hosts: Sequence[HostSpec],
    pool: Sequence[PoolSpec],
    state_dir: Path,
) -> Fabric:
    """Open a fabric by its name in the table; `state_dir` is created when the adapter first writes to it.

    Raises ConfigError when the options, the hosts or the pool do not fit the adapter.
    """
    model = options_model(name)
    if not isinstance(options, model):
        try:
            options = model.model_validate(options)
        except ValidationError as error:
            raise ConfigError(_message(name, error)) from error
    agent = getattr(options, "agent", None)
    if agent is not None and agent.kind == "local" and len(hosts) != 1:
        raise ConfigError(
            f"fabric {name!r}: agent: kind local looks at this machine, and there are {len(hosts)} hosts; use ssh"
        )
    return cast(Fabric, adapter_module(name).open_fabric(options, tuple(hosts), tuple(pool), state_dir))


def _message(name: str, error: ValidationError) -> str:
    problems = "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'options'}: {problem['msg']}"
        for problem in error.errors(include_url=False)
    )
    return f"options of fabric {name!r}: {problems}"
