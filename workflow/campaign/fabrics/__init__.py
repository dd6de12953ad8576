"""Fabrics: whatever attaches pooled devices to hosts, behind one interface (`protocol.Fabric`). `registry` lists the kinds."""

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
