"""Fabrics: control planes and substitutes that attach pooled devices to hosts, behind the interface `protocol.Fabric`.

The module `registry` lists the kinds.
"""

from campaign.fabrics.registry import (
    FABRICS,
    FabricKind,
    list_fabric_modules,
    load_fabric_kind,
    load_fabric_kinds,
    open_fabric,
)

__all__ = [
    "FABRICS",
    "FabricKind",
    "list_fabric_modules",
    "load_fabric_kind",
    "load_fabric_kinds",
    "open_fabric",
]
