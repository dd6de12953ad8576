"""Fabrics: control planes and substitutes that attach pooled devices to hosts, behind the interface `protocol.Fabric`.

The module `registry` lists the kinds.
"""

from campaign.fabrics.registry import (
    FABRICS,
    FabricKind,
    fabric_kind,
    fabric_kinds,
    fabric_modules,
    open_fabric,
)

__all__ = [
    "FABRICS",
    "FabricKind",
    "fabric_kind",
    "fabric_kinds",
    "fabric_modules",
    "open_fabric",
]
