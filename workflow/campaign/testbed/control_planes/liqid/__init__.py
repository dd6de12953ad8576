"""An emulated Liqid Matrix, REST v2, over a rack: groups, machines, edit modes, and nothing connected before it is reprogrammed.

Strict: every request needs its digest key, objects must be echoed whole, one machine is edited at a time, a device is in one place.
Written from the public SDKs (3.2.0 to 3.4), their model of a Matrix and recorded requests; the shapes of the SDKs judge it.
"""

from __future__ import annotations

from campaign.testbed.control_planes.liqid.requests import LiqidDialect

__all__ = ["LiqidDialect", "open_dialect"]

COMPOSES = ("POST", "*/fabric/reprogram")
open_dialect = LiqidDialect
