"""NEC CDIM (project CDIM): devices are connected to a host's fabric interface by procedures that one `layout-apply` carries out.

Source: the API reference and the code of project CDIM 0.1 and 0.2, and a public client of the product. A lease is one apply: the
fabric runs one at a time (409 E40010), and one that is suspended blocks all others (409 E40027) until it is resumed or cancelled.
The fabric has no field for a tag, so that the claims in the state file are the only mark.

Unverified: every request, against a real CDIM; `api: eeio` is what the client of the product sends, `api: cpu` what the public
reference documents. Where a site asks for a login is not public either: none is sent.
"""

from __future__ import annotations

from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.dialects.nec.control_plane import Plane
from campaign.fabrics.dialects.nec.options import Options
from campaign.fabrics.registry import FabricKind

open_fabric = opening(Plane, "nec")

FABRIC = FabricKind(
    "NEC CDIM",
    Options,
    open_fabric,
    unverified="a real CDIM; requests follow a public client of it",
    tested="its emulator",
    emulator="campaign.testbed.control_planes.nec",
)
