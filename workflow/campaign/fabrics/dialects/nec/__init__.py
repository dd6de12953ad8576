"""NEC CDIM (project CDIM): devices are connected to a host's processor by procedures that one `layout-apply` carries out.

Source: the API reference and the code of project CDIM 0.1 and 0.2, and a public Kubernetes client of the product. Its services have
ports of their own and ask nobody (`layout_apply_url`), or stand behind a gateway with a path for each and a login service beside it
(`prefix`, `layout_apply_prefix`, `login`). A lease is one apply: the fabric runs one at a time (409 E40010), and one that is
suspended blocks all others (409 E40027) until it is resumed or cancelled. Lists lag behind an apply (`settle_s`). The fabric has no
field for a tag, so that the claims in the state file are the only mark.

Unverified: every request, against a real CDIM. `api: cpu` is what its schema asks for; `api: eeio` is what the client of the
product sends, and layout-apply 0.1.1 refuses.
"""

from __future__ import annotations

from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.dialects.nec.control_plane import Plane
from campaign.fabrics.dialects.nec.options import Options
from campaign.fabrics.registry import Example, FabricKind

open_fabric = opening(Plane, "nec")

FABRIC = FabricKind(
    "NEC CDIM",
    Options,
    open_fabric,
    unverified="a real CDIM. `api: eeio` follows a public client of the product alone, and CDIM 0.1 refuses it",
    tested="its emulator, in both public topologies (ports; gateway and login). The schema of project CDIM's layout-apply 0.1.1, "
    "written down as data, confirms the procedures of `api: cpu`, and what the emulator refuses",
    emulator="campaign.testbed.control_planes.nec",
    example=Example(
        {
            "prefix": "/cdim/api/v1/configuration-manager",
            "layout_apply_prefix": "/cdim/api/v1/layout-apply",
            "login": {},
        }
    ),
)
