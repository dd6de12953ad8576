"""Fabrics: whatever attaches pooled devices to hosts. One table says which there are; adding one is a module and a line.

An adapter module has `Options` (a closed pydantic model, the `options:` of a system file's fabric) and
`open_fabric(options, hosts, pool, state_dir) -> Fabric`. It is imported only when a system names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from campaign.errors import ConfigError
from campaign.fabrics.protocol import Fabric, HostSpec, PoolSpec


@dataclass(frozen=True, slots=True)
class Adapter:
    """One entry of the table: where the adapter is, and one line about it for people."""

    module: str
    summary: str


FABRICS: dict[str, Adapter] = {
    "static": Adapter("campaign.fabrics.static", "a traditional cluster: hosts with the devices that are built in"),
    "simulated": Adapter(
        "campaign.fabrics.simulated", "a Falcon-4016-like chassis and its pool, simulated with latencies and faults"
    ),
    "redfish": Adapter("campaign.fabrics.redfish", "DMTF Redfish composition: resource blocks, zones, composed systems"),
    "redfish-zones": Adapter(
        "campaign.fabrics.redfish_zones", "Falcon-like chassis and other Redfish fabrics: one zone a host port"
    ),
    "liqid": Adapter("campaign.fabrics.liqid", "Liqid Matrix, REST v2"),
    "sunfish": Adapter("campaign.fabrics.sunfish", "OFMF/Sunfish: connections through an agent"),
    "cdi": Adapter("campaign.fabrics.cdi", "Fujitsu CDI, fabric manager"),
    "nec": Adapter("campaign.fabrics.nec", "NEC CDIM"),
    "prefix": Adapter(
        "campaign.fabrics.prefix", "remote and partial devices that need no attach: a launch prefix and environment"
    ),
}


def options_model(name: str) -> type[BaseModel]:
    """The pydantic model of an adapter's options. Raises ConfigError naming the adapters there are."""
    if name not in FABRICS:
        raise ConfigError(f"fabric {name!r} is not known; there are: {', '.join(FABRICS)}")
    return cast(type[BaseModel], import_module(FABRICS[name].module).Options)


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
    return cast(Fabric, import_module(FABRICS[name].module).open_fabric(options, tuple(hosts), tuple(pool), state_dir))


def _message(name: str, error: ValidationError) -> str:
    problems = "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'options'}: {problem['msg']}"
        for problem in error.errors(include_url=False)
    )
    return f"options of fabric {name!r}: {problems}"
