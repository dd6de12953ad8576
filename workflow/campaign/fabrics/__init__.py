"""Fabrics: whatever attaches pooled devices to hosts, behind one interface (`protocol.Fabric`). `registry` lists the kinds."""

from campaign.fabrics.registry import (
    FABRICS,
    REMOVED,
    REMOVED_OPTIONS,
    FabricKind,
    fabric_kind,
    fabric_kinds,
    fabric_modules,
    open_fabric,
)

__all__ = [
    "FABRICS",
    "REMOVED",
    "REMOVED_OPTIONS",
    "FabricKind",
    "fabric_kind",
    "fabric_kinds",
    "fabric_modules",
    "open_fabric",
]
